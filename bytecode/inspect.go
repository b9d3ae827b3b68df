package bytecode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"sort"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode/objectfile"
)

// InspectorRevision names the rules that turn an object into Facts. It is
// raised when the same object would yield other facts: facts are remembered by
// it.
const InspectorRevision = "11"

// DefaultCPUs is how many possible CPUs per-CPU maps are counted for where
// none is given: a large machine of today, so that estimates err on the high side.
const DefaultCPUs = 64

// Options bound what Inspect reads and say what it cannot know. The zero value
// is good for untrusted objects.
type Options struct {
	// CPUs is the number of possible CPUs to count per-CPU maps for; 0 means
	// DefaultCPUs. It is part of what facts are remembered by.
	CPUs int
	// MaxSize is the size in bytes up to which an object is read; 0 means
	// 16 MiB. It also bounds what .bss and its like may ask for.
	MaxSize int64
	// MaxSections is the number of ELF sections; 0 means 4096.
	MaxSections int
	// MaxSymbols is the number of ELF symbols; 0 means 65536.
	MaxSymbols int
	// MaxInstructions is the number of instructions after linking, where every
	// program has a copy of each function that it reaches; 0 means 4 Mi, about
	// 128 MiB of memory.
	MaxInstructions int
	// MaxBTF is the size in bytes of the type information; 0 means 2 MiB. Types
	// may nest as deep as there are types, and are read recursively.
	MaxBTF int
	// MaxFacts is the size in bytes of Facts as JSON, which are remembered and
	// shown to policies; 0 means 1 MiB.
	MaxFacts int
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	fill := func(n *int, otherwise int) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	fill(&o.CPUs, DefaultCPUs)
	fill(&o.MaxSections, 4096)
	fill(&o.MaxSymbols, 65536)
	fill(&o.MaxInstructions, 4<<20)
	fill(&o.MaxBTF, 2<<20)
	fill(&o.MaxFacts, 1<<20)
	if o.MaxSize <= 0 {
		o.MaxSize = 16 << 20
	}
	return o
}

// Key is what the facts of an object are remembered by: its digest, the
// revision of the rules, and the CPUs they count for.
func (o Options) Key(digest string) string {
	return fmt.Sprintf("%s/inspector-%s/cpus-%d", digest, InspectorRevision, o.withDefaults().CPUs)
}

// Rejection is an object that Inspect will not make facts of, because they would
// not be the truth. Any other error of Inspect means that the bytes are not a
// BPF object, or one that no loader takes.
type Rejection struct {
	// Rule is a stable name, such as bytecode/too-large.
	Rule string
	// Object is the program, section or file it is about.
	Object string
	// Reason says what is wrong, Fix what would fix it.
	Reason string
	Fix    string
}

// Error names object, rule, reason and fix in one line.
func (r *Rejection) Error() string {
	return fmt.Sprintf("%s denied by %s: %s; %s", r.Object, r.Rule, r.Reason, r.Fix)
}

// Inspect reads an eBPF object file and says what it does, without a kernel.
// The same bytes and CPUs give the same Facts, on every machine. Both byte
// orders are read.
//
// An error that holds a *Rejection says why an object will not be evaluated.
func Inspect(r io.ReaderAt, opts Options) (Facts, error) {
	opts = opts.withDefaults()
	object, err := readObject(r, opts)
	if err != nil {
		return Facts{}, err
	}
	read, err := parse(object, opts)
	if err != nil {
		return Facts{}, err
	}
	f, err := gather(read, opts)
	if err != nil {
		return Facts{}, fmt.Errorf("inspect object: %w", err)
	}
	if err := checkNames(f); err != nil {
		return Facts{}, err
	}
	if err := checkFacts(f, opts.MaxFacts); err != nil {
		return Facts{}, err
	}
	return f, nil
}

// gather states what the parsed object says.
func gather(object *objectfile.Object, opts Options) (Facts, error) {
	spec := object.Spec
	f := Facts{
		License:   object.License,
		Version:   FactsVersion,
		Inspector: InspectorRevision,
		ByteOrder: byteOrder(spec.ByteOrder),
		BTF:       spec.Types != nil,
		Maps:      []Map{},
		Programs:  []Program{},
		CPUs:      opts.CPUs,
	}
	said := telling{most: opts.MaxFacts}
	var err error
	if f.Variables, err = variables(spec, &said); err != nil {
		return Facts{}, err
	}
	var all needs
	for _, name := range sortedKeys(spec.Programs) {
		p, err := inspectProgram(object, name)
		if err != nil {
			return Facts{}, err
		}
		f.CORE = f.CORE || p.core
		f.Programs = append(f.Programs, p.facts)
		all = append(all, p.needs...)
		if err := said.count("programs", len(f.Programs), len(spec.Programs), p.facts.texts()); err != nil {
			return Facts{}, err
		}
	}
	maps := mapSpecs(spec)
	for _, name := range sortedKeys(maps) {
		m := inspectMap(name, maps[name], opts)
		f.Maps = append(f.Maps, m)
		f.MemoryBytes = sum(f.MemoryBytes, m.MemoryBytes)
		all = append(all, mapNeeds(name, maps[name])...)
	}
	f.MinKernel, f.MinKernelReasons = all.lowest()
	return f, nil
}

// Compile is the command that makes an object of a source.
const Compile = "clang -g -O2 -target bpf -c FILE.c -o FILE.o"

const rebuildObject = "build the object from source: `" + Compile + "`"

// readObject reads the file whole: what follows reads it several times, and
// ELF offsets may point anywhere in it.
func readObject(r io.ReaderAt, opts Options) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(r, 0, opts.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	if int64(len(b)) > opts.MaxSize {
		return nil, &Rejection{
			Rule:   "bytecode/too-large",
			Object: "object",
			Reason: fmt.Sprintf("it has more than %d bytes", opts.MaxSize),
			Fix:    "strip its DWARF sections, which keeps BTF: `llvm-strip -g FILE.o`",
		}
	}
	return b, nil
}

// parse turns the file into cilium/ebpf's description of it, which is what the
// agent's loader works from too. Each program in it is linked: its
// instructions are followed by those of every function that it reaches by call
// or by pointer, each once.
func parse(object []byte, opts Options) (*objectfile.Object, error) {
	if err := checkELF(object, opts); err != nil {
		return nil, err
	}
	bound, err := objectfile.Bind(object)
	if err != nil {
		return nil, &parseError{err}
	}
	if err := checkTypes(bound.File); err != nil {
		return nil, err
	}
	if bound.Changed {
		// A table of symbols that lies over code would change code that was checked.
		if err := checkELF(bound.File, opts); err != nil {
			return nil, err
		}
	}
	read, err := bound.Parse()
	if err != nil {
		if legacy := legacyError(object, err); legacy != nil {
			return nil, legacy
		}
		if tables := structOpsError(object); tables != nil {
			return nil, tables
		}
		if known := unloadable(object, err); known != nil {
			return nil, known
		}
		return nil, &parseError{err}
	}
	if err := errors.Join(legacyMaps(read.Spec), innerMaps(read.Spec)); err != nil {
		return nil, err
	}
	return read, checkLayouts(read.Spec)
}

// parseError is an error of the parser, which repeats names from the file as
// they are.
type parseError struct{ err error }

// Error is the parser's message without what a terminal would act on, cut
// after a kilobyte.
func (e *parseError) Error() string {
	const most = 1 << 10
	text := strings.Map(func(r rune) rune {
		if unprintable(r) {
			return '�'
		}
		return r
	}, strings.ToValidUTF8(e.err.Error(), "�"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return "parse object: " + text
}

// Unwrap is the parser's own error.
func (e *parseError) Unwrap() error { return e.err }

// byteOrder names a byte order.
func byteOrder(o binary.ByteOrder) string {
	if o == binary.BigEndian {
		return "big"
	}
	return "little"
}

// mapSpecs are the maps that loading the object makes.
func mapSpecs(spec *ebpf.CollectionSpec) map[string]*ebpf.MapSpec {
	specs := make(map[string]*ebpf.MapSpec, len(spec.Maps)+1)
	maps.Copy(specs, spec.Maps)
	if ds := objectfile.Kconfig(spec); ds != nil {
		specs[objectfile.KconfigSection] = &ebpf.MapSpec{
			Name: objectfile.KconfigSection, Type: ebpf.Array,
			KeySize: 4, ValueSize: ds.Size, MaxEntries: 1, Flags: flagReadOnlyProg,
		}
	}
	return specs
}

// inspectMap states what a map is and costs.
func inspectMap(name string, m *ebpf.MapSpec, opts Options) Map {
	facts := Map{
		Name:       name,
		Type:       m.Type.String(),
		KeySize:    m.KeySize,
		ValueSize:  m.ValueSize,
		MaxEntries: m.MaxEntries,
		Flags:      m.Flags,
		Extra:      m.MapExtra,
		Pinned:     m.Pinning != ebpf.PinNone,

		UnboundedBy: unboundedBy(m.Type),
	}
	if in := m.InnerMap; in != nil {
		facts.Inner = &InnerMap{Type: in.Type.String(), KeySize: in.KeySize, ValueSize: in.ValueSize, MaxEntries: in.MaxEntries, Flags: in.Flags}
	}
	for _, kv := range m.Contents {
		index, numbered := kv.Key.(uint32)
		if content, named := kv.Value.(string); numbered && named {
			facts.Contents = append(facts.Contents, MapContent{index, content})
		}
	}
	if m.Key != nil && !strings.HasPrefix(name, ".") {
		facts.KeyType = cType(m.Key, 0)
	}
	if m.Value != nil && !strings.HasPrefix(name, ".") {
		facts.ValueType = cType(m.Value, 0)
	}
	return facts.Resized(m.MaxEntries, opts.CPUs)
}

// variables lists the globals that can be set: those with global or weak
// binding. Statics have no symbol that survives linking.
func variables(spec *ebpf.CollectionSpec, said *telling) ([]Variable, error) {
	vars := make([]Variable, 0, len(spec.Variables))
	for _, name := range sortedKeys(spec.Variables) {
		v := spec.Variables[name]
		variable := Variable{
			Name:     name,
			Size:     uint64(v.Size()),
			Section:  v.SectionName,
			Constant: v.Constant(),
		}
		if v.Type != nil {
			variable.Type = cType(v.Type.Type, 0)
		}
		vars = append(vars, variable)
		if err := said.count("variables", len(vars), len(spec.Variables), variable.texts()); err != nil {
			return nil, err
		}
	}
	return vars, nil
}

// sortedKeys are the keys of a map in order.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// cutNUL is a string up to its first NUL, which is where the kernel stops.
func cutNUL(s string) string {
	s, _, _ = strings.Cut(s, "\x00")
	return s
}
