package policies

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestLargeDocumentsWaitForEachOther(t *testing.T) {
	engine := NewEngine(EngineOptions{})
	t.Cleanup(engine.Close)
	set, err := engine.Compile(t.Context(), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var small, large Input
	large.Application.Metadata.Annotations = map[string]string{"note": strings.Repeat("x", largeBytes)}
	if err := engine.large.Acquire(t.Context(), largeAtOnce); err != nil {
		t.Fatal(err)
	}
	if _, err := set.Decide(t.Context(), small); err != nil {
		t.Error("what is small waits:", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := set.Decide(ended, large); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "wait to decide") {
		t.Errorf("one more large document: %v", err)
	}
	engine.large.Release(largeAtOnce)
	for range 2 * largeAtOnce {
		if _, err := set.Decide(t.Context(), large); err != nil {
			t.Error("the room is not given back:", err)
		}
	}
}
