package policies_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/policies"
)

// compileBomb is Rego of less than a kilobyte whose types double with each line.
func compileBomb() string {
	var b strings.Builder
	for i := range 30 {
		fmt.Fprintf(&b, "v%d := {\"a\": v%d, \"b\": v%d}\n", i, i+1, i+1)
	}
	b.WriteString("v30 := 1\n\ndeny contains \"x\" if v0.a.b.a == 2\n")
	return b.String()
}

// Evaluation bombs: one doubles a string until there is no memory, one makes a
// product of lists.
const (
	stringBomb = `s0 := concat("", [input.version, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"])
s1 := concat("", [s | some i in numbers.range(1, 4096); s := s0])
s2 := concat("", [s | some i in numbers.range(1, 4096); s := s1])
deny contains "x" if count(s2) == 1`
	productBomb = `deny contains "x" if count([[i, j, k] | some i in numbers.range(1, 1000); some j in numbers.range(1, 1000); some k in numbers.range(1, ` +
		`1000)]) == 1`
)

// newEngine is one of a test's own, which has all the time there is to compile.
func newEngine(t *testing.T, o policies.EngineOptions) *policies.Engine {
	t.Helper()
	own := policies.NewEngine(o)
	policies.Wait(own, patience)
	t.Cleanup(own.Close)
	return own
}

func inTeamB(in *policies.Input) { in.Application.Metadata.Namespace = "team-b" }

// heapOf is how much the heap of this process holds.
func heapOf(t *testing.T) uint64 {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// exploded reports whether an error says of what that it exceeded a limit: that of
// memory, or that of CPU time, which a compiler under the race detector meets first.
func exploded(err error, what string) bool {
	return err != nil && (strings.Contains(err.Error(), what+" exceeded its memory limit of 64 MiB") ||
		strings.Contains(err.Error(), what+" exceeded its time limit of 5s of CPU"))
}

func TestAPolicyThatExplodesWhileItCompilesIsRefused(t *testing.T) {
	before := heapOf(t)
	var wait sync.WaitGroup
	// Policies of another namespace and of the cluster are compiled meanwhile.
	for _, p := range []policies.Policy{policy("b", no, in("team-b")), policy("c", no)} {
		wait.Go(func() {
			if _, err := engine.Compile(t.Context(), []policies.Policy{p}, policies.Options{}); err != nil {
				t.Errorf("beside it: %v", err)
			}
		})
	}
	bomb := policy("bomb", compileBomb(), in("team-a"))
	set, err := engine.Compile(t.Context(), []policies.Policy{bomb, policy("good", no, in("team-b"))}, policies.Options{})
	wait.Wait()
	if !exploded(err, "compile policy team-a/bomb: compiling it") || strings.Contains(err.Error(), "good") {
		t.Fatalf("compile: %v", err)
	}
	if after := heapOf(t); after > before+16<<20 {
		t.Errorf("the heap of this process grew from %d to %d", before, after)
	}
	if d := decide(t, set, input()); d.Allowed() || d.Denied[0].Rule != "team-a/bomb/error" {
		t.Errorf("in its namespace: %+v", d.Denied)
	}
	if d := decide(t, set, input(inTeamB)); len(d.Denied) != 1 || d.Denied[0].Rule != "team-b/good/deny" {
		t.Errorf("in another namespace: %+v", d.Denied)
	}
}

func TestAPolicyThatExplodedIsNotCompiledAgainAtOnce(t *testing.T) {
	clock := &clock{}
	own := newEngine(t, policies.EngineOptions{Now: clock.now})
	ended := func() int { return policies.Ended(own) }
	compile := func(name string) {
		t.Helper()
		_, err := own.Compile(t.Context(), []policies.Policy{policy(name, compileBomb(), in("team-a"))}, policies.Options{})
		if !exploded(err, "compiling it") {
			t.Fatalf("compile: %v", err)
		}
	}
	compile("bomb")
	once := ended()
	compile("bomb")
	if got := ended(); got != once {
		t.Errorf("%d workers were ended, and %d when it was compiled again", once, got)
	}
	clock.pass(time.Hour)
	compile("bomb")
	if got := ended(); got == once {
		t.Error("it is never tried again")
	}
}

func TestAnEvaluationThatExplodesDeniesItsOwnMatch(t *testing.T) {
	for name, rego := range map[string]string{"a string": stringBomb, "a product of lists": productBomb} {
		t.Run(name, func(t *testing.T) {
			own := newEngine(t, policies.EngineOptions{})
			set, err := own.Compile(t.Context(), []policies.Policy{
				policy("bomb", rego, in("team-a")), policy("z", `deny contains "z"`, in("team-a")), policy("b", `warn contains "b"`, in("team-b")),
			}, policies.Options{Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			before := heapOf(t)
			var wait sync.WaitGroup
			for range 4 {
				wait.Go(func() {
					if d := decide(t, set, input(inTeamB)); !d.Allowed() || len(d.Warnings) != 1 {
						t.Errorf("in another namespace: %+v", d)
					}
				})
			}
			d := decide(t, set, input())
			wait.Wait()
			var rules []string
			for _, r := range d.Denied {
				rules = append(rules, r.Rule)
			}
			if fmt.Sprint(rules) != "[team-a/bomb/error team-a/z/deny]" ||
				!strings.Contains(d.Denied[0].Message, "policy team-a/bomb exceeded its memory limit of 64 MiB") {
				t.Errorf("denied: %+v", d.Denied)
			}
			if after := heapOf(t); after > before+16<<20 {
				t.Errorf("the heap of this process grew from %d to %d", before, after)
			}
			ended := policies.Ended(own)
			if again := decide(t, set, input()); len(again.Denied) != 2 || policies.Ended(own) != ended {
				t.Errorf("it is evaluated again at once: %+v", again.Denied)
			}
		})
	}
}

// A tenant's input may be what has a cluster-wide policy explode.
func TestAnApplicationOnWhichAPolicyExplodesIsDeniedAlone(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	set, err := own.Compile(t.Context(), []policies.Policy{
		policy("a", "deny contains \"x\" if {\n input.application.metadata.annotations.bomb == \"yes\"\n count([[i, j, k] | some i in numbers.range(1, 1000); "+
			"some j in numbers.range(1, 1000); some k in numbers.range(1, 1000)]) == 1\n}"),
	}, policies.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	bomb := func(in *policies.Input) { in.Application.Metadata.Annotations = map[string]string{"bomb": "yes"} }
	if d := decide(t, set, input(bomb)); d.Allowed() || !strings.Contains(d.Denied[0].Message, "policy a exceeded its memory limit") {
		t.Errorf("the bomb: %+v", d)
	}
	if d := decide(t, set, input(inTeamB)); !d.Allowed() {
		t.Errorf("another namespace: %+v", d.Denied)
	}
}

func TestATestThatExplodesFails(t *testing.T) {
	before := heapOf(t)
	report, err := engine.Test(t.Context(), folder(map[string]string{
		"a.rego":      "package skep.policy\n\ndeny contains \"x\"\n",
		"a_test.rego": "package skep.policy_test\n\n" + strings.ReplaceAll(productBomb, `deny contains "x" if`, "test_bomb if") + "\n",
	}))
	// A slow machine ends it by the time that a test has.
	late := slices.ContainsFunc(report.Results, func(r policies.TestResult) bool { return r.Name == "test_bomb" && r.Outcome == policies.Errored })
	if !exploded(err, "test policy a: a test of it") && !late {
		t.Errorf("test: %v, %+v", err, report.Results)
	}
	_, err = engine.Test(t.Context(), folder(map[string]string{"a.rego": "package skep.policy\n\n" + compileBomb()}))
	if !exploded(err, "compile policy a: compiling it") {
		t.Errorf("compile: %v", err)
	}
	if after := heapOf(t); after > before+16<<20 {
		t.Errorf("the heap of this process grew from %d to %d", before, after)
	}
}

// A namespace of which many policies exceed their limits has no more of the time of
// others than two of them take.
func TestPoliciesOfOneNamespaceHaveNoMoreThanTheirTime(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	var list []policies.Policy
	for i := range 6 {
		list = append(list, policy(fmt.Sprint("bomb-", i), productBomb, in("team-a")))
	}
	set, err := own.Compile(t.Context(), list, policies.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	d := decide(t, set, input())
	skipped := 0
	for _, r := range d.Denied {
		if strings.Contains(r.Message, "was not evaluated") {
			skipped++
		}
	}
	if len(d.Denied) != 6 || skipped != 4 {
		t.Errorf("%d of %d were not evaluated: %+v", skipped, len(d.Denied), d.Denied)
	}
}

// clock is one that the test sets.
type clock struct {
	mu   sync.Mutex
	past time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Unix(1e9, 0).Add(c.past)
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.past += d
}

func TestAnEngineThatIsClosedDecidesNothing(t *testing.T) {
	own := policies.NewEngine(policies.EngineOptions{})
	set, err := own.Compile(t.Context(), nil, policies.Options{})
	if err != nil {
		t.Fatal(err)
	}
	own.Close()
	if _, err := set.Decide(t.Context(), input()); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("error: %v", err)
	}
}

func TestMorePoliciesAreAskedThanAWorkerKeeps(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	policies.Keep(own, 1<<20)
	var list []policies.Policy
	for i := range 40 {
		list = append(list, policy(fmt.Sprint("p", i), fmt.Sprintf("deny contains \"no %d\"", i)))
	}
	set, err := own.Compile(t.Context(), list, policies.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if d := decide(t, set, input()); len(d.Denied) != len(list) {
			t.Errorf("%d of %d policies deny: %+v", len(d.Denied), len(list), d.Denied)
		}
	}
	if ended := policies.Ended(own); ended != 0 {
		t.Errorf("%d workers were ended", ended)
	}
}

// slowToCompile is Rego whose compile takes a processor half a second or more: the compiler looks for an order of its lines.
func slowToCompile() string {
	var b strings.Builder
	b.WriteString("deny contains \"x\" if {\n\tinput.version == \"no\"\n")
	const lines = 150
	for i := range lines {
		fmt.Fprintf(&b, "\tx%d = x%d + 1\n", i, i+1)
	}
	fmt.Fprintf(&b, "\tx%d = count(input.version)\n\tx0 == -1\n}\n", lines)
	return b.String()
}

// TestACompileHasItsOwnTime: what a policy may take to be evaluated bounds no compile of the next one in the same worker.
func TestACompileHasItsOwnTime(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	list := []policies.Policy{policy("cheap", no), policy("slow", slowToCompile())}
	began := time.Now()
	set, err := own.Compile(t.Context(), list, policies.Options{Timeout: 50 * time.Millisecond})
	t.Logf("compiled in %s", time.Since(began))
	if err != nil {
		t.Fatal(err)
	}
	if d := decide(t, set, input()); ids(d.Denied) != "cheap/deny" || policies.Ended(own) != 0 {
		t.Errorf("%+v, and %d workers ended", d.Denied, policies.Ended(own))
	}
}
