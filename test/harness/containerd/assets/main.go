// Command assets builds the containerd of tests where this machine has none yet, and prints its
// folder. It starts nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/skep-dev/skep/test/harness/containerd"
)

func main() {
	err := containerd.Build(context.Background())
	dir, missing := containerd.Folder()
	if err := errors.Join(err, missing); err != nil {
		fmt.Fprintln(os.Stderr, "containerd:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
