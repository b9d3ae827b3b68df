package kernel

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// packages are the directories whose tests run on every kernel, from the root of
// the module. Their tests must need no files beside them.
func packages() []string {
	if wanted := os.Getenv("SKEP_VM_PACKAGES"); wanted != "" {
		return strings.Split(wanted, ",")
	}
	return []string{"agent/chain", "agent/inventory"}
}

// modules are what the tests need and Debian builds as modules, in the order
// they depend on each other.
func modules() []string {
	return []string{"veth", "nf_defrag_ipv4", "nf_defrag_ipv6", "sch_ingress", "cls_bpf", "act_bpf"}
}

func TestPackagesOnOtherKernels(t *testing.T) {
	wanted := os.Getenv("SKEP_VM_KERNELS")
	if wanted == "" {
		t.Skip("SKIPPED: set SKEP_VM_KERNELS=6.1,6.12 to boot those kernels of Debian's under qemu")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "skep-kernels")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	machine := Machine{Only: os.Getenv("SKEP_VM_RUN"), Init: build(t, bin, "init", "build", "./init"), Tests: map[string][]byte{}}
	for _, dir := range packages() {
		name := strings.ReplaceAll(dir, "/", "-")
		machine.Tests[name] = build(t, bin, name, "test", "-c", "../../"+dir)
	}
	for series := range strings.SplitSeq(wanted, ",") {
		t.Run(series, func(t *testing.T) { boot(t, machine, series, cache) })
	}
}

func boot(t *testing.T, machine Machine, series, cache string) {
	tree, err := Fetch(t.Context(), series, cache)
	if err != nil {
		t.Fatal(err)
	}
	machine.Load, machine.Modules = nil, map[string][]byte{}
	for _, name := range modules() {
		body, err := tree.Module(t.Context(), name)
		if err != nil {
			t.Logf("without a module: %v", err)
			continue
		}
		machine.Load = append(machine.Load, name)
		machine.Modules[name] = body
	}
	if machine.Kernel, err = tree.Image(); err != nil {
		t.Fatal(err)
	}
	t.Logf("boot %s", tree.Package)
	results, err := machine.Run(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	for name := range machine.Tests {
		if r, ok := results[name]; !ok || r.Code != 0 {
			t.Errorf("%s on %s: exit code %d, ran: %v", name, tree.Package, r.Code, ok)
		}
	}
}

// build compiles a static binary and returns it.
func build(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	out := filepath.Join(dir, name)
	cmd := exec.CommandContext(t.Context(), "go", append(args[:len(args)-1:len(args)-1], "-ldflags=-s -w", "-o", out, args[len(args)-1])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, text)
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
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	machine := Machine{Only: os.Getenv("SKEP_VM_RUN"), Init: []byte("first"), Load: []string{"veth"}, Modules: map[string][]byte{"veth": []byte("module")}, Tests: map[string][]byte{"chain": []byte("test")}}
	cmd := exec.CommandContext(t.Context(), "cpio", "-it", "--quiet")
	cmd.Stdin = strings.NewReader(string(machine.archive()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := "init\nproc\nsys\ndev\nrun\ntmp\nmodules\ntests\ndev/console\nmodules/00-veth.ko\ntests/chain\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}
