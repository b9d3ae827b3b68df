package confined

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, role string) *Process {
	t.Helper()
	p, err := Start(t.Context(), role)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAChildAnswersUntilItsInputEnds(t *testing.T) {
	p := start(t, roleEcho)
	answer := make([]byte, 5)
	for _, word := range []string{"hello", "again"} {
		if _, err := io.WriteString(p.Stdin, word); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(p.Stdout, answer); err != nil || string(answer) != word {
			t.Fatalf("answer: %q, %v", answer, err)
		}
	}
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if death := p.Wait(); death.Err != nil || death.OutOfMemory() {
		t.Errorf("it ended by %v: %s", death.Err, death.Cause())
	}
}

// TestAChildEndsAtItsLimitOfMemory: by little and little, where it looks at itself, at once, and
// where threads need the rest.
func TestAChildEndsAtItsLimitOfMemory(t *testing.T) {
	for _, role := range []string{roleHungry, roleGreedy, roleThreads} {
		p := start(t, role)
		said, err := io.ReadAll(p.Stdout)
		if err != nil || len(said) > 0 {
			t.Errorf("%s wrote %q, %v", role, said, err)
		}
		if death := p.Wait(); death.Err == nil || !death.OutOfMemory() {
			t.Errorf("%s ended by %v: %s", role, death.Err, death.Cause())
		}
	}
}

// TestAChildThatMayMakeNoThreadEndsForThat and not for its memory.
func TestAChildThatMayMakeNoThreadEndsForThat(t *testing.T) {
	death := start(t, roleCrowded).Wait()
	if strings.Contains(death.Said, "pthread_create") {
		t.Skip("SKIPPED: by C a process does not say whether it lacks memory or threads")
	}
	if death.Err == nil || !death.OutOfThreads() || death.OutOfMemory() {
		t.Errorf("it ended by %v: %s", death.Err, death.Said)
	}
}

func TestAChildEndsAtItsLimitOfTime(t *testing.T) {
	if death := start(t, roleBusy).Wait(); death.Err == nil || !death.OutOfTime() {
		t.Errorf("it ended by %v: %s", death.Err, death.Cause())
	}
}

func TestAContextEndsByTheTimeOfAProcessor(t *testing.T) {
	const most = 30 * time.Millisecond
	began := CPUTime()
	ctx, end := Spend(t.Context(), most)
	defer end()
	for ctx.Err() == nil {
	}
	if took := CPUTime() - began; !errors.Is(context.Cause(ctx), ErrSpent) || took < most {
		t.Errorf("it ended after %s by %v", took, context.Cause(ctx))
	}
}

func TestAChildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Start(ctx, roleEcho)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if death := p.Wait(); death.Err == nil || death.OutOfMemory() {
		t.Errorf("it ended by %v: %s", death.Err, death.Cause())
	}
}

func TestAChildStartsNoChild(t *testing.T) {
	t.Setenv(roleVariable, roleEcho)
	if _, err := Start(t.Context(), roleEcho); !errors.Is(err, ErrNested) {
		t.Errorf("error: %v", err)
	}
}
