package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"time"
)

// File is one of an archive's.
type File struct {
	// Name is the path in the archive, with slashes.
	Name string
	// Content is all of it.
	Content []byte
}

// Archive packs files in their order as a tar archive, of a time, and the same compressed, as a
// layer has it. Everybody may read them. Equal input gives equal bytes, as long as Go's compression
// stays as it is.
func Archive(files []File, modified time.Time) (plain, packed []byte, err error) {
	var out, zipped bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.Name, Size: int64(len(f.Content)), Mode: 0o644, ModTime: modified, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, nil, err
		}
		if _, err := w.Write(f.Content); err != nil {
			return nil, nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, nil, err
	}
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return nil, nil, err
	}
	if _, err := z.Write(out.Bytes()); err != nil {
		return nil, nil, err
	}
	if err := z.Close(); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), zipped.Bytes(), nil
}
