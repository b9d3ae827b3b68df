package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// Bounds of what is taken out of a git commit: of the files below the path, and
// once more of the CUE files around it, which may be imported.
const (
	maxTreeFiles = 10_000
	maxTreeBytes = 32 << 20
)

// export writes a commit's regular files below sub, and the CUE files around
// it, below dir, whole or not at all. Links and submodules are left out.
func export(ctx context.Context, commit *object.Commit, sub, dir string) error {
	root, err := commit.Tree()
	if err != nil {
		return fmt.Errorf("read commit %s: %w", commit.Hash, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".export-*")
	if err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := exportTree(ctx, root, path.Clean(filepath.ToSlash(sub)), tmp); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	return nil
}

// exportTree writes what export does. What is neither below sub nor CUE is not
// even looked up: a repository may be large around the definitions.
func exportTree(ctx context.Context, root *object.Tree, sub, dir string) error {
	type budget struct {
		files int
		bytes int64
	}
	inside, outside := &budget{maxTreeFiles, maxTreeBytes}, &budget{maxTreeFiles, maxTreeBytes}
	entries := object.NewTreeWalker(root, true, nil)
	defer entries.Close()
	for ctx.Err() == nil {
		name, entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		left, of, fix := inside, "below "+sub, "keep definitions in a folder of their own and name it with --path"
		if sub != "." && name != sub && !strings.HasPrefix(name, sub+"/") {
			left, of, fix = outside, "of CUE around "+sub, "keep definitions in a repository of their own"
		}
		if entry.Mode != filemode.Regular && entry.Mode != filemode.Executable || left == outside && path.Ext(name) != ".cue" {
			continue
		}
		f, err := root.TreeEntryFile(&entry)
		if err != nil {
			return err
		}
		f.Name = name
		if left.files, left.bytes = left.files-1, left.bytes-f.Size; left.files < 0 || left.bytes < 0 {
			return fmt.Errorf("more than %d files or %d bytes %s; %s", maxTreeFiles, maxTreeBytes, of, fix)
		}
		if err := exportFile(dir, f); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func exportFile(root string, f *object.File) error {
	if !fs.ValidPath(f.Name) || path.Base(f.Name) == ".git" {
		return fmt.Errorf("file name %q leads out of the tree", f.Name)
	}
	to := filepath.Join(root, filepath.FromSlash(f.Name))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	from, err := f.Reader()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(from, f.Size))
	return errors.Join(err, out.Close())
}
