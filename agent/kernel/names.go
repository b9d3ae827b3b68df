package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// maxName keeps a name with its prefix below NAME_MAX, which is 255.
const maxName = 200

// escape makes any string a name that a BPF file system takes: it refuses dots
// and slashes (kernel/bpf/inode.c, bpf_lookup). Letters, digits, _ and - stay;
// any other byte becomes %xx. Too long a name keeps its beginning and gets a
// hash of the whole.
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
	if b.Len() <= maxName {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:maxName-18] + "%-" + hex.EncodeToString(sum[:8])
}

// unescape undoes escape, but for names that were too long: those come back
// shortened.
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
