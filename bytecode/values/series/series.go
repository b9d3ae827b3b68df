// Package series turns entries of maps into series of Prometheus, by the types of key and value and by what a definition asks
// for. It must not read a map: the gate denies by the same code what the agent could not read.
package series

import (
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values"
)

// Prefix begins the name of every series, and of nothing else that an agent or a host exports: no definition makes a series
// that looks like one of those.
const Prefix = "skep_map_"

// The labels that every series has, of the application whose map it is.
const (
	// KindLabel is its kind.
	KindLabel = "kind"
	// NamespaceLabel is its namespace; empty for one of the cluster.
	NamespaceLabel = "namespace"
	// ApplicationLabel is its name.
	ApplicationLabel = "application"
)

// taken are the labels that a definition does not set: those of every series, and those to which Prometheus gives a sense.
var taken = []string{KindLabel, NamespaceLabel, ApplicationLabel, "job", "instance", "le", "quantile"}

// nameSyntax is that of names which every version of Prometheus takes without quotes.
var nameSyntax = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// The bounds of the name of a series without its prefix, of the name of a label, and of help, in bytes.
const maxName, maxLabelName, maxHelp = 128, 64, 256

// Readable are the types of maps whose entries can be listed.
func Readable() []ebpf.MapType {
	return []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray, ebpf.Hash, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie}
}

// IsPerCPU reports whether entries of a map have a value for each CPU.
func IsPerCPU(t ebpf.MapType) bool {
	return t == ebpf.PerCPUArray || t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash
}

// Names are the series of one entry, without the prefix, by the field of the value that each has.
func Names(m *v1alpha1.MapMetrics) map[string]string {
	if len(m.Values) == 0 {
		return map[string]string{m.Name: m.Value}
	}
	names := map[string]string{}
	for suffix, field := range m.Values {
		names[m.Name+"_"+suffix] = string(field)
	}
	return names
}

// placeOf returns the field of the metrics that names a series, and the name there: an entry of values, or else the given field.
func placeOf(m *v1alpha1.MapMetrics, name, field string) (place, called string) {
	if len(m.Values) == 0 {
		return field, name
	}
	called = strings.TrimPrefix(name, m.Name+"_")
	if !nameSyntax.MatchString("_" + called) {
		return "values", called
	}
	return "values." + called, called
}

// failure is something that is wrong at a place of the metrics.
func failure(place, fix, format string, args ...any) *values.FieldError {
	return &values.FieldError{Field: place, Reason: fmt.Sprintf(format, args...), Fix: fix}
}

// Shape returns what is wrong with metrics whatever the map is. The paths of fields are below the metrics.
func Shape(m *v1alpha1.MapMetrics) []*values.FieldError {
	var all []*values.FieldError
	add := func(place, fix, format string, args ...any) { all = append(all, failure(place, fix, format, args...)) }
	if !slices.Contains([]v1alpha1.MapMetricsType{v1alpha1.MapCounter, v1alpha1.MapGauge, v1alpha1.MapHistogram}, m.Type) {
		add("type", fmt.Sprintf("use %s, %s or %s", v1alpha1.MapCounter, v1alpha1.MapGauge, v1alpha1.MapHistogram), "type %q is not known", m.Type)
	}
	all = append(all, shapeBuckets(m)...)
	if n := len(m.Help); n > maxHelp {
		add("help", fmt.Sprintf("write at most %d bytes", maxHelp), "it has %d", n)
	}
	if n := len(m.Values); n > v1alpha1.MaxMapValues || n > 0 && m.Value != "" {
		add("values", fmt.Sprintf("name one number in value, or at most %d in values", v1alpha1.MaxMapValues), "values names %d numbers, and value %q", n, m.Value)
	}
	for _, name := range slices.Sorted(maps.Keys(Names(m))) {
		place, called := placeOf(m, name, "name")
		switch isTotal := strings.HasSuffix(name, "_total"); {
		case !nameSyntax.MatchString(name) || len(name) > maxName:
			add(place, fmt.Sprintf("use at most %d letters, digits and underscores", maxName), "%q is no name of a series", name)
		case m.Type == v1alpha1.MapCounter && !isTotal:
			add(place, "call it "+called+"_total, or use "+string(v1alpha1.MapGauge), "the name of a counter ends in _total, and %q does not", name)
		case m.Type != v1alpha1.MapCounter && hasSuffix(name, "_total", "_bucket", "_sum", "_count"):
			add(place, "give it another name, or use "+string(v1alpha1.MapCounter), "%q ends like a counter or a part of a histogram", name)
		}
	}
	if n := len(m.Labels); n > v1alpha1.MaxMapLabels {
		add("labels", fmt.Sprintf("list at most %d", v1alpha1.MaxMapLabels), "%d labels are listed", n)
	}
	for i, l := range m.Labels {
		at := fmt.Sprintf("labels[%d].name", i)
		switch {
		case !nameSyntax.MatchString(l.Name) || len(l.Name) > maxLabelName || strings.HasPrefix(l.Name, "__"):
			add(at, fmt.Sprintf("use at most %d letters, digits and underscores, and do not begin with __", maxLabelName), "%q is no name of a label", l.Name)
		case slices.Contains(taken, l.Name):
			add(at, "give the label another name", "label %q is taken: it is set by Skep or by Prometheus", l.Name)
		case slices.ContainsFunc(m.Labels[:i], func(o v1alpha1.MapLabel) bool { return o.Name == l.Name }):
			add(at, "name each once", "label %q is listed twice", l.Name)
		}
		if l.Decoder == v1alpha1.DecodeCPU && l.Field != "" {
			add(fmt.Sprintf("labels[%d].field", i), "remove field", "the CPU is in no field of the key")
		}
	}
	return all
}

// hasSuffix reports whether a name ends in one of the suffixes.
func hasSuffix(name string, suffixes ...string) bool {
	return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
}

// Map is what the types of a map are.
type Map struct {
	Type       ebpf.MapType
	Key, Value btf.Type
	// KeySize and ValueSize are what the kernel takes, in bytes.
	KeySize, ValueSize uint32
	Order              binary.ByteOrder
}

// Reader reads the entries of one map. It can be used by several goroutines.
type Reader struct {
	// Names are those of the series of an entry, without the prefix, and Labels those of its labels.
	Names, Labels []string
	// EachCPU reports that the value of each CPU makes a series.
	EachCPU bool

	labels  []label
	numbers []number
	// buckets are those of a histogram; else nil.
	buckets *buckets
}

// Width is how many numbers there are for each set of labels.
func (r *Reader) Width() int {
	if r.buckets != nil {
		return r.buckets.num + 1
	}
	return len(r.Names)
}

// IsHistogram reports whether the numbers of a set of labels are one; see Histogram.
func (r *Reader) IsHistogram() bool { return r.buckets != nil }

// Add adds the numbers of an entry to those of its labels.
func (r *Reader) Add(to []float64, key, value []byte) {
	if r.buckets != nil {
		r.buckets.add(to, key, r.Number(0, value))
		return
	}
	for i := range to {
		to[i] += r.Number(i, value)
	}
}

// Count is how many series each set of labels has.
func Count(m *v1alpha1.MapMetrics) int {
	if b := m.Buckets; b != nil {
		// And the bucket without a bound, sum and count.
		return int(b.Max-b.Min) + 4
	}
	return max(1, len(m.Values))
}

// New returns a Reader for metrics that Shape finds nothing wrong with, or what of them does not fit the map.
func New(m *v1alpha1.MapMetrics, of Map) (*Reader, []*values.FieldError) {
	if err := fits(of); err != nil {
		return nil, []*values.FieldError{err}
	}
	r := &Reader{}
	var all []*values.FieldError
	for i, l := range m.Labels {
		one, err := newLabel(l, of)
		if err != nil {
			err.Field = fmt.Sprintf("labels[%d].%s", i, err.Field)
			all = append(all, err)
		}
		r.Labels, r.labels = append(r.Labels, l.Name), append(r.labels, one)
		r.EachCPU = r.EachCPU || l.Decoder == v1alpha1.DecodeCPU
	}
	if m.Buckets != nil {
		var err *values.FieldError
		if r.buckets, err = newBuckets(m.Buckets, of); err != nil {
			all = append(all, err)
		}
	}
	names := Names(m)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		n, err := newNumber(names[name], of)
		if err != nil {
			place, _ := placeOf(m, name, "value")
			all = append(all, failure(place, "name a member that is a whole number of at most 8 bytes", "%v", err))
		}
		r.Names, r.numbers = append(r.Names, name), append(r.numbers, n)
	}
	if len(all) > 0 {
		return nil, all
	}
	return r, nil
}

// fits returns why a map cannot be read at all; nil where it can.
func fits(of Map) *values.FieldError {
	const types = "Array, PerCPUArray, Hash, PerCPUHash, LRUHash, LRUCPUHash or LPMTrie"
	if !slices.Contains(Readable(), of.Type) {
		return failure("", "remove metrics, or count in a map of type "+types, "a map of type %s has no metrics", of.Type)
	}
	for what, t := range map[string]struct {
		btf.Type
		size uint32
	}{"key": {of.Key, of.KeySize}, "value": {of.Value, of.ValueSize}} {
		if t.Type == nil {
			return failure("", "declare it with __type, and compile with -g", "its %s has no type", what)
		}
		if size, err := btf.Sizeof(t.Type); err != nil || uint32(size) != t.size {
			return failure("", "compile the object anew", "its BTF does not say the %d bytes that its %s has", t.size, what)
		}
	}
	return nil
}

// number is a number in a value.
type number struct {
	at, size uint32
	signed   bool
	order    binary.ByteOrder
}

// newNumber returns the number at a path.
func newNumber(path string, of Map) (number, error) {
	f, err := values.Find(of.Value, path)
	if err != nil {
		return number{}, err
	}
	n, ok := numberOf(f, of.Order)
	if !ok {
		return number{}, fmt.Errorf("%s is not a whole number of at most 8 bytes", values.Describe(f.Type))
	}
	return n, nil
}

// numberOf returns how a field is read as a number. Enums count, pointers do not.
func numberOf(f values.Field, order binary.ByteOrder) (number, bool) {
	n := number{at: f.Offset, size: f.Size, order: order}
	switch t := btf.UnderlyingType(f.Type).(type) {
	case *btf.Int:
		n.signed = t.Encoding == btf.Signed
	case *btf.Enum:
		n.signed = t.Signed
	default:
		return n, false
	}
	if isBigEndian(f.Type) {
		n.order = binary.BigEndian
	}
	return n, f.Size == 1 || f.Size == 2 || f.Size == 4 || f.Size == 8
}

// isBigEndian reports whether a type is one of __be16, __be32 and __be64, of linux/types.h.
func isBigEndian(t btf.Type) bool { return isNamed(t, "__be16", "__be32", "__be64") }

// isNamed reports whether a type, or one that it is another name of, has one of the names.
func isNamed(t btf.Type, names ...string) bool {
	for range 16 {
		if slices.Contains(names, t.TypeName()) {
			return true
		}
		switch u := t.(type) {
		case *btf.Typedef:
			t = u.Type
		case *btf.Const:
			t = u.Type
		case *btf.Volatile:
			t = u.Type
		default:
			return false
		}
	}
	return false
}

// bits returns the number in a value or key, with its sign extended.
func (n *number) bits(b []byte) uint64 {
	b = b[n.at : n.at+n.size]
	var v uint64
	switch n.size {
	case 1:
		v = uint64(b[0])
	case 2:
		v = uint64(n.order.Uint16(b))
	case 4:
		v = uint64(n.order.Uint32(b))
	default:
		return n.order.Uint64(b)
	}
	if shift := 64 - 8*n.size; n.signed {
		return uint64(int64(v<<shift) >> shift)
	}
	return v
}

// Number returns the number that the series of Names[i] has in a value.
func (r *Reader) Number(i int, value []byte) float64 {
	n := &r.numbers[i]
	if n.signed {
		return float64(int64(n.bits(value)))
	}
	return float64(n.bits(value))
}
