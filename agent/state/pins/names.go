package pins

import (
	"encoding/hex"
	"fmt"
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
