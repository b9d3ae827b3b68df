package admission

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// explodes is Rego of less than a kilobyte whose types double with each line.
func explodes() string {
	var b strings.Builder
	b.WriteString("package skep.policy\n\n")
	for i := range 30 {
		fmt.Fprintf(&b, "v%d := {\"a\": v%d, \"b\": v%d}\n", i, i+1, i+1)
	}
	b.WriteString("v30 := 1\n\ndeny contains \"x\" if v0.a.b.a == 2\n")
	return b.String()
}

// resident is how much memory this process has, in which both controllers run.
func resident(t *testing.T) int {
	t.Helper()
	runtime.GC()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestAPolicyThatExplodesIsDeniedAlone: whoever may write a policy in a namespace,
// or only try to, takes neither the controller's memory nor another's turn.
func TestAPolicyThatExplodesIsDeniedAlone(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	before := resident(t)
	bomb := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "bomb"}}
	bomb.Spec.Rego = explodes()
	began := time.Now()
	var wait sync.WaitGroup
	wait.Go(func() {
		// The webhook waits four budgets, and says so where the machine is busy.
		err := admin.Create(t.Context(), bomb, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "compiling it exceeded its ") && !strings.Contains(err.Error(), "did not compile within") {
			t.Errorf("the bomb: %v", err)
		}
	})
	fine := &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: other.namespace, Name: "fine"}}
	fine.Spec.Rego = "package skep.policy\n\ndeny contains \"x\" if input.application.metadata.name == \"none\"\n"
	if err := admin.Create(t.Context(), fine); err != nil {
		t.Errorf("another namespace's policy: %v", err)
	}
	wait.Wait()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	w.until(func() error {
		err := admin.Create(t.Context(), bomb.DeepCopy(), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), w.namespace+"/bomb: compiling it exceeded its ") {
			return fmt.Errorf("the answer is: %w", err)
		}
		return nil
	})
	if after := resident(t); after > before+256<<20 {
		t.Errorf("this process grew from %d MiB to %d MiB", before>>20, after>>20)
	}
}

// TestAPolicyThatExplodesOnAnApplicationDeniesItsOwnMatch: the policy compiles, and
// takes all memory when it is asked.
func TestAPolicyThatExplodesOnAnApplicationDeniesItsOwnMatch(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	ref, fine := w.signed(), other.signed()
	before := resident(t)
	w.policy("bomb", `deny contains "x" if {
	input.application.metadata.name != "spared"
	s0 := concat("", [s | some _ in numbers.range(1, 4096); s := "0123456789abcdef0123456789abcdef"])
	s1 := concat("", [s | some _ in numbers.range(1, 4096); s := s0])
	count(s1) == 1
}`)
	w.denies(w.app("app", ref), "policy "+w.namespace+"/bomb exceeded its memory limit of 64 MiB")
	if err := admin.Create(t.Context(), other.app("app", fine), client.DryRunAll); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	if after := resident(t); after > before+256<<20 {
		t.Errorf("this process grew from %d MiB to %d MiB", before>>20, after>>20)
	}
}
