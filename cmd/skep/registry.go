package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/bytecode/image"
)

// registryFlags are how a command reaches registries.
type registryFlags struct {
	cacheDir string
	insecure []string
}

func (f *registryFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cacheDir, "cache", "", "folder of the bytecode cache (default: the user's cache folder)")
	cmd.Flags().StringSliceVar(&f.insecure, "insecure-registry", nil, "registry host:port to reach over plain http; loopback needs no mention")
}

// client opens the images the flags speak of.
func (f *registryFlags) client() (*image.Client, error) {
	dir := f.cacheDir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "skep", "bytecode")
	}
	c, err := image.NewClient(image.Options{CacheDir: dir, InsecureRegistries: slices.Clone(f.insecure), UserAgent: "skep/" + thisBuild().Version})
	if err != nil {
		return nil, fmt.Errorf("open registries: %w", err)
	}
	return c, nil
}
