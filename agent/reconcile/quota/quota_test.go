package quota_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/agent/reconcile/quota"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs the cases of testdata. The first line has the limits: programs of a namespace, of all, pages of a namespace. Then each
// `grant` has an application, and its programs and pages, and `shares` is what namespaces have. Each
// other one is `runs`, `takes` or `ends`, an application, and its targets: a name, or file@offset.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		var limits quota.Limits
		first, rest, _ := strings.Cut(string(a.Files[0].Data), "\n")
		if _, err := fmt.Sscan(first, &limits.NamespacePrograms, &limits.Programs, &limits.NamespacePages); err != nil {
			t.Fatal(err)
		}
		grants := map[string]intent.Grant{}
		l, out := quota.New(limits, grants), ""
		for line := range strings.Lines(rest) {
			f := strings.Fields(line)
			if f[0] == "shares" {
				for _, s := range slices.SortedFunc(maps.Values(l.Shares()), func(x, y v1alpha1.NamespaceShare) int { return cmp.Compare(x.Namespace, y.Namespace) }) {
					out += fmt.Sprintf("%s: %d of %d programs, %d of %d pages, %d left out\n",
						s.Namespace, s.Programs, s.ProgramsLimit, s.TextPages, s.TextPagesLimit, s.LeftOut)
				}
				continue
			}
			namespace, name, _ := strings.Cut(f[1], "/")
			of := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name}
			switch f[0] {
			case "grant":
				grants[f[1]] = intent.Grant{TargetPrograms: number(t, f[2]), TextPages: number(t, f[3])}
			case "runs":
				l.Run(of, f[1], useOf(t, f[2:]))
			case "keeps":
				l.Add(of, f[1], useOf(t, f[2:]))
			case "ends", "chooses":
				l.Release(f[1])
			case "chose":
				l.Settle(f[1])
			case "takes":
				answer := "has room"
				if err := l.Take(of, f[1], useOf(t, f[2:])); err != nil {
					answer = err.Error()
				}
				out += fmt.Sprintf("%s: %s\n", strings.TrimSpace(line), answer)
			default:
				t.Fatalf("line %q", line)
			}
		}
		return []txtar.File{{Name: "answers", Data: []byte(out)}}
	})
}

func number(t *testing.T, word string) int {
	t.Helper()
	n, err := strconv.Atoi(word)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// useOf reads targets. A range of so many pages is file@first*pages.
func useOf(t *testing.T, words []string) quota.Use {
	t.Helper()
	var u quota.Use
	for _, word := range words {
		file, at, isFile := strings.Cut(word, "@")
		if in, isOwn := strings.CutPrefix(word, "own:"); isOwn {
			u.Binary = "/" + in
			u.Targets = append(u.Targets, quota.Target{Name: "cgroup/bind4", Own: uint64(len(in))})
			continue
		}
		if !isFile {
			u.Targets = append(u.Targets, quota.Target{Name: strings.ReplaceAll(word, "_", " ")})
			continue
		}
		u.Binary = "/lib/" + file
		first, pages, isRange := strings.Cut(at, "*")
		offset, err := strconv.ParseUint(first, 0, 64)
		if err != nil {
			// The place of a symbol is not known.
			u.Targets = append(u.Targets, quota.Target{File: file, Name: at})
			continue
		}
		n := 1
		if isRange {
			n = number(t, pages)
		}
		for i := range n {
			u.Targets = append(u.Targets, quota.Target{File: file, Offset: offset + uint64(i)*4096})
		}
	}
	return u
}

// TestWhatIsReleasedLeavesNothing: a ledger that everything was taken from has room as a new one has.
func TestWhatIsReleasedLeavesNothing(t *testing.T) {
	l := quota.New(quota.Limits{NamespacePrograms: 1, Programs: 1, NamespacePages: 1}, nil)
	of := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	for range 3 {
		l.Add(of, "a", useOf(t, []string{"libc@0x1000*9"}))
		l.Add(of, "a", useOf(t, []string{"libc@0x1000*9", "tracepoint_sys"}))
		l.Release("a")
		if err := l.Take(of, "b", useOf(t, []string{"libc@0x5000", "tracepoint_sys"})); err != nil {
			t.Error(err)
		}
		if err := l.Take(of, "c", useOf(t, []string{"tracepoint_sys"})); err == nil {
			t.Error("two run where one may")
		}
		if is, want := l.Counts(), (quota.Counts{Programs: 1, Pages: 1, LeftOut: 1}); is != want {
			t.Errorf("it counts %+v, want %+v", is, want)
		}
		l.Release("b")
		l.Release("c")
		if is := l.Counts(); is != (quota.Counts{}) {
			t.Errorf("it counts %+v of nothing", is)
		}
	}
}

// TestANamespaceHasSoManyTargets: links for thousands of functions of files of its own, in few pages each, are few as places of a node.
func TestANamespaceHasSoManyTargets(t *testing.T) {
	l := quota.New(quota.Limits{NamespacePrograms: 9, Programs: 9, NamespacePages: 64}, nil)
	places := make([]uint64, v1alpha1.MaxFunctions)
	for i := range places {
		places[i] = uint64(i)
	}
	team, other := v1alpha1.Identity{Namespace: "team-a", Name: "a"}, v1alpha1.Identity{Namespace: "team-b", Name: "b"}
	take := func(of v1alpha1.Identity, uid, file string) error {
		return l.Take(of, uid, quota.Use{File: file, Places: places, Binary: "/" + file})
	}
	l.Run(team, "a", quota.Use{File: "a", Places: places})
	if err := take(team, "b", "b"); err != nil {
		t.Error(err)
	}
	want := "/c: programs of namespace team-a at functions and places: 20000 of 20000, and 10000 more are asked for; " +
		"choose fewer functions, or use a ClusterBpfApplication"
	if err := take(team, "b", "c"); err == nil || err.Error() != want {
		t.Errorf("Take = %v, want %s", err, want)
	}
	if err := take(other, "c", "c"); err != nil {
		t.Error(err)
	}
	l.Release("a")
	if err := take(team, "a", "c"); err != nil {
		t.Error(err)
	}
	// What runs counts beside it.
	l.Settle("a")
	l.Release("b")
	if err := take(team, "b", "b"); err == nil {
		t.Error("what runs counts for nothing")
	}
}

func TestLimitsThatLetNothingRunAreRejected(t *testing.T) {
	if err := (quota.Limits{}).OrDefault().Validate(); err != nil {
		t.Error(err)
	}
	for _, l := range []quota.Limits{{NamespacePrograms: -1}, {Programs: -1}, {NamespacePages: -1}} {
		if err := l.OrDefault().Validate(); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
}

// BenchmarkLedger takes and releases what a namespace has at most: one target for each of its places.
func BenchmarkLedger(b *testing.B) {
	of := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "a"}
	for _, places := range []int{2000, 8000, 32000} {
		b.Run(fmt.Sprint(places), func(b *testing.B) {
			for b.Loop() {
				l := quota.New(quota.Default(), nil)
				for i := range places {
					use := quota.Use{Targets: []quota.Target{{Name: "function f" + strconv.Itoa(i/8)}}}
					if err := l.Take(of, "a", use); err != nil && i%8 < 4 {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
