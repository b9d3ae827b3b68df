package prepare

import (
	"strings"
	"testing"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
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
			v := New(Versions{})
			v.placed.note(of("team-b"), "elsewhere", maxOfNamespace)
			for i, places := range c.others {
				v.placed.note(of(c.namespace), string(rune('a'+i)), places)
			}
			r := resolving{Versions: v, out: &report.Outcome{}, app: plan.Application{
				UID: "own", Identity: of(c.namespace), Attachments: make([]plan.Attachment, c.has),
			}}
			err := r.bound("p", c.at)
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
