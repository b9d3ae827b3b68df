package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// packBounds bound what is taken of a remote repository. go-git unpacks an object in
// memory whatever its size, and with each object that is a delta those it is made from.
type packBounds struct {
	// bytes are those of the pack as it comes, objects how many it may hold.
	bytes   int64
	objects uint32
	// object is the size of one object in bytes, unpacked that of all together, deltas
	// and what they come to included.
	object, unpacked int64
}

var defaultPackBounds = packBounds{bytes: 128 << 20, objects: 250_000, object: maxTreeBytes, unpacked: 512 << 20}

// tooLargeError says which bound a repository exceeds. Fetching the same once more
// changes nothing.
type tooLargeError struct{ what string }

// Error implements error.
func (e *tooLargeError) Error() string {
	return "it holds more than " + e.what + "; keep definitions in a repository of their own"
}

func tooLarge(format string, args ...any) error {
	return &tooLargeError{what: fmt.Sprintf(format, args...)}
}

// check reads a pack as a stream and returns a tooLargeError where it exceeds a bound.
// Each object is inflated once its header is known to be within them, and not kept.
func (b packBounds) check(pack io.Reader) error {
	scanner := packfile.NewScanner(pack)
	_, count, err := scanner.Header()
	if err != nil {
		return fmt.Errorf("read pack: %w", err)
	}
	if count > b.objects {
		return tooLarge("%d objects", b.objects)
	}
	left := b.unpacked
	for range count {
		size, err := b.next(scanner)
		if err != nil {
			return err
		}
		if left -= size; left < 0 {
			return tooLarge("%d bytes once it is unpacked", b.unpacked)
		}
	}
	return nil
}

// next goes on by one object and returns its size in bytes.
func (b packBounds) next(scanner *packfile.Scanner) (int64, error) {
	header, err := scanner.NextObjectHeader()
	if err != nil {
		return 0, fmt.Errorf("read pack: %w", err)
	}
	if header.Length > b.object {
		return 0, tooLarge("%d bytes in one object", b.object)
	}
	var start deltaStart
	if _, _, err := scanner.NextObject(&start); err != nil {
		return 0, fmt.Errorf("read pack: %w", err)
	}
	if !header.Type.IsDelta() {
		return header.Length, nil
	}
	result, err := start.result()
	if err != nil {
		return 0, err
	}
	if result > uint64(b.object) {
		return 0, tooLarge("%d bytes in one object", b.object)
	}
	return header.Length + int64(result), nil
}

// deltaStart keeps the two sizes that a delta begins with.
type deltaStart struct{ kept []byte }

// Write keeps what belongs to the sizes and drops the rest.
func (d *deltaStart) Write(p []byte) (int, error) {
	d.kept = append(d.kept, p[:min(len(p), 2*binary.MaxVarintLen64-len(d.kept))]...)
	return len(p), nil
}

// result is the size in bytes of what the delta makes of its base; gitformat-pack(5).
func (d *deltaStart) result() (uint64, error) {
	_, base := binary.Uvarint(d.kept)
	size, n := binary.Uvarint(d.kept[max(base, 0):])
	if base <= 0 || n <= 0 {
		return 0, errors.New("read pack: a delta without sizes")
	}
	return size, nil
}

// boundedStorage is the storage of a bare repository. It takes a pack only where the
// whole of it is within bounds, and reads no more once ctx ended: go-git's unpacking
// ends by nothing else.
type boundedStorage struct {
	*filesystem.Storage
	ctx    context.Context
	dir    string
	bounds packBounds
}

func newBoundedStorage(ctx context.Context, dir string, bounds packBounds) *boundedStorage {
	files := endingFiles{Filesystem: osfs.New(dir), ctx: ctx}
	return &boundedStorage{Storage: filesystem.NewStorage(files, cache.NewObjectLRUDefault()), ctx: ctx, dir: dir, bounds: bounds}
}

// PackfileWriter implements storer.PackfileWriter.
func (s *boundedStorage) PackfileWriter() (io.WriteCloser, error) {
	file, err := os.CreateTemp(s.dir, "pack-*")
	if err != nil {
		return nil, fmt.Errorf("keep pack: %w", err)
	}
	return &packWriter{storage: s, file: file, left: s.bounds.bytes}, nil
}

// packWriter keeps a pack in a file until it is whole, and hands it on when it is
// closed.
type packWriter struct {
	storage *boundedStorage
	file    *os.File
	// left is how many bytes may come still.
	left int64
	// failed tells that the pack is not whole.
	failed bool
}

// Write takes the next part of the pack.
func (w *packWriter) Write(p []byte) (int, error) {
	if w.left -= int64(len(p)); w.left < 0 {
		w.failed = true
		return 0, tooLarge("%d bytes in its pack", w.storage.bounds.bytes)
	}
	n, err := w.file.Write(p)
	w.failed = w.failed || err != nil
	return n, err
}

// Close checks the pack and has it indexed.
func (w *packWriter) Close() (err error) {
	defer func() { err = errors.Join(err, w.file.Close(), os.Remove(w.file.Name())) }()
	if w.failed {
		return nil
	}
	read := func() (io.Reader, error) {
		_, err := w.file.Seek(0, io.SeekStart)
		return endingReader{w.storage.ctx, w.file}, err
	}
	pack, err := read()
	if err == nil {
		err = w.storage.bounds.check(pack)
	}
	if err != nil {
		return err
	}
	if pack, err = read(); err != nil {
		return err
	}
	indexed, err := w.storage.Storage.PackfileWriter()
	if err != nil {
		return fmt.Errorf("index pack: %w", err)
	}
	_, err = io.Copy(indexed, pack)
	return errors.Join(err, indexed.Close())
}

// endingReader reads until ctx ends.
type endingReader struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (r endingReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// endingFiles are files that can be read until ctx ends.
type endingFiles struct {
	billy.Filesystem
	ctx context.Context
}

// Open implements billy.Basic.
func (f endingFiles) Open(name string) (billy.File, error) {
	file, err := f.Filesystem.Open(name)
	if err != nil {
		return nil, err
	}
	return endingFile{file, endingReader{f.ctx, file}}, nil
}

// endingFile is one of them.
type endingFile struct {
	billy.File
	reader endingReader
}

// Read implements io.Reader.
func (f endingFile) Read(p []byte) (int, error) { return f.reader.Read(p) }
