package kernel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/hook/conformance"
	"github.com/skep-dev/skep/test/harness/need"
)

// own stands for the kernel that the tests run on, among the series of others.
const own = "own"

// root is the root of the module.
const root = "../.."

// packages are the directories whose tests run on every kernel, from the root of the
// module, and which of their tests run. They find no files but those of files.
func packages() []string {
	if wanted := os.Getenv("SKEP_VM_PACKAGES"); wanted != "" {
		return strings.Split(wanted, ",")
	}
	return []string{"agent/attach", "agent/program/cgrouplsm", "agent/program/chain", "agent/program/deadline", "agent/inventory",
		"agent/program/guard", "agent/program/loader", "agent/state/pins", "agent/readers/serve=TestAReader|TestMaps",
		"agent/attach/targets=TestProgramsInPodsSeeTheirOwn",
		"agent/attach/hooks=EveryHookConforms|Fires|Tenants|AndTheBond|ModuleThat|CPUThat|TestATeam|TheClusterDecides|" +
			"AnUpgradeMoves|OfOthers|Position|ANamespaceHasAShare"}
}

// modules are what the tests need and Debian builds as modules, in the order
// they depend on each other.
func modules() []string {
	return []string{"veth", "nf_defrag_ipv4", "nf_defrag_ipv6", "nfnetlink", "nfnetlink_hook", "sch_ingress", "cls_bpf", "act_bpf", "overlay", "tls", "bonding"}
}

// files are what the tests read, from the root of the module.
func files() []string {
	all := []string{"bytecode/testdata/nested_unions.o"}
	// The objects that make corpus gets.
	gathered, _ := filepath.Glob(filepath.Join(root, "bin", "corpus", "*", "*"))
	for _, path := range gathered {
		all = append(all, strings.TrimPrefix(path, root+"/"))
	}
	return all
}

// built is a test binary that was compiled for all kernels, and its path.
type built struct {
	path string
	Test
}

func TestPackagesOnOtherKernels(t *testing.T) {
	wanted := os.Getenv("SKEP_VM_KERNELS")
	if wanted == "" {
		t.Skip("SKIPPED: set SKEP_VM_KERNELS=own,6.1,6.12 to run on this kernel and to boot those of Debian's under qemu")
	}
	// The folder stays, so that what did not change is not linked again.
	work, err := filepath.Abs(filepath.Join(root, "bin", "kernels"))
	if err == nil {
		err = os.MkdirAll(work, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	init := build(t, filepath.Join(work, "init"), "build", "./init")
	timeout := testBound
	if said := os.Getenv("SKEP_VM_TIMEOUT"); said != "" {
		if timeout, err = time.ParseDuration(said); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]built{}
	for _, entry := range packages() {
		dir, pattern, _ := strings.Cut(entry, "=")
		if only := os.Getenv("SKEP_VM_RUN"); only != "" {
			pattern = only
		}
		name := strings.ReplaceAll(dir, "/", "-")
		out := filepath.Join(work, name)
		tests[name] = built{path: out, Test: Test{
			Binary: build(t, out, "test", "-c", filepath.Join(root, dir)), Setting: Setting{Dir: dir, Run: pattern, Bench: os.Getenv("SKEP_VM_BENCH"), Timeout: timeout},
		}}
	}
	var mu sync.Mutex
	seen := map[string]map[string]conformance.Outcome{}
	// The machines are emulated on one processor each, and run beside each other.
	t.Run("on", func(t *testing.T) {
		for series := range strings.SplitSeq(wanted, ",") {
			t.Run(series, func(t *testing.T) {
				var results map[string]Result
				var release string
				if series == own {
					results, release = here(t, tests)
				} else {
					t.Parallel()
					results, release = boot(t, init, tests, series, work)
				}
				hooks := report(t, results, tests)
				mu.Lock()
				defer mu.Unlock()
				seen[release] = hooks
			})
		}
	})
	if os.Getenv("SKEP_UPDATE") != "" {
		update(t, seen)
	}
}

// here runs the tests on the kernel that this test runs on.
func here(t *testing.T, tests map[string]built) (map[string]Result, string) {
	results := map[string]Result{}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		cmd := exec.CommandContext(t.Context(), tests[name].path, "-test.v", "-test.short", "-test.timeout="+tests[name].Timeout.String(),
			"-test.run="+tests[name].Run)
		cmd.Dir = filepath.Join(root, tests[name].Dir)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatalf("%s: %v", name, err)
		}
		results[name] = Result{Code: cmd.ProcessState.ExitCode(), Output: string(out)}
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	return results, unix.ByteSliceToString(name.Release[:])
}

// boot runs the tests on a kernel of Debian's.
func boot(t *testing.T, init []byte, tests map[string]built, series, work string) (map[string]Result, string) {
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "skep-kernels")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	tree, err := Fetch(t.Context(), series, cache)
	if errors.Is(err, ErrNoPackage) {
		t.Skipf("*** NO LINUX %s: it is LEFT OUT: %v ***", series, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	machine := Machine{Init: init, Tests: map[string]Test{}}
	if os.Getenv("SKEP_UPDATE") != "" {
		machine.Env = []string{"SKEP_UPDATE=1"}
	}
	for name, b := range tests {
		machine.Tests[name] = b.Test
	}
	equip(t, &machine, tree)
	console, err := os.Create(filepath.Join(work, series+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = console.Close() }()
	t.Logf("boot %s; the console is in %s", tree.Package, console.Name())
	results, err := machine.Run(t.Context(), console)
	if err != nil {
		t.Errorf("run %s: %v", tree.Package, err)
	}
	return results, tree.Release()
}

// equip gives the machine a kernel, its modules and the files that tests read.
func equip(t *testing.T, m *Machine, tree Tree) {
	m.Modules, m.Files = map[string][]byte{}, map[string][]byte{}
	for _, name := range modules() {
		body, err := tree.Module(t.Context(), name)
		if err != nil {
			t.Logf("without a module: %v", err)
			continue
		}
		m.Load = append(m.Load, name)
		m.Modules[name] = body
	}
	read := map[string]string{"boot/config-" + tree.Release(): filepath.Join(tree.Dir, "boot", "config-"+tree.Release())}
	for _, name := range files() {
		read[name] = filepath.Join(root, name)
	}
	for name, from := range read {
		body, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		m.Files[name] = body
	}
	var err error
	if m.Kernel, err = tree.Image(); err != nil {
		t.Fatal(err)
	}
}

// report fails the test for every binary that failed or did not run, shows what its failed
// tests said, and returns what was seen of hooks.
func report(t *testing.T, results map[string]Result, tests map[string]built) map[string]conformance.Outcome {
	seen := map[string]conformance.Outcome{}
	passed, skipped := 0, 0
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		r, ok := results[name]
		if !ok {
			t.Errorf("%s did not run to its end", name)
			continue
		}
		if r.Code != 0 {
			t.Errorf("%s: exit code %d\n%s", name, r.Code, failed(t, r.Output))
		}
		for _, hook := range regexp.MustCompile(`SKEP-HOOK (\S+) (.+)`).FindAllStringSubmatch(r.Output, -1) {
			seen[hook[1]] = conformance.Outcome(hook[2])
		}
		for _, summary := range regexp.MustCompile(`SKEP-CORPUS objects.*`).FindAllString(r.Output, -1) {
			t.Log(summary)
		}
		passes, skips := strings.Count(r.Output, "--- PASS"), strings.Count(r.Output, "--- SKIP")
		// A machine has all that its tests need; the kernel of this one may forbid it.
		if passes == 0 && (skips == 0 || !strings.HasSuffix(t.Name(), "/"+own)) && os.Getenv("SKEP_VM_BENCH")+os.Getenv("SKEP_VM_RUN") == "" {
			t.Errorf("%s: no test passed, and %d were skipped: does its pattern match none?\n%s", name, skips, r.Output)
		}
		passed, skipped = passed+passes, skipped+skips
		t.Logf("%s: %d passed, %d skipped, %d failed", name, passes, skips, strings.Count(r.Output, "--- FAIL"))
	}
	fmt.Printf("*** %s: %d packages, %d tests passed, %d skipped ***\n", t.Name(), len(tests), passed, skipped)
	return seen
}

// failed is what the tests that failed said, and what no test said.
func failed(t *testing.T, output string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json")
	cmd.Stdin = strings.NewReader(output)
	events, err := cmd.Output()
	if err != nil {
		return output
	}
	said, red := map[string]string{}, map[string]bool{"": true}
	for line := range bytes.Lines(events) {
		var event struct{ Action, Test, Output string }
		if err := json.Unmarshal(line, &event); err != nil {
			return output
		}
		said[event.Test] += event.Output
		red[event.Test] = red[event.Test] || event.Action == "fail"
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(said)) {
		if red[name] {
			text.WriteString(said[name])
		}
	}
	return text.String()
}

// update writes what was seen to the file of kernels.
func update(t *testing.T, seen map[string]map[string]conformance.Outcome) {
	kernels, err := conformance.Kernels()
	if err != nil {
		t.Fatal(err)
	}
	var body []byte
	for release, hooks := range seen {
		if body, err = conformance.Update(kernels, release, hooks); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "hook", "conformance", "kernels.json"), body, 0o644); err != nil {
		t.Fatal(err)
	}
}

// build compiles a static binary and returns it.
func build(t *testing.T, out string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append(args[:len(args)-1:len(args)-1], "-ldflags=-s -w", "-o", out, args[len(args)-1])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", filepath.Base(out), err, text)
	}
	body, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestNewestKernelOfASeries(t *testing.T) {
	lines := `linux-image-6.1.0-9-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.1.0-10-cloud-amd64 - Linux 6.1 for x86-64 cloud (signed)
linux-image-6.12-cloud-amd64 - Linux for x86-64 cloud (meta-package)
`
	for series, want := range map[string]string{"6.1": "linux-image-6.1.0-10-cloud-amd64", "6.12": ""} {
		only := ""
		for line := range strings.Lines(lines) {
			if strings.HasPrefix(line, "linux-image-"+series+".") || strings.HasPrefix(line, "linux-image-"+series+"-") {
				only += line
			}
		}
		if got := newest(series, only); got != want {
			t.Errorf("newest of %s is %q, want %q", series, got, want)
		}
	}
}

func TestConsoleIsSplitIntoResults(t *testing.T) {
	for name, tc := range map[string]struct {
		console string
		want    map[string]Result
		err     string
	}{
		"two tests": {
			"boot\r\n\x1b[0mSKEP-VM begin a\r\nPASS\r\nSKEP-VM end a 0\r\nSKEP-VM begin b\r\nFAIL\r\nSKEP-VM end b 1\r\nSKEP-VM end all\r\n",
			map[string]Result{"a": {0, "PASS"}, "b": {1, "FAIL"}}, "",
		},
		"a panic in the second": {
			"SKEP-VM begin a\nSKEP-VM end a 0\nSKEP-VM begin b\nKernel panic\n",
			map[string]Result{"a": {0, ""}}, "while it ran b",
		},
		"no end":   {"SKEP-VM begin a\nSKEP-VM end a 0\n", map[string]Result{"a": {0, ""}}, "before it ran all"},
		"no tests": {"Kernel panic\n", map[string]Result{}, "before it ran all"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse([]byte(tc.console))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
		})
	}
}

func TestArchiveIsReadByCpio(t *testing.T) {
	need.Program(t, "cpio", "cpio")
	machine := Machine{Init: []byte("first"), Load: []string{"veth"}, Modules: map[string][]byte{"veth": []byte("module")}, Tests: map[string]Test{
		"chain": {Binary: []byte("test"), Setting: Setting{Dir: "agent/program/chain", Run: "One"}},
	}}
	body, err := machine.archive()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "cpio", "-it", "--quiet")
	cmd.Stdin = bytes.NewReader(body)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "init\nagent\nagent/program\nagent/program/chain\ndev\nmodules\nproc\nrun\nsettings\nsys\ntests\ntmp\n" +
		"dev/console\nmodules/00-veth.ko\nsettings/chain\ntests/chain\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestAMachineThatDoesNotBootIsBootedOnceMore has a script in the place of qemu.
func TestAMachineThatDoesNotBootIsBootedOnceMore(t *testing.T) {
	for sentence, c := range map[string]struct {
		script string
		boots  int
		err    error
	}{
		"the second boots":    {`test $(wc -l < boots) = 1 || printf 'SKEP-VM begin a\nSKEP-VM end a 0\nSKEP-VM end all\n'`, 2, nil},
		"none boots":          {`true`, 2, errNotBooted},
		"the first boots":     {`printf 'SKEP-VM begin a\nSKEP-VM end a 0\nSKEP-VM end all\n'`, 1, nil},
		"it stops in a test":  {`printf 'SKEP-VM begin a\nKernel panic\n'`, 1, errors.New("the machine stopped while it ran a")},
		"it stops after some": {`printf 'SKEP-VM begin a\nSKEP-VM end a 0\n'`, 1, errors.New("the machine stopped before it ran all tests")},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\ncd "+dir+"\necho >> boots\n"+c.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			_, err := Machine{}.Run(t.Context(), io.Discard)
			if c.err == nil && err != nil || c.err != nil && !errors.Is(err, c.err) && (err == nil || err.Error() != c.err.Error()) {
				t.Errorf("got %v, want %v", err, c.err)
			}
			boots, err := os.ReadFile(filepath.Join(dir, "boots"))
			if err != nil || len(boots) != c.boots {
				t.Errorf("it was booted %d times, %v; want %d", len(boots), err, c.boots)
			}
		})
	}
}
