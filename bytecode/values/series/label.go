package series

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values"
)

// MaxLabel bounds the text of a label, in bytes. What is longer is cut.
const MaxLabel = 128

// Separator ends each label that Append writes. No label has it: they are UTF-8.
const Separator = 0xff

// KernelAddress is the label that an address of the kernel has: it would say where the kernel is in memory. Other numbers
// of 8 bytes are written as they are.
const KernelAddress = "kernel-address"

// The addresses of the kernel, on all processors of 64 bits that run it, but for the last page: there are negative errors.
const firstKernel, lastKernel = 0xffff_8000_0000_0000, 0xffff_ffff_ffff_f000

// Node is what names on a node are asked of. An empty answer is an unknown name.
type Node interface {
	// Errno returns the name of an error of the kernel, such as ENOENT.
	Errno(n uint64) string
	// Interface returns the name of a network interface.
	Interface(index uint32) string
	// Device returns the name of a block device.
	Device(major, minor uint32) string
}

// label is how one label is made.
type label struct {
	field values.Field
	// write appends the text of the field's bytes, or of a CPU.
	write func(l *label, dst, b []byte, cpu int, node Node) []byte
	// number is set where the field is one, and names are those of its values.
	number number
	names  map[uint64]string
}

// newLabel returns how a label is made. The Field of an error is below the label.
func newLabel(l v1alpha1.MapLabel, of Map) (label, *values.FieldError) {
	if l.Decoder == v1alpha1.DecodeCPU {
		if !IsPerCPU(of.Type) {
			return label{}, failure("decoder", "remove the label", "a map of type %s has no value for each CPU", of.Type)
		}
		return label{write: writeCPU}, nil
	}
	f, err := values.Find(of.Key, l.Field)
	if err != nil {
		return label{}, failure("field", "name a member of the key", "%v", err)
	}
	made := label{field: f}
	var isNumber bool
	made.number, isNumber = numberOf(f, of.Order)
	made.number.at = 0
	if l.Decoder == "" {
		return made.byType(isNumber)
	}
	d, known := decoders[l.Decoder]
	switch {
	case !known:
		return label{}, failure("decoder", "use one of the decoders of docs/api.md", "decoder %q is not known", l.Decoder)
	case !d.fits(f, isNumber):
		return label{}, failure("decoder", "remove it, or name another field", "decoder %s reads %s, and %s is not", l.Decoder, d.reads, values.Describe(f.Type))
	}
	if made.write = d.write; l.Decoder == v1alpha1.DecodeHex && isNumber {
		made.write = writeHexNumber
	}
	return made, nil
}

// byType is how a label is made without a decoder.
func (l *label) byType(isNumber bool) (label, *values.FieldError) {
	switch t := btf.UnderlyingType(l.field.Type).(type) {
	case *btf.Enum:
		l.write, l.names = writeName, map[uint64]string{}
		for _, v := range t.Values {
			l.names[v.Value] = string(appendText(nil, []byte(v.Name)))
		}
	case *btf.Int:
		l.write = writeNumber
		if t.Encoding == btf.Bool {
			l.write, l.names = writeName, map[uint64]string{0: "false", 1: "true"}
		}
		if !isNumber {
			l.write = writeHex
		}
	case *btf.Array:
		switch {
		case isText(t):
			l.write = writeString
		case isBytes(t):
			l.write = writeHex
		}
	case *btf.Struct:
		if isNamed(l.field.Type, "in_addr", "in6_addr") {
			l.write = writeIP
		}
	}
	if l.write == nil {
		return *l, failure("field", "name a member that is a number, an enum or text, or set decoder", "%s is no text by itself", values.Describe(l.field.Type))
	}
	return *l, nil
}

// isText reports whether an array is of char.
func isText(a *btf.Array) bool {
	i, is := btf.UnderlyingType(a.Type).(*btf.Int)
	return is && i.Size == 1 && (i.Encoding == btf.Char || i.Name == "char")
}

// isBytes reports whether an array is of bytes.
func isBytes(a *btf.Array) bool {
	i, is := btf.UnderlyingType(a.Type).(*btf.Int)
	return is && i.Size == 1
}

// decoder makes a label of fields that it fits.
type decoder struct {
	// reads are the fields, in words.
	reads string
	fits  func(f values.Field, isNumber bool) bool
	write func(l *label, dst, b []byte, cpu int, node Node) []byte
}

// decoders are those of a key.
var decoders = map[v1alpha1.MapDecoder]decoder{
	v1alpha1.DecodeInetIP: {"4 or 16 bytes", func(f values.Field, _ bool) bool { return isPlain(f.Type) && (f.Size == 4 || f.Size == 16) }, writeIP},
	v1alpha1.DecodeMAC:    {"6 bytes", func(f values.Field, _ bool) bool { return isPlain(f.Type) && f.Size == 6 }, writeMAC},
	v1alpha1.DecodeString: {"an array of bytes", isByteArray, writeString},
	v1alpha1.DecodeDname:  {"an array of bytes", isByteArray, writeDname},
	v1alpha1.DecodeHex:    {"a number or an array of bytes", func(f values.Field, n bool) bool { return n || isByteArray(f, n) }, writeHex},
	v1alpha1.DecodeErrno:  {"a number", func(_ values.Field, n bool) bool { return n }, writeErrno},
	v1alpha1.DecodeIfname: {"a number of 4 bytes", func(f values.Field, n bool) bool { return n && f.Size == 4 }, writeInterface},
	v1alpha1.DecodeDevice: {"a number of 4 bytes", func(f values.Field, n bool) bool { return n && f.Size == 4 }, writeDevice},
	v1alpha1.DecodeUint:   {"a number", func(_ values.Field, n bool) bool { return n }, writeNumber},
}

// isPlain reports whether a type has no pointer.
func isPlain(t btf.Type) bool {
	switch u := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return true
	case *btf.Array:
		_, is := btf.UnderlyingType(u.Type).(*btf.Int)
		return is
	}
	return isNamed(t, "in_addr", "in6_addr")
}

func isByteArray(f values.Field, _ bool) bool {
	a, is := btf.UnderlyingType(f.Type).(*btf.Array)
	return is && isBytes(a)
}

// Append appends the labels of a key, each with a Separator behind it. cpu is that of the value, where EachCPU is set.
func (r *Reader) Append(dst, key []byte, cpu int, node Node) []byte {
	for i := range r.labels {
		l := &r.labels[i]
		dst = append(l.write(l, dst, key[l.field.Offset:l.field.Offset+l.field.Size], cpu, node), Separator)
	}
	return dst
}

// Split returns the labels that Append wrote.
func Split(labels string) []string {
	if labels == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(labels, "\xff"), "\xff")
}

func writeCPU(_ *label, dst, _ []byte, cpu int, _ Node) []byte {
	return strconv.AppendInt(dst, int64(cpu), 10)
}

// isKernel reports whether a number may be an address of the kernel.
func (l *label) isKernel(n uint64) bool {
	return l.number.size == 8 && n >= firstKernel && n < lastKernel
}

// writeNumber writes digits, but for an address of the kernel.
func writeNumber(l *label, dst, b []byte, _ int, _ Node) []byte {
	n := l.number.bits(b)
	switch {
	case l.isKernel(n):
		return append(dst, KernelAddress...)
	case l.number.signed:
		return strconv.AppendInt(dst, int64(n), 10)
	}
	return strconv.AppendUint(dst, n, 10)
}

// writeName writes the name of a number; one without a name is written as it is.
func writeName(l *label, dst, b []byte, cpu int, node Node) []byte {
	name, known := l.names[l.number.bits(b)]
	if !known {
		return writeNumber(l, dst, b, cpu, node)
	}
	return append(dst, name...)
}

func writeErrno(l *label, dst, b []byte, cpu int, node Node) []byte {
	n := l.number.bits(b)
	if int64(n) < 0 {
		n = -n
	}
	if name := node.Errno(n); name != "" {
		return append(dst, name...)
	}
	return writeNumber(l, dst, b, cpu, node)
}

func writeInterface(l *label, dst, b []byte, cpu int, node Node) []byte {
	if name := node.Interface(uint32(l.number.bits(b))); name != "" {
		return appendText(dst, []byte(name))
	}
	return writeNumber(l, dst, b, cpu, node)
}

// writeDevice writes the name of a block device by its dev_t of the kernel (include/linux/kdev_t.h), or its numbers.
func writeDevice(l *label, dst, b []byte, _ int, node Node) []byte {
	const minorBits = 20
	n := uint32(l.number.bits(b))
	major, minor := n>>minorBits, n&(1<<minorBits-1)
	if name := node.Device(major, minor); name != "" {
		return appendText(dst, []byte(name))
	}
	return fmt.Appendf(dst, "%d:%d", major, minor)
}

func writeIP(_ *label, dst, b []byte, _ int, _ Node) []byte {
	a, _ := netip.AddrFromSlice(b)
	return a.Unmap().AppendTo(dst)
}

func writeMAC(_ *label, dst, b []byte, _ int, _ Node) []byte {
	for i, one := range b {
		if i > 0 {
			dst = append(dst, ':')
		}
		dst = hex.AppendEncode(dst, []byte{one})
	}
	return dst
}

// writeHex writes the bytes in their order, and writeHexNumber the digits of a number.
func writeHex(_ *label, dst, b []byte, _ int, _ Node) []byte {
	return hex.AppendEncode(dst, b[:min(len(b), MaxLabel/2)])
}

func writeHexNumber(l *label, dst, b []byte, _ int, _ Node) []byte {
	n := l.number.bits(b)
	if l.isKernel(n) {
		return append(dst, KernelAddress...)
	}
	return strconv.AppendUint(append(dst, "0x"...), n<<(64-8*l.number.size)>>(64-8*l.number.size), 16)
}

func writeString(_ *label, dst, b []byte, _ int, _ Node) []byte {
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return appendText(dst, b)
}

// writeDname writes a name as in a packet: labels with their lengths before them.
func writeDname(_ *label, dst, b []byte, _ int, _ Node) []byte {
	var name []byte
	for len(b) > 0 && b[0] > 0 && int(b[0]) < len(b) {
		if len(name) > 0 {
			name = append(name, '.')
		}
		end := 1 + int(b[0])
		name, b = append(name, b[1:end]...), b[end:]
	}
	if len(name) == 0 {
		return append(dst, '.')
	}
	return appendText(dst, name)
}

// appendText appends text of anybody's: cut, valid UTF-8, and without what a terminal would obey.
func appendText(dst, text []byte) []byte {
	start := len(dst)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '\ufffd'
		}
		if len(dst)-start+utf8.RuneLen(r) > MaxLabel {
			break
		}
		dst, text = utf8.AppendRune(dst, r), text[size:]
	}
	return dst
}
