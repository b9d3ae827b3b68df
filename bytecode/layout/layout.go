// Package layout hashes how the key and value of a map are laid out, so that
// two objects can be compared without the types of the first.
//
// It reads types and nothing else. Every type is hashed once, whatever the number
// of places it is used in: types form a graph, and written out as a tree a few
// kilobytes of nested unions take gigabytes.
package layout

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

const (
	// MaxDepth bounds how deep types nest: MAX_RESOLVE_DEPTH of the kernel's
	// kernel/bpf/btf.c. C programs nest a handful.
	MaxDepth = 32
	// MaxMembers bounds how many types a key or value has when it is written out:
	// its members, their members, and so on.
	MaxMembers = 1 << 20
	// maxText is MaxMembers of what is compared by text.
	maxText = 1 << 16
)

// None stands for a map without BTF: then sizes are all there is to compare.
const None = "none"

// version begins every hash but None. A hash without it is that of the whole
// text, as earlier agents noted it beside the pins of their maps.
const version = "2:"

// Error is a type that is not hashed, because it is beyond a bound.
type Error struct {
	// Type is the name of the type, which may be empty, and its kind.
	Type string
	// Reason says which bound.
	Reason string
}

// Error names the type and the bound.
func (e *Error) Error() string { return fmt.Sprintf("type %s %s", e.Type, e.Reason) }

// sum is the hash of one type.
type sum [sha256.Size]byte

// measured is what is known of one type.
type measured struct {
	hash    sum
	members int
	// depth is how deep types nest below it.
	depth int
}

// Hasher hashes the layouts of maps, and remembers each type it met. It is not
// safe for concurrent use.
type Hasher struct{ known map[btf.Type]measured }

// New makes a Hasher.
func New() *Hasher { return &Hasher{known: map[btf.Type]measured{}} }

// Map hashes how the key and value of a map are laid out. Two maps of equal
// layout hold the same meaning at the same place, as far as BTF tells. An error
// is an *Error.
func (h *Hasher) Map(ms *ebpf.MapSpec) (string, error) {
	if ms.Key == nil && ms.Value == nil {
		return None, nil
	}
	text := sha256.New()
	if err := h.write(text, ms); err != nil {
		return "", err
	}
	return version + hex.EncodeToString(text.Sum(nil)[:16]), nil
}

func (h *Hasher) write(w io.Writer, ms *ebpf.MapSpec) error {
	for _, t := range []btf.Type{ms.Key, ms.Value} {
		m, err := h.measure(t, 0)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%x;", m.hash)
	}
	if ms.InnerMap == nil {
		return nil
	}
	inner, err := h.Map(ms.InnerMap)
	if err != nil {
		return err
	}
	io.WriteString(w, innerMap(ms.InnerMap)+inner) //nolint:errcheck // a hash takes everything
	return nil
}

func innerMap(ms *ebpf.MapSpec) string {
	return fmt.Sprintf("%s/%d/%d/%d/", ms.Type, ms.KeySize, ms.ValueSize, ms.MaxEntries)
}

// Same reports whether the hash noted of an earlier map is that of ms, also where
// an earlier version of Skep noted it. What is beyond a bound differs from everything.
func (h *Hasher) Same(noted string, ms *ebpf.MapSpec) bool {
	now, err := h.Map(ms)
	switch {
	case err != nil:
		return false
	case strings.HasPrefix(noted, version) || now == None:
		return noted == now
	}
	text, ok := h.text(ms)
	return ok && noted == text
}

// Equal reports whether two types are laid out alike. What is beyond a bound is
// like nothing.
func (h *Hasher) Equal(a, b btf.Type) bool {
	x, errX := h.measure(a, 0)
	y, errY := h.measure(b, 0)
	return errX == nil && errY == nil && x.hash == y.hash
}

// measure hashes and counts a type below that many others. A type that contains
// itself ends at MaxDepth.
func (h *Hasher) measure(t btf.Type, depth int) (measured, error) {
	t = plain(t)
	m, ok := h.known[t]
	if !ok {
		var err error
		if m, err = h.measureNew(t, depth); err != nil {
			return measured{}, err
		}
		h.known[t] = m
	}
	if depth+m.depth > MaxDepth {
		return measured{}, tooDeep(t)
	}
	return m, nil
}

func (h *Hasher) measureNew(t btf.Type, depth int) (measured, error) {
	m := measured{members: 1}
	if depth > MaxDepth {
		return m, tooDeep(t)
	}
	text := sha256.New()
	err := spell(text, t, func(inner btf.Type) error {
		below, err := h.measure(inner, depth+1)
		if err != nil {
			return err
		}
		m.depth = max(m.depth, below.depth+1)
		if m.members += below.members; m.members > MaxMembers {
			return &Error{Type: describe(t), Reason: fmt.Sprintf("has more than %d members, with those of the types in it", MaxMembers)}
		}
		fmt.Fprintf(text, "%x", below.hash)
		return nil
	})
	text.Sum(m.hash[:0])
	return m, err
}

func tooDeep(t btf.Type) error {
	return &Error{Type: describe(t), Reason: fmt.Sprintf("is nested more than %d deep, or contains itself", MaxDepth)}
}

// describe names a type for a person: its kind, and its name where it has one.
func describe(t btf.Type) string {
	kind := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", t), "*btf."))
	if t == nil || t.TypeName() == "" {
		return kind
	}
	const most = 64
	return fmt.Sprintf("%s %.*q", kind, most, t.TypeName())
}

// text is the layout as earlier agents noted it: a hash of types written out as a tree.
// It is false where that would be too much text.
func (h *Hasher) text(ms *ebpf.MapSpec) (string, bool) {
	all := sha256.New()
	w := bufio.NewWriter(all)
	for i, t := range []btf.Type{ms.Key, ms.Value} {
		if m, err := h.measure(t, 0); err != nil || m.members > maxText {
			return "", false
		}
		if i > 0 {
			w.WriteByte(';') //nolint:errcheck // a hash takes everything
		}
		if err := tree(w, t); err != nil {
			return "", false
		}
	}
	if ms.InnerMap != nil {
		inner := None
		if ms.InnerMap.Key != nil || ms.InnerMap.Value != nil {
			var ok bool
			if inner, ok = h.text(ms.InnerMap); !ok {
				return "", false
			}
		}
		fmt.Fprintf(w, ";%s%s", innerMap(ms.InnerMap), inner)
	}
	if err := w.Flush(); err != nil {
		return "", false
	}
	return hex.EncodeToString(all.Sum(nil)[:16]), true
}

func tree(w io.Writer, t btf.Type) error {
	return spell(w, plain(t), func(inner btf.Type) error { return tree(w, inner) })
}

// plain is the type without the qualifiers and names that do not matter, or nil.
func plain(t btf.Type) btf.Type {
	for range MaxDepth {
		if t == nil {
			return nil
		}
		t = btf.UnderlyingType(t)
		v, ok := t.(*btf.Var)
		if !ok {
			break
		}
		t = v.Type
	}
	return t
}

// spell writes what a program that reads and writes the type relies on: sizes,
// signs, places and names of fields. Typedefs, qualifiers and tags of structs
// may change, but for the kernel's own (struct bpf_spin_lock), which it finds by
// name. The types in it are left to nested.
func spell(w io.Writer, t btf.Type, nested func(btf.Type) error) error {
	switch u := t.(type) {
	case nil:
		fmt.Fprint(w, "?")
	case *btf.Void:
		fmt.Fprint(w, "void")
	case *btf.Int:
		fmt.Fprintf(w, "int%d%s", u.Size*8, u.Encoding)
	case *btf.Float:
		fmt.Fprintf(w, "float%d", u.Size*8)
	case *btf.Enum:
		fmt.Fprintf(w, "enum%d", u.Size*8)
	case *btf.Pointer:
		fmt.Fprintf(w, "*%s", u.Target.TypeName())
	case *btf.Array:
		fmt.Fprintf(w, "[%d]", u.Nelems)
		return nested(u.Type)
	case *btf.Struct:
		return spellMembers(w, "struct", u.Name, u.Size, u.Members, nested)
	case *btf.Union:
		return spellMembers(w, "union", u.Name, u.Size, u.Members, nested)
	case *btf.Datasec:
		fmt.Fprintf(w, "section %d", u.Size)
		for _, v := range u.Vars {
			fmt.Fprintf(w, " %d+%d %s ", v.Offset, v.Size, v.Type.TypeName())
			if err := nested(v.Type); err != nil {
				return err
			}
		}
	default:
		fmt.Fprintf(w, "%T %s", u, u.TypeName())
	}
	return nil
}

func spellMembers(w io.Writer, kind, name string, size uint32, members []btf.Member, nested func(btf.Type) error) error {
	if strings.HasPrefix(name, "bpf_") {
		kind += " " + name
	}
	fmt.Fprintf(w, "%s %d{", kind, size)
	for _, m := range members {
		fmt.Fprintf(w, "%d:%d %s ", m.Offset, m.BitfieldSize, m.Name)
		if err := nested(m.Type); err != nil {
			return err
		}
		fmt.Fprint(w, ";")
	}
	fmt.Fprint(w, "}")
	return nil
}
