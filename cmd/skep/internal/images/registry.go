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
	f.RegisterInsecure(cmd)
}

// RegisterInsecure adds the flags to a command whose client has no cache.
func (f *RegistryFlags) RegisterInsecure(cmd *cobra.Command) {
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
	return f.client(registry.Options{CacheDir: dir})
}

// ClientFor opens images that others name: those of the registries that are allowed, each small
// enough to be inspected. None of them is left on disk. A caller that pulls one releases it.
func (f *RegistryFlags) ClientFor(allowed []string) (*registry.Client, error) {
	return f.client(registry.Options{AllowedRegistries: slices.Concat([]string{}, allowed)}.ForInspection())
}

// client opens images with the options that are no flags.
func (f *RegistryFlags) client(o registry.Options) (*registry.Client, error) {
	o.InsecureRegistries, o.UserAgent = slices.Clone(f.insecure), "skep/"+version.This().Version
	c, err := registry.NewClient(o)
	if err != nil {
		return nil, fmt.Errorf("open registries: %w", err)
	}
	return c, nil
}
