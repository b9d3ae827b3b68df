package prepare

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestPlacesAreBounded(t *testing.T) {
	inPods := v1alpha1.Attachment{Hook: "uprobe", Pods: &v1alpha1.Pods{}}
	of := func(namespace string) v1alpha1.Identity {
		return v1alpha1.Identity{Kind: "BpfApplication", Namespace: namespace, Name: "a"}
	}
	for sentence, c := range map[string]struct {
		namespace string
		at        v1alpha1.Attachment
		// others are the places of the namespace's others, in this order; has are its own.
		others   []int
		has      int
		want     int
		fails    bool
		mentions string
	}{
		"what fits":                     {"team-a", inPods, nil, maxPlaces, maxPlaces, false, ""},
		"pods beyond are left out":      {"team-a", inPods, nil, maxPlaces + 3, maxPlaces, false, "there are 2003 places"},
		"functions beyond are an error": {"", v1alpha1.Attachment{Hook: "kprobe"}, nil, maxPlaces + 1, 0, true, "kprobe.multi"},
		"a namespace has a share": {
			"team-a", inPods, []int{maxPlaces, maxPlaces, maxPlaces, maxPlaces - 5}, 9, 5, false, "whose others have 7995 of 8000",
		},
		"an application beyond it has no places": {"team-a", inPods, []int{maxPlaces, maxPlaces, maxPlaces, maxPlaces}, 1, 0, false, "has 0 on a node"},
		"the cluster's have none":                {"", inPods, []int{maxPlaces, maxPlaces, maxPlaces, maxPlaces}, 9, 9, false, ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			v := New(Versions{Look: (&live.Set{}).Look()})
			v.placed.note(of("team-b"), "elsewhere", maxOfNamespace)
			for i, places := range c.others {
				v.placed.note(of(c.namespace), string(rune('a'+i)), places)
			}
			r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{
				UID: "own", Identity: of(c.namespace), Attachments: make([]plan.Attachment, c.has),
			}}
			for i := 0; c.at.Pods != nil && i < c.has; i++ {
				r.inPods = append(r.inPods, i)
			}
			err := r.bound()
			if err == nil {
				r.fill()
			}
			if (err != nil) != c.fails || err == nil && len(r.app.Attachments) != c.want {
				t.Errorf("%d of %d places: %v", len(r.app.Attachments), c.has, err)
			}
			var said []string
			for _, e := range append(r.out.Errs, err) {
				if e != nil {
					said = append(said, e.Error())
				}
			}
			if all := strings.Join(said, "; "); !strings.Contains(all, c.mentions) || c.mentions == "" && all != "" {
				t.Errorf("it says %q", all)
			}
		})
	}
}

// TestWhatRunsKeepsItsPlaces has places that are not enough for all of an application and of its
// namespace, where what comes first, in a new pod or earlier in the alphabet, does not run.
func TestWhatRunsKeepsItsPlaces(t *testing.T) {
	team := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "b"}
	in := func(program, hook string, pod int) plan.Attachment {
		a := plan.Attachment{Application: team, Program: program, Hook: hook, Target: plan.Target{Cgroup: fmt.Sprint("/", pod), In: fmt.Sprint("pod ", pod)}}
		if hook == plan.XDP {
			a.Target = plan.Target{Ifindex: 2, NetnsID: uint64(pod), Interface: "eth0", In: fmt.Sprint("pod ", pod)}
		}
		return a
	}
	set := &live.Set{}
	for _, pod := range []int{3, 4} {
		set.PutLink(&pins.Link{UID: "b", Attachment: in("f", "cgroup_skb/egress", pod)})
	}
	chained := in("g", plan.XDP, 4)
	set.PutChain(&pins.Chain{Device: chained.Target.Device(), Version: &pins.ChainVersion{Members: []plan.Member{{UID: "b", Identity: team, Program: "g"}}}})
	v := New(Versions{Look: set.Look()})
	v.placed.note(team, "others", maxOfNamespace-4)
	v.countRunning()
	v.countRunning()
	if left := v.placed.left(team, "a"); left != 1 {
		t.Errorf("the application that comes first has %d places, want 1: the other one runs at 3", left)
	}
	// A version of it that has no places may be rejected later, or leave what runs until it is whole.
	v.placed.note(team, "b", 0)
	if left := v.placed.left(team, "a"); left != 1 {
		t.Errorf("the application that comes first has %d places, want 1: what runs has not ended", left)
	}
	own := in("f", "cgroup/connect4", 0)
	r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{UID: "b", Identity: team, Attachments: []plan.Attachment{own}}}
	for _, program := range []string{"f", "g"} {
		for pod := range 5 {
			r.inPods = append(r.inPods, len(r.app.Attachments))
			r.app.Attachments = append(r.app.Attachments, in(program, map[string]string{"f": "cgroup_skb/egress", "g": plan.XDP}[program], pod))
		}
	}
	r.fill()
	want := []plan.Attachment{own, in("f", "cgroup_skb/egress", 3), in("f", "cgroup_skb/egress", 4), in("g", plan.XDP, 4)}
	if diff := cmp.Diff(want, r.app.Attachments); diff != "" || len(r.out.Errs) != 2 {
		t.Errorf("its places, of 4 (-want +got):\n%s\nwith errors %v", diff, r.out.Errs)
	}
}
