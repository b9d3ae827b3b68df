package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/test/harness/leaks"
)

var update = flag.Bool("update", false, "write what is reported into the cases")

// TestReport reads what go test -json printed, and compares what a person is shown. A case has
// the events of one call, those of a second try after "again", and the output.
func TestReport(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			r := newReport(&out, strings.Fields(flagsOf(a)))
			var want string
			for _, f := range a.Files {
				switch f.Name {
				case "events":
					err = r.read(bytes.NewReader(f.Data))
				case "again":
					r.forget(strings.Fields(strings.TrimSpace(string(a.Comment))))
					err = r.read(bytes.NewReader(f.Data))
				case "output":
					want = string(f.Data)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.summary([]string{"*** NO CLUSTER ***"})
			if *update {
				a.Files[len(a.Files)-1].Data = out.Bytes()
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Error(diff)
			}
			if passed := !strings.Contains(want, "FAILED:"); r.passed() != passed {
				t.Errorf("passed = %v", r.passed())
			}
		})
	}
}

// flagsOf are those of a case: the rest of the line of its comment that begins so.
func flagsOf(a *txtar.Archive) string {
	_, flags, _ := strings.Cut(string(a.Comment), "flags:")
	line, _, _ := strings.Cut(flags, "\n")
	return line
}

// TestAllPackagesAreRun, those of the module that readers of maps link too.
func TestAllPackagesAreRun(t *testing.T) {
	all, err := list(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"skepmap", "text", "test/suite"} {
		if !slices.Contains(all, module+name) {
			t.Errorf("%s is not among the %d packages", name, len(all))
		}
	}
}

// TestPlan decides for machines.
func TestPlan(t *testing.T) {
	all := []string{module + "test/e2e", module + "test/kernel", module + "test/integration", module + "agent", module + "controller/policy", module + "text"}
	whole := machine{root: true, race: true, kernels: true, cluster: true, containerd: true, flux: true, chromium: true}
	auto := options{race: "none", e2e: "auto", gitops: "auto", atOnce: 3}
	for sentence, c := range map[string]struct {
		o       options
		m       machine
		env     []string
		steps   int
		raced   []string
		leftOut []string
	}{
		"a machine with all there is": {auto, whole, []string{"SKEP_E2E=1", "SKEP_GITOPS=1"}, 2, nil, nil},
		"no root":                     {auto, machine{race: true, cluster: true}, nil, 2, nil, []string{"NOT ROOT"}},
		"a kernel that hangs": {auto, machine{root: true, race: true, cluster: true, containerd: true, flux: true, hangs: true},
			[]string{leaks.LeftOut}, 2, nil, []string{"THE KERNEL HANGS"}},
		"a container": {auto, machine{root: true, race: true, cluster: true, containerd: true, flux: true, contained: true}, nil, 2, nil,
			[]string{"NO NAMESPACES"}},
		"what is not wanted":    {options{race: "none", e2e: "no", gitops: "no"}, whole, nil, 2, nil, []string{"E2E=no", "GITOPS=no"}},
		"root and nothing else": {auto, machine{root: true}, nil, 2, nil, []string{"NO CLUSTER", "NO FLUX", "NO CHROMIUM"}},
		"no containerd 2": {auto, machine{root: true, cluster: true, flux: true, chromium: true}, []string{"SKEP_E2E=1", "SKEP_GITOPS=1"}, 2, nil,
			[]string{"NO CONTAINERD 2"}},
		"CI": {options{race: "ours", kernels: "6.12", e2e: "auto", gitops: "auto"}, whole, []string{"SKEP_VM_KERNELS=6.12", "SKEP_E2E=1", "SKEP_GITOPS=1"}, 3,
			[]string{"agent", "controller/policy"}, nil},
		"kernels without qemu": {options{race: "none", kernels: "own,6.12", e2e: "no", gitops: "no"}, machine{root: true, race: true, chromium: true},
			[]string{"SKEP_VM_KERNELS=own"}, 2, nil,
			[]string{"NO VIRTUAL MACHINES", "E2E=no", "GITOPS=no"}},
		"the own kernel without qemu": {options{race: "none", kernels: "own", e2e: "auto", gitops: "auto"}, machine{},
			[]string{"SKEP_VM_KERNELS=own"}, 2, nil, []string{"NOT ROOT"}},
		"a machine without localhost": {auto, machine{nameless: true}, nil, 2, nil, []string{"NOT ROOT", "NO NAME localhost"}},
		"no compiler for the race detector": {options{race: "all", e2e: "no", gitops: "no"}, machine{root: true, chromium: true}, nil, 2, nil,
			[]string{"E2E=no", "GITOPS=no", "NO RACE DETECTOR"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			p := newPlan(c.o, c.m, all)
			if diff := cmp.Diff(append([]string{""}, c.env...), p.steps[0].env); diff != "" {
				t.Error(diff)
			}
			var raced []string
			for _, s := range p.steps {
				if slices.Contains(s.args, "-race") {
					for _, name := range s.packages {
						raced = append(raced, strings.TrimPrefix(name, module))
					}
				}
			}
			if diff := cmp.Diff(c.raced, raced); diff != "" {
				t.Error(diff)
			}
			if len(p.steps) != c.steps {
				t.Errorf("%d steps, want %d: %v", len(p.steps), c.steps, p.steps)
			}
			if !slices.EqualFunc(p.leftOut, c.leftOut, strings.Contains) {
				t.Errorf("left out %q, want %q", p.leftOut, c.leftOut)
			}
		})
	}
}

// TestAMissingBrowserIsSaid, where packages need it.
func TestAMissingBrowserIsSaid(t *testing.T) {
	said := func(chromium bool, packages ...string) bool {
		p := newPlan(options{race: "none"}, machine{root: true, chromium: chromium}, packages)
		return slices.ContainsFunc(p.leftOut, func(line string) bool { return strings.Contains(line, "apt-get install chromium") })
	}
	if !said(false, module+"test/ui") || !said(false, module+"test/integration") || said(true, module+"test/ui") || said(false, module+"text") {
		t.Error("a machine without chromium says so where a browser is needed, and nowhere else")
	}
}

// TestGoTestThatEnds has another program in the place of go, which prints events and ends.
func TestGoTestThatEnds(t *testing.T) {
	const pass = `{"Action":"pass","Package":"a","Elapsed":1}`
	for sentence, c := range map[string]struct {
		script string
		// err is what the run itself fails for; passed is whether the packages passed.
		err    string
		passed bool
	}{
		"every package passed":            {`echo '` + pass + `' '` + strings.ReplaceAll(pass, `"a"`, `"b"`) + `' | sed 's/} {/}\n{/'`, "", true},
		"a package failed":                {`echo '` + pass + `'; echo '{"Action":"fail","Package":"b"}'; exit 1`, "", false},
		"it ended before all had run":     {`echo '` + pass + `'; exit 2`, "", false},
		"nothing ran, as by a wrong flag": {`exit 2`, "exit status 2", false},
		"it was killed":                   {`echo '` + pass + `'; kill -9 $$`, "killed", false},
	} {
		t.Run(sentence, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			var out bytes.Buffer
			r := newReport(&out, nil)
			err := r.goTest(t.Context(), step{}, []string{"a", "b"})
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("error %v, want %q", err, c.err)
			}
			if passed := err == nil && r.passed(); passed != c.passed {
				t.Errorf("passed = %v: %s", passed, out.String())
			}
		})
	}
}

func TestTheVariablesOfMakeTestWin(t *testing.T) {
	got := withoutVariables([]string{"SKEP_E2E=1", "HOME=/root", "SKEP_VM_KERNELS=own", "SKEP_GITOPS=", "SKEP_E2E_MORE=1"})
	if diff := cmp.Diff([]string{"HOME=/root", "SKEP_E2E_MORE=1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestACommandLineThatNobodyMeans(t *testing.T) {
	for _, args := range [][]string{{"-race=some"}, {"-e2e=yes"}, {"-nothing"}} {
		if _, err := parse(args); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
