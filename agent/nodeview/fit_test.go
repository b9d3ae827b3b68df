package nodeview_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

func noStatus() []agent.ApplicationStatus { return nil }

func asScopeError(err error, to **nodeview.ScopeError) bool { return errors.As(err, to) }

// crowd are applications of a namespace with places that all failed.
func crowd(namespace string, applications, places int, message string) (all []agent.ApplicationStatus) {
	for i := range applications {
		s := agent.ApplicationStatus{UID: fmt.Sprint(namespace, i), Error: message, VerifierLog: message,
			Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: fmt.Sprintf("app-%04d", i)}}
		p := agent.ProgramStatus{Name: "f"}
		for j := range places {
			p.Links = append(p.Links, agent.LinkStatus{Hook: "uprobe", Target: fmt.Sprint("/bin/\x1b", j),
				On: plan.Target{Interface: "\x1b[2J", Binary: "/\x1b", In: "\x1b"}, State: agent.Failed, Error: message})
		}
		s.Programs = append(s.Programs, p)
		all = append(all, s)
	}
	return all
}

func TestADescriptionIsBounded(t *testing.T) {
	victims := strings.Repeat("R1 offset is outside of the packet\n", 10_000)
	long := strings.Repeat("\u202e\x1b<", 512)
	for name, c := range map[string]struct {
		status []agent.ApplicationStatus
		// left is what of team-a's is there, and out what is said of others.
		left, out []string
	}{
		"8,000 places": {crowd("team-b", 250, 32, "short"), nil, nil},
		"8,000 places of one, all with long messages": {crowd("team-b", 1, 8000, long), nil, []string{"attachments did not fit"}},
		"many with long messages":                     {crowd("team-b", 2000, 4, long), nil, []string{"applications did not fit", "attachments did not fit"}},
	} {
		t.Run(name, func(t *testing.T) {
			status := slices.Concat(c.status, crowd("team-a", 1, 2, "the reason"))
			status[len(status)-1].VerifierLog = victims
			chain := agent.ChainStatus{Interface: "eth0", Hook: "xdp", Ifindex: 2, Members: []agent.MemberStatus{{Program: "f", Unmanaged: true}}}
			v := nodeview.New(nodeview.Options{Node: "n1",
				Look: func(context.Context) (agent.Sight, error) {
					return agent.Sight{At: time.Now(), Chains: []agent.ChainStatus{chain}}, nil
				}, Status: func() []agent.ApplicationStatus { return status },
				Inventory: func(context.Context) (inventory.Inventory, error) {
					return inventory.Inventory{Programs: []inventory.Program{{ID: 7, Name: "\x1b[2J" + long, Pins: []string{long},
						Holders: []inventory.Process{{PID: 1, Name: long}}}}}, nil
				}})
			n, err := v.View(t.Context(), view.Scope{})
			body, failed := json.Marshal(n)
			if err != nil || failed != nil || len(body) > nodeview.MaxBytes {
				t.Fatalf("%d bytes, %v, %v", len(body), err, failed)
			}
			if strings.ContainsAny(string(body), "\x1b\u202e") || strings.Contains(string(body), `\u001b`) {
				t.Error("it has what a terminal obeys")
			}
			i := len(n.Applications)
			for j, a := range n.Applications {
				if a.Namespace == "team-a" {
					i = j
				}
			}
			if i == len(n.Applications) || len(n.Applications[i].Attachments) != 2 || n.Applications[i].VerifierLog != victims {
				t.Errorf("what is small is not there: %d applications, %v", len(n.Applications), n.LeftOut)
			}
			if len(n.Interfaces) != 1 || len(n.Programs) != 1 {
				t.Errorf("%d interfaces and %d programs are there", len(n.Interfaces), len(n.Programs))
			}
			for _, want := range c.out {
				if !strings.Contains(fmt.Sprint(n.LeftOut), want) {
					t.Errorf("left out: %v, want %q", n.LeftOut, want)
				}
			}
			if len(c.out) == 0 && len(n.LeftOut) > 0 {
				t.Errorf("left out: %v", n.LeftOut)
			}
			t.Logf("%d bytes, %v", len(body), n.LeftOut)
		})
	}
}
