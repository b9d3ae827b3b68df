package pins

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// maxName keeps a name with its prefix and suffix below NAME_MAX, which is 255.
const maxName = 240

// escape makes any string a name that a BPF file system takes: it rejects dots
// and slashes (kernel/bpf/inode.c, bpf_lookup). Letters, digits, _ and - stay;
// any other byte becomes %xx.
func escape(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// CheckName rejects a name that is too long for a pin.
func CheckName(what, name string) error {
	if len(escape(name)) > maxName {
		return fmt.Errorf("%s %.40s… is too long for a pin: it takes %d bytes, and %d fit; shorten it", what, name, len(escape(name)), maxName)
	}
	return nil
}

// unescape undoes escape.
func unescape(name string) string {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] == '%' && i+2 < len(name) {
			if raw, err := hex.DecodeString(name[i+1 : i+3]); err == nil {
				b.Write(raw)
				i += 2
				continue
			}
		}
		b.WriteByte(name[i])
	}
	return b.String()
}

// MapName is the name of the map that is pinned at a path in a store, and false for another pin.
func MapName(path string) (string, bool) {
	name, ok := strings.CutPrefix(filepath.Base(path), mapPrefix)
	return unescape(name), ok
}

// Pinned lists the paths of the maps and of the programs that are pinned for an application, of all its revisions; none where
// it has no pins. It needs no Store, and locks none.
func Pinned(root, uid string) (maps, programs []string, err error) {
	dir := filepath.Join(root, escape(uid))
	revisions, err := list(dir, inApplication)
	if err != nil {
		return nil, nil, err
	}
	for _, revision := range revisions {
		if !isHash(revision) {
			continue
		}
		names, err := list(filepath.Join(dir, revision), inRevision)
		if err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			path := filepath.Join(dir, revision, name)
			switch info, err := os.Lstat(path); {
			case err != nil || !info.Mode().IsRegular():
				// It was removed meanwhile, or is a note.
			case strings.HasPrefix(name, mapPrefix):
				maps = append(maps, path)
			default:
				programs = append(programs, path)
			}
		}
	}
	return maps, programs, nil
}
