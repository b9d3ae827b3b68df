package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/schemas"
)

// stdinPath is the path that names standard input.
const stdinPath = "-"

// sourceOf says where the definitions of a path are read from: its file or folder, or a
// stream on standard input.
func sourceOf(cmd *cobra.Command, path string) (schemas.Options, error) {
	if path == stdinPath {
		return schemas.Options{Stream: &interruptible{ctx: cmd.Context(), from: cmd.InOrStdin()}}, nil
	}
	root, sub, err := schemas.Locate(path)
	return schemas.Options{Root: root, Path: sub}, err
}

// interruptible reads from a stream until ctx ends, where a read may never return, as one
// from a terminal.
type interruptible struct {
	ctx  context.Context
	from io.Reader
}

// Read implements io.Reader.
func (r *interruptible) Read(p []byte) (int, error) {
	type read struct {
		data []byte
		err  error
	}
	done := make(chan read, 1)
	go func() {
		data := make([]byte, len(p))
		n, err := r.from.Read(data)
		done <- read{data[:n], err}
	}()
	select {
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	case got := <-done:
		return copy(p, got.data), got.err
	}
}
