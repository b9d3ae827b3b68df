// Command assets builds programs of others that tests run, where this machine has none yet, and prints
// their folders: of the control plane, containerd or Flux, by name. It starts nothing. With -built it
// builds nothing either, and fails where one is missing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/flux"
)

func main() {
	built := flag.Bool("built", false, "build nothing: fail where one is missing")
	flag.Parse()
	folders := map[string]func(context.Context) (string, error){
		"controlplane": controlplane.Assets, "containerd": containerd.Build, "flux": flux.Build,
	}
	if *built {
		folders = map[string]func(context.Context) (string, error){
			"containerd": func(context.Context) (string, error) { return containerd.Folder() },
			"flux":       func(context.Context) (string, error) { return flux.Folder() },
		}
	}
	for _, name := range flag.Args() {
		folder, ok := folders[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "assets: there is no %q to be built or asked for\n", name)
			os.Exit(2)
		}
		dir, err := folder(context.Background())
		if err != nil {
			fmt.Fprintf(os.Stderr, "assets: %s: %v\n", name, err)
			os.Exit(1)
		}
		fmt.Println(dir)
	}
}
