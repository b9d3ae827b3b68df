// Command assets builds programs of others that tests run, where this machine has none yet, and prints
// their folders: of the control plane, containerd or Flux, by name. It starts nothing.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/flux"
)

func main() {
	builds := map[string]func(context.Context) (string, error){
		"controlplane": controlplane.Assets, "containerd": containerd.Build, "flux": flux.Build,
	}
	for _, name := range os.Args[1:] {
		build, ok := builds[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "assets: %q is none of controlplane, containerd and flux\n", name)
			os.Exit(2)
		}
		dir, err := build(context.Background())
		if err != nil {
			fmt.Fprintf(os.Stderr, "assets: %s: %v\n", name, err)
			os.Exit(1)
		}
		fmt.Println(dir)
	}
}
