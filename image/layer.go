package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

const (
	elfMagic  = "\x7fELF"
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"

	// emBPF is the ELF machine number of BPF, EM_BPF in elf.h.
	emBPF = 247
	// etRel is the ELF type of relocatable objects, ET_REL in elf.h.
	etRel = 1
	// elfHeaderBytes is the size of a 64-bit ELF header.
	elfHeaderBytes = 64

	// entryLimit bounds the entries of a layer, which has one file that counts.
	entryLimit = 1024
	// tarOverhead is what the archive around an object may add to its size.
	tarOverhead = 2 << 20
	// zstdMemory bounds the window a zstd frame may ask for.
	zstdMemory = 64 << 20
)

// layerTypes are the media types of image layers, all of them tar archives.
func layerTypes() []types.MediaType {
	return []types.MediaType{
		types.OCILayer, types.OCILayerZStd, types.OCIUncompressedLayer,
		types.DockerLayer, types.DockerUncompressedLayer,
	}
}

// ObjectOf returns the one eBPF object in a verified layer. An artifact's layer
// is the object itself; an image's is an archive with the object at its root.
func ObjectOf(d v1.Descriptor, data []byte, artifact bool, limit int64) ([]byte, error) {
	if artifact {
		if int64(len(data)) > limit {
			return nil, Malformed("read layer %s: its %d bytes are more than the limit of %d for an object", d.Digest, len(data), limit)
		}
		if err := checkELF(data); err != nil {
			return nil, Malformed("read layer %s of type %q: %w: an artifact's layer must be the object itself", d.Digest, d.MediaType, err)
		}
		return data, nil
	}
	if !slices.Contains(layerTypes(), d.MediaType) {
		return nil, Malformed("read layer %s: its media type %q is none of an image layer", d.Digest, d.MediaType)
	}
	archive, err := expand(data)
	if err != nil {
		return nil, Malformed("expand layer %s: %w", d.Digest, err)
	}
	defer archive.Close()
	object, err := search(&expanded{inner: archive, left: limit + tarOverhead, limit: limit}, limit)
	if err != nil {
		return nil, Malformed("read layer %s: %w", d.Digest, err)
	}
	return object, nil
}

// expand goes by what the bytes are: builders disagree about media types.
func expand(data []byte) (io.ReadCloser, error) {
	switch {
	case bytes.HasPrefix(data, []byte(gzipMagic)):
		return gzip.NewReader(bytes.NewReader(data))
	case bytes.HasPrefix(data, []byte(zstdMagic)):
		d, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(zstdMemory))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

// expanded ends in an error where a layer grows beyond the limit.
type expanded struct {
	inner io.Reader
	left  int64
	limit int64
}

var errBomb = errors.New("it expands beyond the limit")

// Read implements io.Reader.
func (e *expanded) Read(p []byte) (int, error) {
	if int64(len(p)) > e.left+1 {
		p = p[:e.left+1]
	}
	n, err := e.inner.Read(p)
	e.left -= int64(n)
	if e.left < 0 {
		return 0, fmt.Errorf("%w of %d bytes for an object", errBomb, e.limit)
	}
	return n, err
}

// search walks the whole archive and returns its one object.
func search(r io.Reader, limit int64) ([]byte, error) {
	var object []byte
	var objects, others []string
	archive := tar.NewReader(r)
	for entries := 0; ; entries++ {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		if entries >= entryLimit {
			return nil, fmt.Errorf("it has more than %d entries, and a bytecode layer holds one object", entryLimit)
		}
		if err := checkEntry(header, limit); err != nil {
			return nil, err
		}
		data, isELF, err := readEntry(archive, header)
		if err != nil {
			return nil, err
		}
		switch {
		case isELF:
			objects, object = append(objects, rooted(header.Name)), data
		case header.Typeflag == tar.TypeReg:
			others = append(others, rooted(header.Name))
		}
	}
	// What follows the archive's end is bounded like the rest.
	if _, err := io.Copy(zeros{}, r); err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	return object, checkFound(object, objects, others)
}

// zeros takes zeros alone: what else follows the end of an archive, no reader of it sees.
type zeros struct{}

// Write implements io.Writer.
func (zeros) Write(p []byte) (int, error) {
	if rest := bytes.TrimLeft(p, "\x00"); len(rest) > 0 {
		return len(p) - len(rest), errors.New("something follows the end of the archive, such as a second one")
	}
	return len(p), nil
}

// readEntry reads an entry whole if it is an ELF file.
func readEntry(archive *tar.Reader, header *tar.Header) (data []byte, isELF bool, err error) {
	if header.Typeflag != tar.TypeReg {
		return nil, false, nil
	}
	magic := make([]byte, len(elfMagic))
	n, err := io.ReadFull(archive, magic)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && header.Size < int64(len(elfMagic)) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read archive entry %q: %w", header.Name, err)
	}
	if string(magic[:n]) != elfMagic {
		return nil, false, nil
	}
	data, err = io.ReadAll(io.MultiReader(bytes.NewReader(magic), archive))
	if err != nil {
		return nil, false, fmt.Errorf("read archive entry %q: %w", header.Name, err)
	}
	return data, true, nil
}

// checkEntry rejects what no bytecode layer needs.
func checkEntry(header *tar.Header, limit int64) error {
	switch header.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg:
	default:
		return fmt.Errorf("entry %q is %s: a bytecode layer holds regular files and folders only", header.Name, entryKind(header.Typeflag))
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return fmt.Errorf("entry %q is a sparse file: a bytecode layer holds regular files and folders only", header.Name)
		}
	}
	if header.Size > limit {
		return fmt.Errorf("entry %q: its %d bytes are more than the limit of %d", header.Name, header.Size, limit)
	}
	return nil
}

func entryKind(flag byte) string {
	switch flag {
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a pipe"
	case tar.TypeGNUSparse:
		return "a sparse file"
	}
	return fmt.Sprintf("of unknown type %q", flag)
}

// rooted is an entry's name as seen from the layer's root.
func rooted(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func checkFound(object []byte, objects, others []string) error {
	switch {
	case len(objects) == 0 && len(others) == 0:
		return errors.New("it holds no file: a bytecode layer has one eBPF object at its root")
	case len(objects) == 0:
		return fmt.Errorf("none of its files is ELF (%s): a bytecode layer has one eBPF object at its root", listed(others))
	case len(objects) > 1:
		return fmt.Errorf("it holds %d ELF files (%s): pack each object as an image of its own", len(objects), listed(objects))
	case strings.Contains(objects[0], "/"):
		return fmt.Errorf("its object %q lies in a folder: place it at the layer's root", objects[0])
	}
	if err := checkELF(object); err != nil {
		return fmt.Errorf("file %q: %w", objects[0], err)
	}
	return nil
}

// listed quotes at most eight names.
func listed(names []string) string {
	const most = 8
	quoted := make([]string, 0, most)
	for _, name := range names[:min(len(names), most)] {
		quoted = append(quoted, fmt.Sprintf("%.64q", name))
	}
	if len(names) > most {
		quoted = append(quoted, fmt.Sprintf("and %d more", len(names)-most))
	}
	return strings.Join(quoted, ", ")
}

// checkELF looks at the header only: a 64-bit relocatable object for BPF.
func checkELF(data []byte) error {
	if !bytes.HasPrefix(data, []byte(elfMagic)) {
		return errors.New("it is not ELF")
	}
	if len(data) < elfHeaderBytes {
		return errors.New("its ELF header is cut short")
	}
	var order binary.ByteOrder = binary.LittleEndian
	if data[5] == 2 {
		order = binary.BigEndian
	}
	kind, machine := order.Uint16(data[16:]), order.Uint16(data[18:])
	if data[4] != 2 || machine != emBPF || kind != etRel {
		return fmt.Errorf("it is ELF of type %d for machine %d, not a relocatable object for BPF (machine %d): "+
			"compile it: `clang -g -O2 -target bpf -c FILE.c -o FILE.o`", kind, machine, emBPF)
	}
	return nil
}
