package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// maxDepth bounds how deep types nest; C programs nest a handful.
const maxDepth = 32

// noLayout stands for a map without BTF: then sizes are all there is to
// compare.
const noLayout = "none"

// layout is a hash of how the key and value of a map are laid out. Two maps of
// equal layout hold the same meaning at the same place, as far as BTF tells.
func layout(ms *ebpf.MapSpec) string {
	if ms.Key == nil && ms.Value == nil {
		return noLayout
	}
	text := spelled(ms.Key) + ";" + spelled(ms.Value)
	if ms.InnerMap != nil {
		text += fmt.Sprintf(";%s/%d/%d/%d/%s", ms.InnerMap.Type, ms.InnerMap.KeySize, ms.InnerMap.ValueSize, ms.InnerMap.MaxEntries, layout(ms.InnerMap))
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

func spelled(t btf.Type) string {
	var b strings.Builder
	spell(&b, t, 0)
	return b.String()
}

// spell writes what a program that reads and writes the type relies on: sizes,
// signs, places and names of fields. Typedefs, qualifiers and tags of structs
// may change, but for the kernel's own (struct bpf_spin_lock), which it finds by
// name.
func spell(b *strings.Builder, t btf.Type, depth int) {
	if t == nil || depth > maxDepth {
		b.WriteString("?")
		return
	}
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Void:
		b.WriteString("void")
	case *btf.Int:
		fmt.Fprintf(b, "int%d%s", u.Size*8, u.Encoding)
	case *btf.Float:
		fmt.Fprintf(b, "float%d", u.Size*8)
	case *btf.Enum:
		fmt.Fprintf(b, "enum%d", u.Size*8)
	case *btf.Pointer:
		fmt.Fprintf(b, "*%s", u.Target.TypeName())
	case *btf.Array:
		fmt.Fprintf(b, "[%d]", u.Nelems)
		spell(b, u.Type, depth+1)
	case *btf.Struct:
		spellMembers(b, "struct", u.Name, u.Size, u.Members, depth)
	case *btf.Union:
		spellMembers(b, "union", u.Name, u.Size, u.Members, depth)
	case *btf.Datasec:
		fmt.Fprintf(b, "section %d", u.Size)
		for _, v := range u.Vars {
			fmt.Fprintf(b, " %d+%d %s ", v.Offset, v.Size, v.Type.TypeName())
			spell(b, v.Type, depth+1)
		}
	case *btf.Var:
		spell(b, u.Type, depth+1)
	default:
		fmt.Fprintf(b, "%T %s", u, u.TypeName())
	}
}

func spellMembers(b *strings.Builder, kind, name string, size uint32, members []btf.Member, depth int) {
	if strings.HasPrefix(name, "bpf_") {
		kind += " " + name
	}
	fmt.Fprintf(b, "%s %d{", kind, size)
	for _, m := range members {
		fmt.Fprintf(b, "%d:%d %s ", m.Offset, m.BitfieldSize, m.Name)
		spell(b, m.Type, depth+1)
		b.WriteByte(';')
	}
	b.WriteByte('}')
}
