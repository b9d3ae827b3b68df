// Command assets prints the folder of the control plane's binaries, after
// building them where this machine has none yet. It starts nothing.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/skep-dev/skep/test/harness/controlplane"
)

func main() {
	dir, err := controlplane.Assets(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
