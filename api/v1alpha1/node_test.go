package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestANodeTellsOfAnApplicationInFullOrInShort(t *testing.T) {
	failed := NodeApplication{UID: "b", Serial: 2, State: NodeFailed, Message: "no"}
	s := &BpfNodeStatus{Applications: []NodeApplication{failed}, Loaded: []string{"ab:1", LoadedAs("a", 7), "c:what"}}
	for sentence, c := range map[string]struct {
		uid  string
		want *NodeApplication
	}{
		"in full":                           {"b", &failed},
		"in short":                          {"a", &NodeApplication{UID: "a", Serial: 7, State: NodeLoaded}},
		"not at all":                        {"d", nil},
		"in what no honest agent would say": {"c", nil},
	} {
		t.Run(sentence, func(t *testing.T) {
			if diff := cmp.Diff(c.want, s.Of(c.uid)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
