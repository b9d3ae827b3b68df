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
	timeout  time.Duration
}

// Register adds the flags to a command.
func (f *RegistryFlags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.cacheDir, "cache", "", "folder of the bytecode cache (default: the user's cache folder)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultTimeout, "how long registries may take for one image in all, however slowly they answer")
	f.RegisterInsecure(cmd)
}

// RegisterInsecure adds the flags to a command whose client has no cache.
func (f *RegistryFlags) RegisterInsecure(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.insecure, "insecure-registry", nil, "registry host:port to reach over plain http; loopback needs no mention")
}

// defaultTimeout is the default of --timeout.
const defaultTimeout = 2 * time.Minute

// Timeout is how long registries may take for one image in all.
func (f *RegistryFlags) Timeout() time.Duration { return f.timeout }

// Within runs what takes no longer than --timeout, and names it in the error where it was
// ended by that.
func (f *RegistryFlags) Within(ctx context.Context, what string, run func(context.Context) error) error {
	if f.timeout <= 0 {
		return fmt.Errorf("%s: --timeout %s leaves no time: give one such as %s", what, f.timeout, defaultTimeout)
	}
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	err := run(limited)
	if err != nil && ctx.Err() == nil && errors.Is(limited.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s took longer than %s: try again, or give the registry more time by --timeout: %w", what, f.timeout, err)
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
