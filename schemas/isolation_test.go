package schemas_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/await"
)

// good is a definition that must survive whatever stands beside it.
const good = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: good}
spec: {bytecode: {image: x}, programs: [{name: f}]}
`

// source makes a folder out of a txtar archive.
func source(t *testing.T, archive string) string {
	t.Helper()
	dir, _ := unpack(t, txtar.Parse([]byte(archive)), "")
	return dir
}

// load loads a folder and fails the test where that is not possible at all.
func load(t *testing.T, o schemas.Options) schemas.Definitions {
	t.Helper()
	d, err := schemas.Load(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// hasProblem reports whether one problem is in file and says text.
func hasProblem(d schemas.Definitions, file, text string) bool {
	for _, p := range d.Problems {
		if p.Source.File == file && strings.Contains(p.Error(), text) {
			return true
		}
	}
	return false
}

// loop is CUE whose evaluation does not end in this century, and needs no
// memory for it.
const loop = `package a

import "list"

for a in list.Range(0, 100000, 1)
for b in list.Range(0, 100000, 1)
for c in list.Range(0, 100000, 1)
if a+b+c < 0 {
	"x\(a)\(b)\(c)": 1
}
`

func TestUntrustedSourceBreaksOnlyItself(t *testing.T) {
	app := func(annotation string) string {
		return `package a

import ("strings", "skep.dev/schemas")

_filler: strings.Repeat("x", 1024)
app: schemas.#ClusterBpfApplication & {
	metadata: {name: "a", annotations: a: ` + annotation + `}
	spec: {bytecode: image: "x", programs: [{name: "f"}]}
}
`
	}
	for name, c := range map[string]struct {
		cue, says string
		timeout   time.Duration
		memory    int64
	}{
		"a loop that never ends is killed":          {loop, "longer than 2s", 2 * time.Second, 0},
		"100 MB of output are refused":              {app(`strings.Repeat(_filler, 100*1024)`), "more than 16 MiB", time.Minute, 1 << 30},
		"a list that eats the memory is refused":    {"package a\nimport \"list\"\nx: list.Range(0, 1000000000, 1)\n", "of memory", time.Minute, 128 << 20},
		"a string that eats the memory is refused":  {app(`strings.Repeat(strings.Repeat(_filler, 1000000), 1000)`), "of memory", time.Minute, 128 << 20},
		"a definition that contains itself is told": {"package a\n#a: {n: int, next: #a & {n: n + 1}}\nx: #a & {n: 0}\n", "structural cycle", time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := source(t, "-- a/a.cue --\n"+c.cue+"-- b.yaml --\n"+good)
			d := load(t, schemas.Options{Root: dir, Timeout: c.timeout, MemoryBytes: c.memory})
			if len(d.Applications) != 1 || d.Applications[0].Application.GetName() != "good" {
				t.Errorf("the good definition is lost: %v", d.Applications)
			}
			if len(d.Problems) == 0 || !strings.HasPrefix(d.Problems[0].Source.File, "a") || !strings.Contains(d.Problems[0].Message, c.says) {
				t.Errorf("problems: %v; want %q", d.Problems, c.says)
			}
		})
	}
}

func TestManyBrokenPackagesEndSoon(t *testing.T) {
	var ar strings.Builder
	for i := range 12 {
		fmt.Fprintf(&ar, "-- p%02d/a.cue --\n%s", i, loop)
	}
	d := load(t, schemas.Options{Root: source(t, ar.String()), Timeout: 200 * time.Millisecond})
	if len(d.Problems) != 12 || !hasProblem(d, "p11", "not rendered, since 8 others") {
		t.Errorf("problems: %v", d.Problems)
	}
}

func TestSourceReadsNothingOutsideOfItself(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.json")
	write(t, secret, `{"secret": "hunter2"}`)
	outside := filepath.Dir(secret)
	embed := func(attr string) string {
		return "@extern(embed)\n\npackage a\n\nimport \"skep.dev/schemas\"\n\napp: schemas.#ClusterBpfApplication & {\n" +
			"\tmetadata: {name: \"a\", annotations: a: \"\\(_e)\"}\n\tspec: {bytecode: image: \"x\", programs: [{name: \"f\"}]}\n}\n_e: _ @embed(" + attr + ")\n"
	}
	for name, c := range map[string]struct{ in, link, cue, extra, says string }{
		"through a link to a file":   {link: "in.json", cue: embed("file=in.json, type=text"), says: "no such file"},
		"through a link to a folder": {link: "in", cue: embed("file=in/secret.json, type=text"), says: "no such file"},
		"through a glob over a link": {link: "in", cue: embed("glob=in/*.json, type=text"), says: "no matches"},
		"with a path to the parent":  {cue: embed(`file="../secret.json", type=text`), says: "parent directory"},
		"with an absolute path":      {cue: embed(`file="` + secret + `", type=text`), says: "only relative files"},
		"of a module that replaces one": {
			cue: "package a\nimport \"evil.dev/x@v0\"\na: x.secret\n",
			extra: "-- cue.mod/module.cue --\nmodule: \"a.dev/a@v0\"\nlanguage: version: \"v0.17.0\"\ndeps: \"evil.dev/x@v0\": v: " +
				"\"v0.0.1\"\n-- cue.mod/local-module.cue --\ndeps: \"evil.dev/x@v0\": replaceWith: \"" + outside + "\"\n", says: "would have to be fetched",
		},
		"of a module inside that replaces one": {
			in: "sub/", cue: "package a\nimport \"evil.dev/x@v0\"\na: x.secret\n",
			extra: "-- sub/cue.mod/module.cue --\nmodule: \"a.dev/a@v0\"\nlanguage: version: \"v0.17.0\"\ndeps: \"evil.dev/x@v0\": v: " +
				"\"v0.0.1\"\n-- sub/cue.mod/local-module.cue --\ndeps: \"evil.dev/x@v0\": replaceWith: \"" + outside + "\"\n", says: "would have to be fetched",
		},
		"of a module in a registry": {
			cue:   "package a\nimport \"evil.dev/x@v0\"\na: x.secret\n",
			extra: "-- cue.mod/module.cue --\nmodule: \"a.dev/a@v0\"\nlanguage: version: \"v0.14.0\"\ndeps: \"evil.dev/x@v0\": v: \"v0.0.1\"\n",
			says:  "would have to be fetched",
		},
		"with a folder the loader makes up": {cue: "package a\nimport \"source.skep.dev/loose/../../etc\"\na: etc.x\n", says: "malformed import path"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := source(t, "-- "+c.in+"a.cue --\n"+c.cue+c.extra+"-- b/b.yaml --\n"+good)
			if c.link != "" {
				target := secret
				if c.link == "in" {
					target = outside
				}
				if err := os.Symlink(target, filepath.Join(dir, c.link)); err != nil {
					t.Fatal(err)
				}
			}
			d := load(t, schemas.Options{Root: dir})
			for _, p := range d.Problems {
				if strings.Contains(p.Error(), "hunter2") || strings.Contains(p.Error(), dir) {
					t.Errorf("the problem tells too much: %v", p)
				}
			}
			if !hasProblem(d, c.in+"a.cue", c.says) {
				t.Errorf("problems: %v; want %q", d.Problems, c.says)
			}
			if len(d.Applications) != 1 {
				t.Errorf("applications: %v", d.Applications)
			}
		})
	}
}

func TestEmbedWithinTheSourceWorks(t *testing.T) {
	dir := source(t, `
-- a.cue --
@extern(embed)

package a

import "skep.dev/schemas"

_limits: _ @embed(file=data/limits.json)

app: schemas.#ClusterBpfApplication & {
	metadata: name: "a"
	spec: {bytecode: image: "x", programs: [{name: "f"}], variables: _limits}
}
-- data/limits.json --
{"rate": 18446744073709551615}
`)
	d := load(t, schemas.Options{Root: dir})
	if len(d.Problems) != 0 || len(d.Applications) != 1 {
		t.Fatalf("%v %v", d.Applications, d.Problems)
	}
	if got := string(d.Applications[0].Application.Body().Variables["rate"].Raw); got != `"18446744073709551615"` {
		t.Errorf("rate is %s", got)
	}
}

func TestLinksAndDevicesAreToldAndNotRead(t *testing.T) {
	dir := source(t, "-- good.yaml --\n"+good)
	if err := os.Symlink("good.yaml", filepath.Join(dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "large.yaml"), "# skep.dev/\n"+strings.Repeat("#\n", 3<<20))
	d := load(t, schemas.Options{Root: dir})
	for file, says := range map[string]string{"link.yaml": "a link", "pipe.yaml": "a device", "large.yaml": "larger than 4 MiB"} {
		if !hasProblem(d, file, says) {
			t.Errorf("%s: problems: %v", file, d.Problems)
		}
	}
	if len(d.Applications) != 1 || len(d.Problems) != 3 {
		t.Errorf("%v %v", d.Applications, d.Problems)
	}
}

func TestProblemsCarryNothingATerminalActsOn(t *testing.T) {
	dir := source(t, "-- a.cue --\n"+`package a

x: error("\u001b[31mred\u001b[0m")
app: {
	apiVersion: "skep.dev/v1alpha1"
	kind: "BpfSigner"
	metadata: {name: "\u001b[31m", "\u001b[2J": 1}
}
odd: {apiVersion: "skep.dev/v1alpha1", kind: "\u0007"}
`)
	write(t, filepath.Join(dir, "\x1b[2J.yaml"), good)
	d := load(t, schemas.Options{Root: dir})
	if len(d.Problems) < 4 || len(d.Applications) > 0 {
		t.Errorf("%v %v", d.Applications, d.Problems)
	}
	for _, p := range d.Problems {
		if strings.ContainsFunc(p.Error()+p.Field, unicode.IsControl) {
			t.Errorf("%q", p.Error())
		}
	}
}

func TestSourceOverItsBoundsIsAnError(t *testing.T) {
	dir := t.TempDir()
	for i := range 9 {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.json", i)), strings.Repeat(" ", 4<<20))
	}
	if _, err := schemas.Load(t.Context(), schemas.Options{Root: dir}); err == nil || !strings.Contains(err.Error(), "32 MiB") {
		t.Errorf("error: %v", err)
	}
	write(t, filepath.Join(dir, "apps", "good.yaml"), good)
	if d := load(t, schemas.Options{Root: dir, Path: "apps"}); len(d.Applications) != 1 || len(d.Problems) > 0 {
		t.Errorf("what lies around the path counts: %v, %v", d.Applications, d.Problems)
	}
	for i := range 9 {
		write(t, filepath.Join(dir, "lib", fmt.Sprintf("%d.cue", i)), strings.Repeat(" ", 4<<20))
	}
	if _, err := schemas.Load(t.Context(), schemas.Options{Root: dir, Path: "apps"}); err == nil || !strings.Contains(err.Error(), "outside of apps") {
		t.Errorf("error: %v", err)
	}
}

func TestCallerThatGivesUpKillsTheRenderer(t *testing.T) {
	dir := source(t, "-- a.cue --\n"+loop)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := schemas.Load(ctx, schemas.Options{Root: dir})
	if err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
		t.Errorf("error: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if left := children(t, os.Getpid()); len(left) != 0 {
		t.Errorf("renderers %v are left", left)
	}
}

func TestRendererDiesWithItsParent(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{parentVariable + "=" + source(t, "-- a.cue --\n"+loop)}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var renderer int
	waitFor(t, "the renderer to start", func() bool {
		for _, pid := range children(t, cmd.Process.Pid) {
			// Before its exec the child still is its parent's copy.
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.HasPrefix(string(args), "skep-render") {
				renderer = pid
			}
		}
		return renderer != 0
	})
	t.Cleanup(func() { _ = syscall.Kill(renderer, syscall.SIGKILL) }) // Only where the test failed is it still there.
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // It says that it was killed.
	waitFor(t, "the renderer to end", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", renderer))
		// It may be left to an init that does not collect it.
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// patience is how long a condition may take on a busy machine.
const patience = 3 * time.Minute

// waitFor fails the test where a condition does not come true.
func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	await.True(t, what, patience, done)
}

// children are the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // It ended while we looked.
		}
		// The command's name stands in brackets and may hold anything.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if fields[1] != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, child)
	}
	return found
}

func TestPathOutsideOfTheSourceIsAnError(t *testing.T) {
	dir := source(t, "-- good.yaml --\n"+good+"-- notes.md --\nskep.dev/\n")
	if err := os.Symlink("/etc", filepath.Join(dir, "etc")); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"../x": "outside of the source", "/etc": "outside of the source", "gone": "no such file",
		"notes.md": "neither .cue", "etc": "links are not followed",
	} {
		if _, err := schemas.Load(t.Context(), schemas.Options{Root: dir, Path: path}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", path, err, says)
		}
	}
	if _, err := schemas.Load(t.Context(), schemas.Options{}); err == nil {
		t.Error("no root is no error")
	}
}
