package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/image"
)

func TestAnArchiveHasItsFilesInTheirOrder(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	files := []image.File{{Name: "b/c.txt", Content: []byte("one")}, {Name: "a.txt"}}
	plain, packed, err := image.Archive(files, at)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(z); err != nil || !bytes.Equal(unpacked, plain) {
		t.Errorf("unpacked, it is something else: %v", err)
	}
	var got []image.File
	for r := tar.NewReader(bytes.NewReader(plain)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o644 || !h.ModTime.Equal(at) || h.Uname+h.Gname != "" || h.Uid+h.Gid != 0 {
			t.Errorf("%s is %+v", h.Name, h)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, image.File{Name: h.Name, Content: content})
	}
	files[1].Content = []byte{}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Error(diff)
	}
}
