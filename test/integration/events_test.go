package integration

import (
	"fmt"
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// told waits for an event on an object, and returns it.
func (c *cluster) told(o client.Object, reason string) eventsv1.Event {
	c.t.Helper()
	var found eventsv1.Event
	c.until(fmt.Sprintf("an event %s on %s", reason, o.GetName()), func() error {
		var all eventsv1.EventList
		if err := c.List(c.t.Context(), &all); err != nil {
			return err
		}
		var seen []string
		for _, e := range all.Items {
			if e.Regarding.UID != o.GetUID() {
				continue
			}
			seen = append(seen, e.Reason)
			if e.Reason == reason {
				found = e
				return nil
			}
		}
		return fmt.Errorf("there are %v", seen)
	})
	return found
}

func TestEventsNameRuleReasonAndFix(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	unsigned, _ := c.Push("unsigned:v1", programs.Object("xdp_count"))
	ref, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	nobody, wordy := application("nobody", unsigned), application("wordy", ref)
	nobody.Spec.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{
		{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}}}}
	wordy.Labels = map[string]string{"team": "b"}
	long := clusterPolicy("long", `deny contains {"msg": "`+strings.Repeat("no, ", 600)+`", "path": "", "fix": ""}`, v1alpha1.RunningKeep)
	long.Spec.Match = &v1alpha1.PolicyMatch{Selector: &metav1.LabelSelector{MatchLabels: wordy.Labels}}
	broken := clusterPolicy("broken", "deny contains", v1alpha1.RunningKeep)
	broken.Spec.Match = long.Spec.Match.DeepCopy()
	broken.Spec.Match.Selector.MatchLabels["team"] = "c"
	baseline := clusterPolicy("needs-signer", `deny contains {"msg": "nobody known signed it", "path": "spec.bytecode.image", "fix": `+
		`"sign it"} if count(input.signatures) == 0`, v1alpha1.RunningKeep)
	c.create(long, broken, baseline)
	c.condition(long, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	c.condition(baseline, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	c.create(nobody, wordy)

	for name, want := range map[string][]string{
		c.told(nobody, "Denied").Note:  {"needs-signer/", "spec.bytecode.image", "nobody known signed it", "(sign it)"},
		c.told(wordy, "Denied").Note:   {"long/", "no, no, ", "the status has all of it"},
		c.told(broken, "Invalid").Note: {"it cannot be used", ".rego:"},
	} {
		for _, part := range want {
			if !strings.Contains(name, part) {
				t.Errorf("it says %q, and nothing of %q", name, part)
			}
		}
	}
	if e := c.told(broken, "Invalid"); e.Type != "Warning" || e.ReportingController != "skep-controller" {
		t.Errorf("it is a %s of %s", e.Type, e.ReportingController)
	}
	c.change(broken, func() { broken.Spec.Rego = "package skep.policy\n\ndeny contains \"no\" if false\n" })
	if e := c.told(broken, "Active"); e.Type != "Normal" {
		t.Errorf("it is a %s", e.Type)
	}
}

func TestWhatWasNotDoneIsAWarning(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	unsigned, _ := c.Push("unsigned:v1", programs.Object("tracepoint_count"))
	signed, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	for reason, is := range map[string]struct{ image, event string }{
		// There is no such registry.
		"EvaluationFailed": {"127.0.0.1:1/app:v1", "Warning"},
		"Denied":           {unsigned, "Warning"},
		"NoNodesSelected":  {signed, "Normal"},
	} {
		app := application(strings.ToLower(reason), is.image)
		c.create(app)
		if e := c.told(app, reason); e.Type != is.event {
			t.Errorf("%s is of type %s: %s", reason, e.Type, e.Note)
		}
	}
}
