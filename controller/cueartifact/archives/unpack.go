package archives

import (
	archivetar "archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/fluxcd/pkg/tar"

	"github.com/skep-dev/skep/text"
)

// The bounds of what Unpack unpacks: bytes, files, and how deep they are nested.
const (
	MaxUnpacked = 256 << 20
	MaxFiles    = 20_000
	MaxDepth    = 64
)

// Unpack unpacks the archive of a source within bounds, whole: Flux would prune what a part of it lacks.
func Unpack(ctx context.Context, from io.Reader, dir string) error {
	bounded := &boundedArchive{ctx: ctx, from: from, files: map[[sha256.Size]byte]bool{}, folders: map[[sha256.Size]byte]bool{}}
	unzipped, err := gzip.NewReader(bounded)
	if err != nil {
		return fmt.Errorf("it is not compressed by gzip: %w", cmp.Or(bounded.err, err))
	}
	content := &wholeArchive{from: unzipped}
	err = tar.Untar(content, dir, tar.WithMaxUntarSize(MaxUnpacked), tar.WithSkipGzip(), tar.WithSkipSymlinks(), tar.WithFilter(bounded.filter))
	if bounded.err != nil {
		return bounded.err
	}
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return cmp.Or(err, content.end())
}

// wholeArchive is the content of an archive, of which readers of archives do not say whether it
// ends where its author ended it.
type wholeArchive struct {
	from io.Reader
	// cut reports whether the content ended before its reader did.
	cut bool
}

// Read implements io.Reader.
func (w *wholeArchive) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	if n > 0 && errors.Is(err, io.EOF) {
		return n, nil
	}
	w.cut = w.cut || errors.Is(err, io.EOF)
	return n, err
}

// maxPadding is how many bytes of zeros may follow the end of an archive: a record of tar has 10 KiB,
// or what --blocking-factor says.
const maxPadding = 1 << 20

// end returns an error where the archive has no end, or something follows it, such as a second
// archive.
func (w *wholeArchive) end() error {
	if w.cut {
		return errors.New("it has no end-of-archive mark, so it was cut off: have the source make it anew")
	}
	rest, err := io.ReadAll(io.LimitReader(w.from, maxPadding+1))
	switch {
	case err != nil:
		return fmt.Errorf("read what follows the end of the archive: %w", err)
	case len(rest) > maxPadding || len(bytes.Trim(rest, "\x00")) > 0:
		return errors.New("something follows the end of the archive, such as a second one: pack all files in one archive")
	}
	return nil
}

// boundedArchive is an archive that cannot be read on when a bound is passed.
type boundedArchive struct {
	ctx  context.Context
	from io.Reader
	// entries counts what the archive has. files are hashes of the names of its files, and
	// folders of the folders that they are in.
	entries        int
	files, folders map[[sha256.Size]byte]bool
	err            error
}

// Read implements io.Reader.
func (b *boundedArchive) Read(p []byte) (int, error) {
	if err := cmp.Or(b.err, b.ctx.Err()); err != nil {
		return 0, err
	}
	return b.from.Read(p)
}

// filter counts what is unpacked, and passes over all that follows a bound. Nothing that may have
// been a definition is passed over: an application behind it would be left out.
func (b *boundedArchive) filter(name string, info os.FileInfo) bool {
	header, ok := info.Sys().(*archivetar.Header)
	if ok && header.Typeflag == archivetar.TypeXGlobalHeader {
		return true // It is no file, but what git archive says of all files.
	}
	b.entries++
	switch {
	case b.entries > MaxFiles:
		b.err = fmt.Errorf("it has more than %d files: leave some out by spec.ignore of the source", MaxFiles)
	case strings.Count(name, "/") > MaxDepth:
		b.err = fmt.Errorf("it has folders nested deeper than %d: leave them out by spec.ignore of the source", MaxDepth)
	case !b.countFolders(name):
		b.err = fmt.Errorf("it has more than %d folders: leave some out by spec.ignore of the source", MaxFiles)
	case !ok:
		b.err = fmt.Errorf("%s is of an unknown type", text.Cut(name, maxName))
	default:
		b.err = b.check(header)
	}
	return b.err != nil
}

// check rejects an entry that is neither a file nor a folder, and a file that comes twice.
func (b *boundedArchive) check(header *archivetar.Header) error {
	const left = "or leave it out by spec.ignore of the source"
	name := text.Cut(header.Name, maxName)
	switch header.Typeflag {
	case archivetar.TypeDir:
		return nil
	case archivetar.TypeReg, archivetar.TypeGNUSparse:
	case archivetar.TypeSymlink:
		// Behind one may be definitions, or a folder of them.
		return fmt.Errorf("%s is a symbolic link, and links are not followed: put what it leads to there, %s", name, left)
	case archivetar.TypeLink:
		return fmt.Errorf("%s is a hard link to %s, and links are not followed: pack it as a file of its own (tar --hard-dereference), %s",
			name, text.Cut(header.Linkname, maxName), left)
	default:
		return fmt.Errorf("%s is neither a file nor a folder, but of type %q: put a file there, %s", name, header.Typeflag, left)
	}
	sum := sha256.Sum256([]byte(path.Clean(header.Name)))
	if b.files[sum] {
		return fmt.Errorf("%s is in the archive twice: pack each file once", name)
	}
	b.files[sum] = true
	return nil
}

// maxName bounds how much of a file's name is told, in bytes.
const maxName = 256

// countFolders counts the folders that a file is in; false where there are too many.
func (b *boundedArchive) countFolders(name string) bool {
	for dir := path.Dir(path.Clean(name)); dir != "." && dir != "/"; dir = path.Dir(dir) {
		sum := sha256.Sum256([]byte(dir))
		if b.folders[sum] {
			break
		}
		b.folders[sum] = true
	}
	return len(b.folders) <= MaxFiles
}
