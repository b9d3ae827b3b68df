package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/image/registry"
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

// registryTimeout bounds all that skep sign and skep verify ask of registries, however
// slowly one answers.
const registryTimeout = 2 * time.Minute

// within runs what takes no longer than a limit, and names it in the error where it was
// ended by that.
func within(ctx context.Context, limit time.Duration, what string, run func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := run(limited)
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s took longer than %s: %w", what, limit, err)
	}
	return err
}

// client opens the images the flags speak of.
func (f *registryFlags) client() (*registry.Client, error) {
	dir := f.cacheDir
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "skep", "bytecode")
	}
	c, err := registry.NewClient(registry.Options{CacheDir: dir, InsecureRegistries: slices.Clone(f.insecure), UserAgent: "skep/" + version.This().Version})
	if err != nil {
		return nil, fmt.Errorf("open registries: %w", err)
	}
	return c, nil
}
