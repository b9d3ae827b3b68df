package dist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/release/build"
)

// readCommit returns the step that writes the commit's files below a folder: what is built
// depends on nothing else in the working tree. The command that builds is of the working
// tree, so that must be the same.
func (r *release) readCommit(work string) func(context.Context) error {
	return func(ctx context.Context) error {
		checkout, err := source.OpenCheckout(r.Checkout)
		if err != nil {
			return err
		}
		head, err := checkout.Head()
		if err != nil {
			return err
		}
		r.stamp = build.Stamp{Version: r.Version, Revision: head.Hash, Time: head.Time.UTC()}
		if !r.Time.IsZero() {
			r.stamp.Time = r.Time.UTC()
		}
		if r.source, err = checkout.Export(ctx, head, work); err != nil {
			return err
		}
		if err := sameFiles(r.source, r.Checkout); err != nil {
			return err
		}
		return nothingElse(checkout, r.source)
	}
}

// nothingElse reports the first file that a folder of the commit has in the working tree alone:
// what the command packs itself, such as the CUE module, would have it too.
func nothingElse(checkout *source.Checkout, commit string) error {
	uncommitted, err := checkout.Uncommitted()
	if err != nil {
		return err
	}
	for _, name := range uncommitted {
		folder, _, below := strings.Cut(name, "/")
		if _, err := os.Stat(filepath.Join(commit, folder)); below && err == nil {
			return fmt.Errorf("read working tree: %s is not in the commit, and a release is made of a commit: commit it, move it, or have git ignore it", name)
		}
	}
	return nil
}

// sameFiles reports the first file of a commit that the working tree has otherwise.
func sameFiles(commit, tree string) error {
	committed, found := os.DirFS(commit), os.DirFS(tree)
	return fs.WalkDir(committed, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		want, err := fs.ReadFile(committed, name)
		if err != nil {
			return err
		}
		got, err := fs.ReadFile(found, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("read working tree: %s differs from its commit, and a release is made of a commit: commit it, or undo the change", name)
		}
		return nil
	})
}
