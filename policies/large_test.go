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
	leave, err := engine.pools.clusterLarge.enter(t.Context(), "another")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.Decide(t.Context(), small); err != nil {
		t.Error("what is small waits:", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := set.Decide(ended, large); !errors.Is(err, context.Canceled) {
		t.Errorf("one more large document: %v", err)
	}
	leave()
	for range 2 {
		if _, err := set.Decide(t.Context(), large); err != nil {
			t.Error("the room is not given back:", err)
		}
	}
}
