package calls_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/harness/golden"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// TestEachHelperHasOneRow: one that the list of the kernel gets later fails here until somebody says
// what its result tells.
func TestEachHelperHasOneRow(t *testing.T) {
	rows := map[string]int{}
	for _, row := range calls.Rows() {
		for name := range strings.FieldsSeq(row.Names) {
			rows[name]++
		}
	}
	for _, h := range bytecode.Helpers() {
		if rows[h.Name] != 1 {
			t.Errorf("%s has %d rows, want 1", h.Name, rows[h.Name])
		}
		if h.Risk == bytecode.OverridesReturn || h.Risk == bytecode.WritesUserMemory || h.Risk == bytecode.MakesSystemCalls {
			if calls.Denied(h.Name, calls.Place{}) == "" {
				t.Errorf("a namespace may call %s, of risk %s", h.Name, h.Risk)
			}
		}
	}
	for name, n := range rows {
		if n != 1 {
			t.Errorf("%s has %d rows", name, n)
		}
		if _, is := bytecode.LookupHelper(name); !is && !strings.HasPrefix(name, "bpf_") {
			t.Errorf("%s is no function of the kernel", name)
		}
	}
	for _, k := range bytecode.RiskyKfuncs() {
		if calls.Denied(k.Name, calls.Place{}) == "" {
			t.Errorf("a namespace may call kfunc %s, of risk %s", k.Name, k.Risk)
		}
	}
	for _, name := range []string{"helper 212", "helper -1", "bpf_no_such_function", ""} {
		if calls.Denied(name, calls.Place{}) == "" {
			t.Errorf("a namespace may call %q, which has no row", name)
		}
	}
}

// TestRowsAreWhole: each says what, whose and by what proof. A test that one names is in the repository.
func TestRowsAreWhole(t *testing.T) {
	tests := testsOf(t)
	for _, row := range calls.Rows() {
		if row.Tells == "" || row.About == "" || row.Proof == "" || row.Where == calls.Nowhere && row.Why == "" {
			t.Errorf("a column is empty, or says why something allowed is denied: %+v", row)
		}
		checkProof(t, tests, row.Proof)
	}
	for _, row := range calls.MapRows() {
		if len(row.Types) == 0 || row.Bound == "" || row.Proof == "" {
			t.Errorf("a column is empty: %+v", row)
		}
		checkProof(t, tests, row.Proof)
	}
	for _, row := range calls.FlagRows() {
		if row.Name == "" || row.Does == "" || row.Proof == "" {
			t.Errorf("a column is empty: %+v", row)
		}
		checkProof(t, tests, row.Proof)
	}
}

func checkProof(t *testing.T, tests, proof string) {
	t.Helper()
	for _, word := range strings.FieldsFunc(proof, func(r rune) bool { return strings.ContainsRune(" ,;:()", r) }) {
		if strings.HasPrefix(word, "Test") && !strings.Contains(tests, "func "+word+"(") {
			t.Errorf("no test %s, which %q names", word, proof)
		}
	}
}

// testsOf is the text of the tests that prove rows.
func testsOf(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"*_test.go", "../*_test.go", "../../gate/*_test.go", "../../agent/*_test.go", "../../agent/*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// TestMapsThatANamespaceMayHave: each type of the library is in one row, and one that it does not know
// in none.
func TestMapsThatANamespaceMayHave(t *testing.T) {
	for kind := ebpf.Hash; kind <= ebpf.Arena; kind++ {
		name, rows := kind.String(), 0
		for _, row := range calls.MapRows() {
			if slices.Contains(row.Types, name) {
				rows++
			}
		}
		if rows != 1 {
			t.Errorf("maps of type %s have %d rows, want 1", name, rows)
		}
	}
	for name, denied := range map[string]bool{
		"Array": false, "LRUHash": false, "RingBuf": false, "Arena": false, "ProgramArray": false, "HashOfMaps": false,
		"SkStorage": true, "TaskStorage": true, "InodeStorage": true, "CgroupStorage": true, "CGroupStorage": true, "PerCPUCGroupStorage": true,
		"DevMap": true, "DevMapHash": true, "CPUMap": true, "SockHash": true, "MapType(99)": true, "": true,
	} {
		if (calls.DeniedMap(name) != "") != denied {
			t.Errorf("%s: %q, want it denied: %v", name, calls.DeniedMap(name), denied)
		}
	}
}

// TestFlagsOfMapsThatANamespaceMayHave: each that no row allows is denied, those of later kernels among them.
func TestFlagsOfMapsThatANamespaceMayHave(t *testing.T) {
	allowed := []int{0, 1, 3, 4, 5, 7, 8, 10, 12}
	names := map[int]string{2: "BPF_F_NUMA_NODE", 6: "BPF_F_ZERO_SEED", 17: "BPF_F_SEGV_ON_FAULT"}
	for bit := range 32 {
		want := map[string]bool{}
		if !slices.Contains(allowed, bit) {
			want[cmp.Or(names[bit], fmt.Sprintf("%#x", 1<<bit))] = true
		}
		got := map[string]bool{}
		for name, why := range calls.DeniedFlags(1<<bit | 1<<0) {
			got[name] = why != ""
		}
		if !maps.Equal(got, want) {
			t.Errorf("flag 1<<%d: %v, want %v", bit, got, want)
		}
	}
}

// offered reports whether this kernel offers a helper to programs of a hook; false, too, where it has no such hook.
func offered(t *testing.T, h hook.Hook, helper bytecode.Helper) bool {
	t.Helper()
	spec := &ebpf.ProgramSpec{Type: h.ProgramType, AttachType: h.AttachType, License: "GPL",
		Instructions: asm.Instructions{asm.BuiltinFunc(helper.ID).Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}}
	if h.ProgramType == ebpf.SchedCLS {
		spec.AttachType = ebpf.AttachNone
	}
	p, err := ebpf.NewProgram(spec)
	if err == nil {
		_ = p.Close()
		return true
	}
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) {
		return false
	}
	log := strings.Join(refused.Log, "\n")
	return log != "" && !strings.Contains(log, "unknown func") && !strings.Contains(log, "cannot use helper") && !strings.Contains(log, "invalid func")
}

// TestNoHookOfANamespaceOffersThem asks the kernel about the helpers that are denied for that reason, on
// each hook that a namespace may use and whose programs load without a target.
func TestNoHookOfANamespaceOffersThem(t *testing.T) {
	need.Kernel(t)
	asked := 0
	for _, h := range hook.All() {
		if !h.Namespaceable || h.LoadsForTarget() || h.AttachType == ebpf.AttachLSMCgroup {
			continue
		}
		lookup, _ := bytecode.LookupHelper("bpf_map_lookup_elem")
		if !offered(t, h, lookup) {
			continue // this kernel does not have it
		}
		for _, helper := range bytecode.Helpers() {
			if row, _ := calls.Lookup(helper.Name); row.Why != "calls what no hook of a namespace offers" {
				continue
			}
			asked++
			if offered(t, h, helper) {
				t.Errorf("hook %s offers %s", h.Name, helper.Name)
			}
		}
	}
	if asked < 100 {
		t.Errorf("the kernel was asked %d times: too few to mean anything", asked)
	}
}

//go:generate go test -run ^TestThePageShowsTheTable$ -update

// TestThePageShowsTheTable compares the page with the table and with what it denies objects of the corpus, or writes it.
func TestThePageShowsTheTable(t *testing.T) {
	golden.File(t, "../../docs/calls.md", rendered()+lostByCorpus(t), "go generate ./bytecode/calls")
}

const intro = `<!-- Code generated by bytecode/calls from its table. DO NOT EDIT. -->

# What a namespace may call

A program of a ` + "`BpfApplication`" + ` may call the functions of the kernel that this table allows, where it allows them, and have the types
and flags of maps that the tables below allow. The gate denies everything else (` + "`inspect/scope`" + `), what a later kernel adds among it, and no policy
allows it.
Programs of a ` + "`ClusterBpfApplication`" + ` may call what policies allow.

A row says what the *result* of a call tells the program: a length or an error is enough to read memory by.

| where | |
|---|---|
| everywhere | on every hook that a namespace may use |
| not on tcx and tc | not on ` + "`tcx/*` and `tc/*`" + `, where programs of the cluster are to see each packet that a program does not drop |
| on the Pod's own sockets | not on ` + "`tcx/*` and `tc/*`" + `, where the socket of a packet may be the sender's in another Pod |
| in tasks of the Pod | on hooks of tasks, not of packets, where any task may be the current one |
| in tasks of the Pod alone | not on hooks of sockets either, which a task of another namespace may use that was handed one |
| nowhere | on no hook |

## Helpers and kfuncs

| functions | what the result tells | what they write | about | where | proof |
|---|---|---|---|---|---|
`

// rendered is the page.
func rendered() string {
	var b strings.Builder
	b.WriteString(intro)
	for _, row := range calls.Rows() {
		where := string(row.Where)
		if row.Why != "" {
			where += ": it " + row.Why
		}
		for _, names := range cellsOf(strings.Fields(row.Names)) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", names, row.Tells, row.Writes, row.About, where, row.Proof)
		}
	}
	b.WriteString("\n## Types of maps\n\n| types | what bounds the memory | a namespace | proof |\n|---|---|---|---|\n")
	for _, row := range calls.MapRows() {
		may := "may have it"
		if row.Why != "" {
			may = "may not: it " + row.Why
		}
		for _, types := range cellsOf(row.Types) {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", types, row.Bound, may, row.Proof)
		}
	}
	b.WriteString("\nA type that is not in the table is denied.\n\n## Flags of maps\n\n| flag | what it asks for | a namespace | proof |\n|---|---|---|---|\n")
	for _, row := range calls.FlagRows() {
		may := "may have it"
		if row.Why != "" {
			may = "may not: it " + row.Why
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", row.Name, row.Does, may, row.Proof)
	}
	b.WriteString("\nA flag that is not in the table is denied.\n")
	return b.String()
}

// cellsOf lists names in cells that a page has room for.
func cellsOf(names []string) (cells []string) {
	cell := ""
	for _, name := range names {
		if len(cell)+len(name) > 190 {
			cells, cell = append(cells, cell), ""
		}
		if cell != "" {
			cell += ", "
		}
		cell += "`" + name + "`"
	}
	return append(cells, cell)
}
