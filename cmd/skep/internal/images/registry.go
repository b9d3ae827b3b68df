package images

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

// RegistryFlags are how a command reaches registries.
type RegistryFlags struct {
	cacheDir string
	insecure []string
}

// Register adds the flags to a command.
func (f *RegistryFlags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cacheDir, "cache", "", "folder of the bytecode cache (default: the user's cache folder)")
	cmd.Flags().StringSliceVar(&f.insecure, "insecure-registry", nil, "registry host:port to reach over plain http; loopback needs no mention")
}

// Timeout bounds all that skep sign and skep verify ask of registries, however
// slowly one answers.
const Timeout = 2 * time.Minute

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

// Client opens the images the flags speak of.
func (f *RegistryFlags) Client() (*registry.Client, error) {
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
