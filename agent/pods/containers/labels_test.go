package containers

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// padding are labels of more bytes than are kept, of which the keys come before all others.
func padding() map[string]string {
	labels := map[string]string{}
	for i := range 200 {
		labels[fmt.Sprintf("0/%03d", i)] = strings.Repeat("x", 200)
	}
	return labels
}

func TestWhatSelectorsNameIsKeptWhateverAPodHasBesides(t *testing.T) {
	labels := padding()
	labels["firewall"], labels["team"], labels[kubeletLabels+"name"] = "on", "a", "web"
	k := newKept()
	if got, isCut := k.of(labels); !isCut || got["firewall"] != "" || len(got) == 0 {
		t.Errorf("without a selector: %d labels, cut: %v", len(got), isCut)
	}
	k.replace(map[string]bool{"firewall": true, "absent": true, "0/199": true})
	got, isCut := k.of(labels)
	if !isCut || got["firewall"] != "on" || got["0/199"] == "" || got["team"] != "" || got[kubeletLabels+"name"] != "" {
		t.Errorf("with one: %d labels, cut: %v", len(got), isCut)
	}
	few := map[string]string{"team": "a"}
	if got, isCut := k.of(few); isCut || !cmp.Equal(got, few) {
		t.Errorf("of few labels: %v, cut: %v", got, isCut)
	}
}

// TestAPodHidesBehindNoPadding has a selector come after the pod, and another one after that.
func TestAPodHidesBehindNoPadding(t *testing.T) {
	f := newFaulty(t)
	labels := padding()
	labels["firewall"], labels["team"] = "on", "a"
	f.pod("padded", &cri.PodSandboxMetadata{Name: "web", Namespace: "blue", Uid: "u"}, labels, "{}")
	i := slices.IndexFunc(f.sandboxes, func(s *cri.PodSandbox) bool { return s.GetId() == "padded" })
	f.sandboxes[i].Labels = labels
	f.serve(t)
	var woken atomic.Int64
	s := f.source(t, func(o *Options) {
		o.Relist, o.Wake = 1<<40, func(changed ...Pod) {
			if len(changed) == 1 && changed[0].SandboxID == "padded" {
				woken.Add(1)
			}
		}
	})
	padded := func(keys ...string) func(*Snapshot) error {
		return func(got *Snapshot) error {
			i := slices.IndexFunc(got.Pods(), func(p Pod) bool { return p.SandboxID == "padded" })
			if i < 0 {
				return errors.New("there is no such pod")
			}
			p := got.Pods()[i]
			for _, key := range []string{"firewall", "team"} {
				if _, has := p.Labels[key]; has != slices.Contains(keys, key) || !p.IsCut {
					return fmt.Errorf("it has %s: %v, cut: %v", key, has, p.IsCut)
				}
			}
			return nil
		}
	}
	snapshotOf(t, s, "the pod without labels that no selector names", padded())
	n := woken.Load()
	s.Keep(map[string]bool{"firewall": true})
	snapshotOf(t, s, "the label that is named", padded("firewall"))
	until(t, "the wake", func() error {
		if woken.Load() == n {
			return errors.New("nobody was woken")
		}
		return nil
	})
	s.Keep(map[string]bool{"firewall": true, "team": true})
	snapshotOf(t, s, "both labels", padded("firewall", "team"))
}
