package nodereports

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// report is what a node reports in short.
func report(loaded []string) *v1alpha1.BpfNode {
	return &v1alpha1.BpfNode{Status: v1alpha1.BpfNodeStatus{Loaded: loaded}}
}

func TestWhatIsToldInShortIsLookedAtWhenItChanges(t *testing.T) {
	for sentence, c := range map[string]struct{ before, now, want []string }{
		"nothing changed":              {[]string{"a:1", "b:2"}, []string{"b:2", "a:1"}, nil},
		"one is new":                   {nil, []string{"a:1"}, []string{"a"}},
		"one is gone":                  {[]string{"a:1", "b:2"}, []string{"a:1"}, []string{"b"}},
		"one runs another version now": {[]string{"a:1", "b:2"}, []string{"a:3", "b:2"}, []string{"a"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(c.want, ChangedInShort(report(c.before), report(c.now))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
