package policies_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/await"
)

// endless is a policy that no test waits for.
const endless = `deny contains "x" if {
	some i in numbers.range(1, 2000)
	some j in numbers.range(1, 2000)
	some k in numbers.range(1, 2000)
	i * j * k == -1
}`

// slow is one that takes a part of a second.
const slow = `deny contains "x" if {
	some i in numbers.range(1, 400)
	some j in numbers.range(1, 400)
	i * j == -1
}`

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	await.True(t, what, time.Minute, holds)
}

func inNamespace(name string) policies.Input {
	return input(func(in *policies.Input) { in.Application.Metadata.Namespace = name })
}

// Two namespaces have policies that never end, and all the places there are for such.
func TestPoliciesOfNamespacesHoldUpNoneOfTheCluster(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	set, err := own.Compile(t.Context(), []policies.Policy{
		policy("a", endless, in("team-a")), policy("b", endless, in("team-b")), policy("all", `warn contains "all"`),
	}, policies.Options{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	hanging, end := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, namespace := range []string{"team-a", "team-b"} {
		group.Go(func() {
			if d, err := set.Decide(hanging, inNamespace(namespace)); err != nil || d.Known() {
				t.Errorf("%s: %+v, %v", namespace, d, err)
			}
		})
	}
	until(t, "policies of two namespaces to be evaluated", func() bool { return !policies.Free(own, true, 1) })
	for range 3 {
		limited, cancel := context.WithTimeout(t.Context(), time.Minute)
		if d, err := set.Decide(limited, inNamespace("team-c")); err != nil || len(d.Warnings) != 1 {
			t.Errorf("another namespace: %+v, %v", d, err)
		}
		cancel()
	}
	end()
	group.Wait()
}

// Two namespaces have many policies that take long, and a third has one.
func TestNamespacesHaveTheirTurns(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	list := []policies.Policy{policy("one", `warn contains "one"`, in("team-c"))}
	for i := range 16 {
		list = append(list, policy(fmt.Sprint("p", i), slow, in("team-a")), policy(fmt.Sprint("p", i), slow, in("team-b")))
	}
	set, err := own.Compile(t.Context(), list, policies.Options{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 3)
	var group sync.WaitGroup
	decides := func(ctx context.Context, namespace string) {
		group.Go(func() {
			if _, err := set.Decide(ctx, inNamespace(namespace)); err != nil {
				t.Errorf("%s: %v", namespace, err)
			}
			ended <- namespace
		})
	}
	others, leave := context.WithCancel(t.Context())
	defer leave()
	decides(others, "team-a")
	decides(others, "team-b")
	until(t, "policies of two namespaces to be evaluated", func() bool { return !policies.Free(own, true, 1) })
	decides(t.Context(), "team-c")
	if first := <-ended; first != "team-c" {
		t.Errorf("%s ended before team-c", first)
	}
	leave()
	group.Wait()
}

// A namespace has one policy that answers, and one that takes all the time there is.
func TestWhatTheClusterDeniesStandsWhateverANamespaceTakes(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	set, err := own.Compile(t.Context(), []policies.Policy{
		policy("a", endless, in("team-a")), policy("b", endless, in("team-a")), policy("all", `deny contains "all"`, unload),
	}, policies.Options{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	var d policies.Decision
	ended := make(chan error)
	go func() {
		var err error
		d, err = set.Decide(ctx, inNamespace("team-a"))
		ended <- err
	}()
	until(t, "the namespace's policies to be evaluated", func() bool { return !policies.Free(own, true, 2) })
	leave()
	if err := <-ended; err != nil || !d.Known() || !d.Unload || !d.TimeDependent || len(d.Denied) != 3 {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestAnEvaluationEndsWithItsCaller(t *testing.T) {
	own := newEngine(t, policies.EngineOptions{})
	var list []policies.Policy
	for i := range 4 {
		list = append(list, policy(fmt.Sprint("p", i), endless))
	}
	set, err := own.Compile(t.Context(), list, policies.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	// Where the machine is busy, the caller may leave before the first policy is begun.
	until(t, "a policy to be evaluated to the end of its time", func() bool {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		ended := make(chan error)
		go func() {
			_, err := set.Decide(ctx, input())
			ended <- err
		}()
		until(t, "the first policy to be evaluated", func() bool { return !policies.Free(own, false, 2) })
		leave()
		if err := <-ended; err == nil {
			t.Error("it was decided")
		}
		until(t, "the evaluation to end", func() bool { return policies.Free(own, false, 2) })
		return policies.Penalties(own) > 0
	})
	if n := policies.Penalties(own); n == len(list) {
		t.Errorf("all %d policies were evaluated to the end of their time", n)
	}
}
