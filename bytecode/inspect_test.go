package bytecode

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/golden"
)

// The objects in src that Inspect makes facts of.
var ownObjects = []string{
	"core_first", "kernel_symbols", "license", "maps", "newest", "no_programs", "odd_calls", "reach", "sections", "unlinked", "usdt", "variables",
}

// rewrite is how the golden files are written anew.
const rewrite = "go test ./bytecode -update"

func TestFactsJSON(t *testing.T) {
	for _, name := range ownObjects {
		t.Run(name, func(t *testing.T) {
			golden.File(t, "testdata/"+name+".json", indented(t, facts(t, objectFile(t, name))), rewrite)
		})
	}
}

// summary is an object's facts in a few lines, or what is wrong with it.
func summary(name string, object []byte) string {
	f, err := Inspect(bytes.NewReader(object), Options{CPUs: testCPUs})
	if err != nil {
		return fmt.Sprintf("%s\n  error: %v\n", name, err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: kernel %s, %d bytes, %d variables, license %q, CO-RE %v\n",
		name, f.MinKernel, f.MemoryBytes, len(f.Variables), f.License, f.CORE)
	for _, m := range f.Maps {
		fmt.Fprintf(&b, "  map %s %s", m.Name, m.Type)
		for _, c := range m.Contents {
			fmt.Fprintf(&b, " %d=%s", c.Index, c.Name)
		}
		fmt.Fprintln(&b)
	}
	for _, p := range f.Programs {
		fmt.Fprintf(&b, "  program %s %s hook=%q subject=%s instructions=%d\n", p.Name, p.Type, p.Hook, p.Subject, p.Instructions)
		for _, list := range []struct {
			what  string
			names []string
		}{
			{"reaches", p.Subprograms}, {"helpers", p.Helpers}, {"kfuncs", p.Kfuncs},
			{"ksyms", p.Ksyms}, {"unresolved", p.Unresolved}, {"GPL only", p.GPLOnly},
			{"later", p.AsyncCallbacks}, {"reads the kernel by", p.ReadsKernelMemoryBy}, {"lifts rights by", p.LiftsRightsBy},
		} {
			if len(list.names) > 0 {
				fmt.Fprintf(&b, "    %s: %s\n", list.what, strings.Join(list.names, " "))
			}
		}
		if len(p.ReadsRegistersBy) > 0 {
			fmt.Fprintf(&b, "    reads registers by: %v\n", p.ReadsRegistersBy)
		}
		if len(p.UnknownHelpers) > 0 || p.PoisonedCalls > 0 {
			fmt.Fprintf(&b, "    unknown: %v, poisoned: %d\n", p.UnknownHelpers, p.PoisonedCalls)
		}
	}
	return b.String()
}

func TestFactsOfTheProjectsOwnPrograms(t *testing.T) {
	var b strings.Builder
	for _, name := range programs.Names() {
		b.WriteString(summary(name, programs.Object(name)))
	}
	golden.File(t, "testdata/programs.golden", b.String(), rewrite)
}

func TestFactsOfObjectsNobodyHereWrote(t *testing.T) {
	var b strings.Builder
	for _, path := range ciliumObjects(t) {
		object, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(summary(filepath.Base(path), object))
	}
	golden.File(t, "testdata/cilium.golden", b.String(), rewrite)
}

func TestTheSameBytesGiveTheSameFacts(t *testing.T) {
	object := objectFile(t, "reach")
	first := indented(t, facts(t, object))
	for range 20 {
		if diff := cmp.Diff(first, indented(t, facts(t, object))); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestBothByteOrdersGiveTheSameFacts(t *testing.T) {
	compared := 0
	for _, path := range ciliumObjects(t) {
		twin := strings.TrimSuffix(path, "-el.elf") + "-eb.elf"
		little, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		big, err := os.ReadFile(twin)
		if err != nil {
			continue
		}
		a, errA := Inspect(bytes.NewReader(little), Options{})
		b, errB := Inspect(bytes.NewReader(big), Options{})
		if (errA == nil) != (errB == nil) {
			t.Errorf("%s: little %v, big %v", filepath.Base(path), errA, errB)
			continue
		}
		if errA == nil && (a.ByteOrder != "little" || b.ByteOrder != "big") {
			t.Errorf("%s: byte orders %q and %q", filepath.Base(path), a.ByteOrder, b.ByteOrder)
		}
		a.ByteOrder, b.ByteOrder = "", ""
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s (-little +big):\n%s", filepath.Base(path), diff)
		}
		compared++
	}
	if compared < 20 {
		t.Errorf("compared %d pairs, want at least 20", compared)
	}
}

func TestHookAndProgramTypeAgree(t *testing.T) {
	for _, name := range programs.Names() {
		for _, p := range facts(t, programs.Object(name)).Programs {
			h, ok := hook.Lookup(p.Hook)
			if !ok {
				if p.Section == "tracepoint" {
					t.Errorf("%s: section %s has no hook", name, p.Section)
				}
				continue
			}
			want := h.ProgramType
			if want == ebpf.SocketFilter {
				want = ebpf.SchedCLS
			}
			if want.String() != p.Type {
				t.Errorf("%s: section %s means hook %s of type %s, but loads as %s", name, p.Section, h.Name, want, p.Type)
			}
		}
	}
}

func TestSections(t *testing.T) {
	f := facts(t, objectFile(t, "sections"))
	if _, ok := f.Program("library"); ok {
		t.Error("a function outside any section is no program")
	}
	for name, want := range map[string]Program{
		"sleeps":        {Hook: "uprobe", Target: "/usr/bin/true:main", Type: "Kprobe", Sleepable: true},
		"large_packets": {Hook: "xdp", Type: "XDP", AttachType: "XDP", Frags: true},
		"aimed":         {Hook: "tracepoint", Target: "syscalls/sys_enter_execve", Type: "TracePoint"},
		"nowhere":       {Type: "SchedCLS"},
		"unheard_of":    {Type: "UnspecifiedProgram"},
		"first_number":  {Hook: "cgroup_skb/ingress", Type: "CGroupSKB", AttachType: "CGroupInetIngress"},
	} {
		p, ok := f.Program(name)
		got := Program{Hook: p.Hook, Target: p.Target, Type: p.Type, AttachType: p.AttachType, Sleepable: p.Sleepable, Frags: p.Frags}
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestReachability(t *testing.T) {
	all, none := program(t, "reach", "reaches_all"), program(t, "reach", "reaches_none")
	for name, where := range map[string]string{
		"bpf_get_smp_processor_id": "a static function",
		"bpf_get_prandom_u32":      "a static function of a static function",
		"bpf_get_numa_node_id":     "a global function",
		"bpf_loop":                 "a callback",
		"bpf_ringbuf_output":       "a callback of a callback",
		"bpf_trace_printk":         "a timer",
	} {
		if !slices.Contains(all.Helpers, name) {
			t.Errorf("%s in %s is not found: %v", name, where, all.Helpers)
		}
	}
	if !slices.Contains(all.Maps, "events") {
		t.Errorf("the map of a callback is not found: %v", all.Maps)
	}
	if len(none.Helpers)+len(none.Maps)+len(none.Subprograms) > 0 || none.Instructions != 2 {
		t.Errorf("a program beside it has facts of its own only; got %+v", none)
	}
}

func TestCallsWithoutAName(t *testing.T) {
	for name, want := range map[string]struct {
		unknown  []int64
		poisoned int
	}{
		"by_register":        {unknown: []int64{-1}},
		"by_odd_mode":        {unknown: []int64{-1}},
		"by_unknown_numbers": {unknown: []int64{-7, 0, 212}},
		"poisoned":           {unknown: []int64{0xbad2311}, poisoned: 1},
	} {
		p := program(t, "odd_calls", name)
		if diff := cmp.Diff(want.unknown, p.UnknownHelpers); diff != "" || p.PoisonedCalls != want.poisoned {
			t.Errorf("%s: unknown (-want +got):\n%s, poisoned %d, want %d", name, diff, p.PoisonedCalls, want.poisoned)
		}
	}
}

func TestKernelSymbols(t *testing.T) {
	p := program(t, "kernel_symbols", "names_symbols")
	kfuncs := []string{"bpf_task_from_pid", "bpf_task_release"}
	if diff := cmp.Diff(kfuncs, p.Kfuncs); diff != "" {
		t.Errorf("called kfuncs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kfuncs, p.GPLOnly); diff != "" {
		t.Errorf("every kfunc wants the GPL (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"bpf_rcu_read_lock", "jiffies"}, p.Ksyms); diff != "" {
		t.Errorf("symbols asked for (-want +got):\n%s", diff)
	}
	if !slices.Contains(p.Maps, ".kconfig") {
		t.Errorf("Kconfig variables are a map too; got %v", p.Maps)
	}
}

func TestLicence(t *testing.T) {
	pe, tp := program(t, "license", "stacks"), program(t, "license", "stacks_too")
	if tp.License != "Proprietary" || tp.GPLCompatible {
		t.Errorf("license %q, compatible %v: the kernel stops at the first NUL", tp.License, tp.GPLCompatible)
	}
	if diff := cmp.Diff([]string{"bpf_get_stackid", "bpf_override_return"}, tp.GPLOnly); diff != "" {
		t.Error(diff)
	}
	if len(pe.GPLOnly) != 0 {
		t.Errorf("perf event programs get bpf_get_stackid under any licence, not %v", pe.GPLOnly)
	}
	for license, want := range map[string]bool{
		"GPL": true, "GPL v2": true, "GPL and additional rights": true,
		"Dual BSD/GPL": true, "Dual MIT/GPL": true, "Dual MPL/GPL": true,
		"": false, "gpl": false, "GPL ": false, "GPLv2": false, "Apache-2.0": false, "MIT": false,
	} {
		if GPLCompatible(license) != want {
			t.Errorf("GPLCompatible(%q) = %v", license, !want)
		}
	}
}

func TestRefusals(t *testing.T) {
	reach, kernel := objectFile(t, "reach"), objectFile(t, "kernel_symbols")
	for name, test := range map[string]struct {
		object []byte
		opts   Options
		rule   string
	}{
		"a map by number":                            {object: objectFile(t, "by_number"), rule: "bytecode/reference-by-number"},
		"a map by number beside Kconfig":             {object: objectFile(t, "by_number_kconfig"), rule: "bytecode/reference-by-number"},
		"a kfunc by number":                          {object: objectFile(t, "kfunc_by_number"), rule: "bytecode/reference-by-number"},
		"a small file that asks for much":            {object: objectFile(t, "bss_bomb"), rule: "bytecode/too-large"},
		"a few types that multiply":                  {object: objectFile(t, "nested_unions"), rule: "bytecode/type-too-large"},
		"a file that is too large":                   {object: reach, opts: Options{MaxSize: 1000}, rule: "bytecode/too-large"},
		"more sections than allowed":                 {object: reach, opts: Options{MaxSections: 3}, rule: "bytecode/too-many-sections"},
		"more symbols than allowed":                  {object: reach, opts: Options{MaxSymbols: 3}, rule: "bytecode/too-many-symbols"},
		"more instructions than allowed":             {object: reach, opts: Options{MaxInstructions: 100}, rule: "bytecode/too-many-instructions"},
		"more type information than allowed":         {object: reach, opts: Options{MaxBTF: 100}, rule: "bytecode/too-large"},
		"symbols that name the same bytes":           {object: overlapping(t, reach), opts: Options{MaxSize: 1 << 16}, rule: "bytecode/overlapping-symbols"},
		"a compressed section":                       {object: compressed(t, reach), rule: "bytecode/compressed-section"},
		"two tables of relocations":                  {object: relocatedTwice(t, reach), rule: "bytecode/ambiguous-relocations"},
		"a program with a name of no text":           {object: renamed(t, reach, "reaches_none", "reaches_\xffone"), rule: "bytecode/unprintable-name"},
		"a map that moves the cursor":                {object: renamed(t, reach, "events", "\x1b[2J.."), rule: "bytecode/unprintable-name"},
		"a program with a space in its name":         {object: renamed(t, reach, "reaches_none", "reaches none"), rule: "bytecode/name-with-space"},
		"a kernel function with a space in its name": {object: renamed(t, kernel, "bpf_task_release", "fact taskRelease"), rule: "bytecode/name-with-space"},
		"a kernel variable with a space in its name": {object: renamed(t, kernel, "jiffies", "jif ies"), rule: "bytecode/name-with-space"},
		"a program with a name that no kernel takes": {object: named(t, reach, "reaches_none", strings.Repeat("n", 513)), rule: "bytecode/long-name"},
		"more than anybody reads":                    {object: reach, opts: Options{MaxFacts: 1000}, rule: "bytecode/too-many-facts"},
		"a .bss each within bounds, not both":        {object: twoBombs(t), opts: Options{MaxSize: 3 << 19}, rule: "bytecode/too-large"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Inspect(bytes.NewReader(test.object), test.opts)
			var r *Rejection
			if !errors.As(err, &r) {
				t.Fatalf("got %v, want a refusal", err)
			}
			if r.Rule != test.rule || r.Object == "" || r.Reason == "" || r.Fix == "" {
				t.Errorf("got %+v, want rule %s and every field", r, test.rule)
			}
			for _, part := range []string{r.Rule, r.Object, r.Reason, r.Fix} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
		})
	}
}

// compressed says of a section that it is compressed.
func compressed(t *testing.T, object []byte) []byte {
	object = bytes.Clone(object)
	header, _ := sectionHeader(t, object, ".BTF")
	flags := binary.LittleEndian.Uint64(header[8:])
	binary.LittleEndian.PutUint64(header[8:], flags|uint64(elf.SHF_COMPRESSED))
	return object
}

// overlapping makes every symbol name far more than it did.
func overlapping(t *testing.T, object []byte) []byte {
	object = bytes.Clone(object)
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	table := f.SectionByType(elf.SHT_SYMTAB)
	for at := table.Offset; at < table.Offset+table.Size; at += elf.Sym64Size {
		binary.LittleEndian.PutUint64(object[at+16:], 1<<15)
	}
	return object
}

// relocatedTwice gives a section of code a second table of relocations.
func relocatedTwice(t *testing.T, object []byte) []byte {
	object = bytes.Clone(object)
	_, code := sectionHeader(t, object, "xdp")
	header, _ := sectionHeader(t, object, ".rel.BTF")
	binary.LittleEndian.PutUint32(header[44:], uint32(code))
	return object
}

// renamed gives a symbol another name of the same length, wherever it stands.
func renamed(t *testing.T, object []byte, from, to string) []byte {
	t.Helper()
	changed := bytes.ReplaceAll(object, []byte(from), []byte(to))
	if len(from) != len(to) || bytes.Equal(changed, object) {
		t.Fatalf("cannot rename %q to %q", from, to)
	}
	return changed
}

// named gives a function a name of any length, at the end of a table of names
// that is moved to the end of the file.
func named(t *testing.T, object []byte, from, to string) []byte {
	t.Helper()
	object = bytes.Clone(object)
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	symbols := f.SectionByType(elf.SHT_SYMTAB)
	names, err := f.Sections[symbols.Link].Data()
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	for at := symbols.Offset; at < symbols.Offset+symbols.Size; at += elf.Sym64Size {
		if name, _, _ := strings.Cut(string(names[le.Uint32(object[at:]):]), "\x00"); name == from {
			le.PutUint32(object[at:], uint32(len(names)))
		}
	}
	header := object[le.Uint64(object[0x28:])+uint64(symbols.Link)*uint64(le.Uint16(object[0x3a:])):]
	le.PutUint64(header[24:], uint64(len(object)))
	le.PutUint64(header[32:], uint64(len(names)+len(to)+1))
	return slices.Concat(object, names, []byte(to), []byte{0})
}

// twoBombs is an object with two sections without contents, of 1 MiB each.
func twoBombs(t *testing.T) []byte {
	object := objectFile(t, "bss_bomb")
	for _, name := range []string{".bss", "license"} {
		header, _ := sectionHeader(t, object, name)
		binary.LittleEndian.PutUint32(header[4:], uint32(elf.SHT_NOBITS))
		binary.LittleEndian.PutUint64(header[32:], 1<<20)
	}
	return object
}

func TestWhatIsNoBPFObject(t *testing.T) {
	class32 := bytes.Clone(objectFile(t, "reach"))
	class32[4] = byte(elf.ELFCLASS32)
	executable := bytes.Clone(objectFile(t, "reach"))
	executable[16] = byte(elf.ET_EXEC)
	x86 := bytes.Clone(objectFile(t, "reach"))
	binary.LittleEndian.PutUint16(x86[18:], uint16(elf.EM_X86_64))
	for name, object := range map[string][]byte{
		"nothing":                    nil,
		"text":                       []byte("not an object at all, and longer than an ELF header so that it is looked at"),
		"an object cut short":        objectFile(t, "reach")[:3000],
		"the first bytes of one":     objectFile(t, "reach")[:20],
		"a 32-bit file":              class32,
		"an executable":              executable,
		"an object for another CPU":  x86,
		"a program of this machine":  mustRead(t, os.Args[0])[:4096],
		"only the ELF magic":         []byte("\x7fELF"),
		"headers and nothing beyond": objectFile(t, "reach")[:64],
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Inspect(bytes.NewReader(object), Options{})
			if err == nil {
				t.Fatalf("got facts %+v", f)
			}
			if !strings.HasPrefix(err.Error(), "parse object: ") {
				t.Errorf("error %q does not say what was tried", err)
			}
		})
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestErrorsShowNoControlCharacters(t *testing.T) {
	object := renamed(t, objectFile(t, "maps"), "per_cpu", "\x1b[31m\xff\x00")
	_, err := Inspect(bytes.NewReader(object), Options{})
	if err == nil || strings.ContainsFunc(err.Error(), unprintable) || !utf8.ValidString(err.Error()) {
		t.Errorf("got %q", err)
	}
	long := &parseError{fmt.Errorf("%w: %s", os.ErrInvalid, strings.Repeat("é", 5000))}
	if text := long.Error(); len(text) > 1100 || !utf8.ValidString(text) || !strings.HasSuffix(text, "…") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
	colour := &parseError{errors.New("section \x1b[31m\xff\n: red")}
	if want := "parse object: section �[31m��: red"; colour.Error() != want {
		t.Errorf("got %q, want %q", colour, want)
	}
	if !errors.Is(long, os.ErrInvalid) {
		t.Error("the cause is lost")
	}
}

// brokenReader fails to read.
type brokenReader struct{}

func (brokenReader) ReadAt([]byte, int64) (int, error) { return 0, os.ErrPermission }

func TestAReaderThatFails(t *testing.T) {
	if _, err := Inspect(brokenReader{}, Options{}); !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v, want the reader's own error", err)
	}
}

func TestUnresolvedFunctionsAreNamed(t *testing.T) {
	p := program(t, "unlinked", "calls_elsewhere")
	if diff := cmp.Diff([]string{"elsewhere"}, p.Unresolved); diff != "" {
		t.Error(diff)
	}
}

func TestOneRelocatedProgramMakesTheObjectCORE(t *testing.T) {
	f := facts(t, objectFile(t, "core_first"))
	if !f.CORE || f.MinKernel != "5.7" {
		t.Errorf("CO-RE %v, kernel %s", f.CORE, f.MinKernel)
	}
	var needs []string
	for _, n := range f.MinKernelReasons {
		needs = append(needs, n.Program+": "+n.Feature)
	}
	if diff := cmp.Diff([]string{"a_relocated: hook raw_tp", "z_plain: hook raw_tp"}, needs); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestTheLicenceIsTheObjects(t *testing.T) {
	if f := facts(t, objectFile(t, "no_programs")); f.License != "Dual MIT/GPL" || len(f.Programs) != 0 {
		t.Errorf("licence %q of %d programs", f.License, len(f.Programs))
	}
	for _, path := range ciliumObjects(t) {
		f, err := Inspect(bytes.NewReader(mustRead(t, path)), Options{})
		if err != nil {
			continue
		}
		for _, p := range f.Programs {
			if p.License != f.License {
				t.Errorf("%s: licence %q of the object, %q of program %s", filepath.Base(path), f.License, p.License, p.Name)
			}
		}
	}
}

func TestVariables(t *testing.T) {
	types := map[string]string{}
	f := facts(t, objectFile(t, "variables"))
	for _, v := range f.Variables {
		types[v.Name] = fmt.Sprintf("%s %d %s %v", v.Type, v.Size, v.Section, v.Constant)
	}
	want := map[string]string{
		"config":   "struct config 20 .rodata true",
		"counters": "__u64[4][2] 64 .bss false",
		"enabled":  "_Bool 1 .data false",
		"label":    "char * 8 .rodata true",
		"mode":     "enum mode 4 .rodata true",
		"ports":    "__u16[8] 16 .data.ports false",
		"position": "anonymous 4 .bss false",
		"sampling": "__u32 4 .rodata true",
		"weak_one": "long 8 .bss false",
	}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestKeyNamesAllThatFactsDependOn(t *testing.T) {
	if got := (Options{CPUs: 8}).Key("sha256:ab"); got != "sha256:ab/inspector-"+InspectorRevision+"/cpus-8" {
		t.Errorf("Key = %s", got)
	}
	if (Options{}).Key("d") != (Options{CPUs: DefaultCPUs}).Key("d") {
		t.Error("the default and its number are remembered apart")
	}
	f, err := Inspect(bytes.NewReader(objectFile(t, "maps")), Options{})
	if err != nil || f.CPUs != DefaultCPUs || f.Inspector != InspectorRevision || f.Version != FactsVersion {
		t.Errorf("facts say %d CPUs, inspector %q, version %q, error %v", f.CPUs, f.Inspector, f.Version, err)
	}
}

func TestListsAreNeverNull(t *testing.T) {
	b, err := json.Marshal(facts(t, objectFile(t, "unlinked")))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte("null")) {
		t.Errorf("policies iterate lists, and null is not one: %s", b)
	}
}

func BenchmarkInspect(b *testing.B) {
	for _, path := range ciliumObjects(b) {
		object, err := os.ReadFile(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(strings.TrimSuffix(filepath.Base(path), ".elf"), func(b *testing.B) {
			b.SetBytes(int64(len(object)))
			b.ReportAllocs()
			for b.Loop() {
				// Some are broken on purpose; rejecting them takes time too.
				_, _ = Inspect(bytes.NewReader(object), Options{})
			}
		})
	}
}
