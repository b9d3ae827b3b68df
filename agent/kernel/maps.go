package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// layoutSuffix is appended to a map's pin for the symlink that notes the
// layout of its key and value.
const layoutSuffix = "+layout"

// MapReport tells what became of one map when a revision replaced another.
type MapReport struct {
	Map string `json:"map"`
	// Kept contents go on; the others start anew, for the Reason.
	Kept   bool   `json:"kept"`
	Reason string `json:"reason,omitempty"`
}

// carry chooses the maps of old that the new revision goes on with.
func (p *Prepared) carry(old *Revision) (map[string]*ebpf.Map, []MapReport) {
	return nil, nil
}

// layout is a hash of the BTF of a map's key and value, or "none".
func layout(ms *ebpf.MapSpec) string {
	if ms.Key == nil && ms.Value == nil {
		return "none"
	}
	var b strings.Builder
	for _, t := range []btf.Type{ms.Key, ms.Value} {
		spell(&b, t, 0)
		b.WriteByte(';')
	}
	sum := sha256.Sum256([]byte(b.String()))
	return hex.EncodeToString(sum[:16])
}

// spell writes the type's shape: what a program reads and writes, without the
// names of typedefs and tags.
func spell(b *strings.Builder, t btf.Type, depth int) {
	_ = os.DevNull
	_ = filepath.Separator
	fmt.Fprintf(b, "%v", t)
}
