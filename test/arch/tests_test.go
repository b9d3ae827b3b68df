package arch_test

import (
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/suite/lists"
)

// doors are the ways of a test file into the kernel.
var doors = regexp.MustCompile(`\b(ebpf\.New(Program|Map|Collection)\w*|link\.(Attach|Kprobe|Tracepoint|OpenExecutable)\w*|` +
	`netlink\.(Link|Addr|Route|Qdisc|Filter)(Add|Del|Set)\w*|(unix|syscall)\.(Mount|Unshare|Setns)|leaks\.NetworkNamespace|need\.Kernel|agent\.New|world\.New)\(`)

// mains are the ways of TestMain into namespaces of its own.
var mains = regexp.MustCompile(`\b(leaks\.(Main|Run|Apart|M\{)|tasks\.Main)`)

// ownNamespaces are packages that work with the kernel in another way, and why.
func ownNamespaces() map[string]string {
	return map[string]string{
		"test/e2e":           "a whole node has namespaces of its own, those of processes too",
		"test/harness/leaks": "it is what gives them to others",
	}
}

func TestPackagesThatWorkWithTheKernelAreIsolated(t *testing.T) {
	found, own := 0, ownNamespaces()
	for _, dir := range folders(t) {
		into, isolated := false, false
		files, _ := filepath.Glob(filepath.Join(root(t), dir, "*_test.go"))
		for _, file := range files {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			into, isolated = into || doors.Match(body), isolated || mains.Match(body)
		}
		switch _, known := own[dir]; {
		case known && (!into || isolated):
			t.Errorf("%s needs no row of its own", dir)
		case into && !isolated && !known && dir != "test/arch":
			t.Errorf("%s works with the kernel: its TestMain calls leaks.Main, which gives it the file systems and finds what it leaves", dir)
		}
		if into {
			found++
		}
	}
	if found < 10 {
		t.Errorf("only %d packages work with the kernel: the pattern finds too few", found)
	}
}

// starts is how a package starts goroutines.
var starts = regexp.MustCompile(`(?m)^\s*go \S|\.Go\(`)

// shares is how it shares memory between goroutines, its own or those of others.
var shares = regexp.MustCompile(`(?m)^\s*go \S|\.Go\(|\bsync\.|\batomic\.|\bchan\b`)

// runs is how a test runs a whole agent, which is concurrent.
var runs = regexp.MustCompile(`\bworld\.New\(`)

// notRaced are folders whose packages start goroutines that the race detector need not see each
// time, and why.
func notRaced() map[string]string {
	return map[string]string{
		"cmd":     "commands: what runs at once is below them",
		"schemas": "one goroutine reads what a child process writes",
		"test":    "nothing of it runs in production",
	}
}

// TestConcurrentPackagesAreRaced, and no others: a package that is renamed must not leave the race detector in
// silence.
func TestConcurrentPackagesAreRaced(t *testing.T) {
	tested := func(dir string) bool {
		files, _ := filepath.Glob(filepath.Join(root(t), dir, "*_test.go"))
		return len(files) > 0
	}
	for _, row := range slices.Concat(lists.Concurrent(), lists.Longest(), lists.Pure()) {
		if !tested(row) {
			t.Errorf("%s has no tests: the list of test/suite/lists is stale", row)
		}
	}
	for _, dir := range folders(t) {
		says := func(what *regexp.Regexp, inTests bool) bool {
			files, _ := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
			return slices.ContainsFunc(files, func(file string) bool {
				body, err := os.ReadFile(file)
				return err == nil && strings.HasSuffix(file, "_test.go") == inTests && what.Match(body)
			})
		}
		runsAnAgent := says(runs, true)
		top, _, _ := strings.Cut(dir, "/")
		_, isExempt := notRaced()[top]
		switch isRaced := slices.Contains(lists.Concurrent(), dir); {
		case isRaced && !runsAnAgent && !says(shares, false):
			t.Errorf("%s starts no goroutine, shares nothing and runs no agent: take it out of lists.Concurrent", dir)
		case !isRaced && !isExempt && tested(dir) && (runsAnAgent || says(starts, false)):
			t.Errorf("%s starts goroutines, or its tests run an agent: name the package in lists.Concurrent, for the race detector", dir)
		}
	}
}

// TestPackagesWithAControlPlaneAreListed, so that they are left out where a machine does not know localhost.
func TestPackagesWithAControlPlaneAreListed(t *testing.T) {
	var found []string
	for _, dir := range folders(t) {
		files, _ := filepath.Glob(filepath.Join(root(t), dir, "*_test.go"))
		if slices.ContainsFunc(files, func(file string) bool {
			body, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(body), "controlplane.Start"+"(")
		}) {
			found = append(found, dir)
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, lists.ControlPlanes()) {
		t.Errorf("lists.ControlPlanes has %v, and %v start one", lists.ControlPlanes(), found)
	}
}

// outside are packages by which a test depends on more than files of the module: on the
// kernel, the network, other programs or the machine's rights.
func outside() []string {
	return []string{"os/exec", "net", "net/http", "net/http/httptest", "os/user", "syscall", "golang.org/x/sys/unix", "github.com/cilium/ebpf/link",
		"github.com/cilium/ebpf/features", "github.com/vishvananda/netlink"}
}

// TestPurePackagesReadFilesAlone: what a result depends on is all that go test's cache knows.
func TestPurePackagesReadFilesAlone(t *testing.T) {
	for _, dir := range lists.Pure() {
		seen := map[string]bool{}
		for _, path := range importsOf(t, dir, true, seen) {
			if slices.Contains(outside(), path) {
				t.Errorf("%s, whose results may come from a cache, reaches %s", dir, path)
			}
		}
	}
}

// importsOf returns what a package of the module and those of the module that it imports import
// of others, with those of its tests.
func importsOf(t *testing.T, dir string, tests bool, seen map[string]bool) []string {
	t.Helper()
	if seen[dir] {
		return nil
	}
	seen[dir] = true
	p, err := build.Default.ImportDir(filepath.Join(root(t), dir), 0)
	if noGo := new(build.NoGoError); err != nil && !errors.As(err, &noGo) {
		t.Fatal(err)
	}
	imports := p.Imports
	if tests {
		imports = slices.Concat(imports, p.TestImports, p.XTestImports)
	}
	var found []string
	for _, path := range imports {
		if ours, is := ownPackage(path); is {
			found = append(found, importsOf(t, ours, false, seen)...)
		} else {
			found = append(found, path)
		}
	}
	return found
}

// folders are those of the module that hold Go files.
func folders(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root(t) && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case filepath.Ext(path) == ".go":
			dir, err := filepath.Rel(root(t), filepath.Dir(path))
			if err == nil && !slices.Contains(found, dir) {
				found = append(found, dir)
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestNoChildEndsWithAThread holds that nothing asks the kernel to kill a child with its parent from a thread that may end
// before; see test/harness/child.
func TestNoChildEndsWithAThread(t *testing.T) {
	found := 0
	for _, dir := range folders(t) {
		files, _ := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
		for _, file := range files {
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(body), "Pdeathsig:") && dir != "test/arch" {
				found++
				if !strings.Contains(string(body), "runtime.LockOSThread()") {
					t.Errorf("%s sets Pdeathsig: start the child by child.Start, or keep the thread that starts it", file)
				}
			}
		}
	}
	if found == 0 {
		t.Error("the pattern finds nothing")
	}
}
