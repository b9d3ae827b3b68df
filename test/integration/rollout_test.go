package integration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// rollout is an application on five stand-in nodes, in the order in which
// versions come to them.
type rollout struct {
	*cluster
	app   *v1alpha1.ClusterBpfApplication
	nodes []string
	// first and second are images of two programs, by two signers.
	first, second string
}

// newRollout has the first version everywhere.
func newRollout(t *testing.T, steps ...intstr.IntOrString) *rollout {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"), c.Signer("team-b"))
	r := &rollout{cluster: c}
	for i := range 5 {
		r.nodes = append(r.nodes, fmt.Sprintf("node-%d", i))
		c.node(r.nodes[i], nil)
	}
	r.first, _ = c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	// The same program in another file.
	r.second, _ = c.Push("app:v2", append(slices.Clone(programs.Object("tracepoint_count")), 0), "team-b")
	r.app = application("app", r.first)
	c.create(r.app)
	c.until("the first version to be sealed", func() error {
		if c.opened(r.app) == nil {
			return fmt.Errorf("conditions %v", r.app.Status.Conditions)
		}
		return nil
	})
	uid := string(r.app.UID)
	slices.SortFunc(r.nodes, func(a, b string) int {
		return strings.Compare(intent.NodeHash(uid, a), intent.NodeHash(uid, b))
	})
	r.loaded(r.nodes...)
	c.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	c.change(r.app, func() { r.app.Spec.Rollout = &v1alpha1.Rollout{Steps: steps} })
	return r
}

// loaded has nodes say that they run the newest version.
func (r *rollout) loaded(nodes ...string) {
	r.t.Helper()
	for _, n := range nodes {
		r.answers(n, r.app, v1alpha1.NodeLoaded, "")
	}
}

// to changes the definition.
func (r *rollout) to(edit func(*v1alpha1.BpfApplicationSpec)) {
	r.t.Helper()
	r.change(r.app, func() { edit(&r.app.Spec) })
}

// toImage is a definition of another image.
func toImage(ref string) func(*v1alpha1.BpfApplicationSpec) {
	return func(s *v1alpha1.BpfApplicationSpec) { s.Bytecode.Image = ref }
}

// reaches waits until the newest version is an image's and has come to so many
// nodes, and returns what is sealed.
func (r *rollout) reaches(ref string, nodes int) *intent.Payload {
	r.t.Helper()
	var p *intent.Payload
	r.until(fmt.Sprintf("%s on %d nodes", ref, nodes), func() error {
		p = r.opened(r.app)
		n := len(slices.DeleteFunc(slices.Clone(r.nodes), func(node string) bool { return !p.Reaches(node) }))
		if p.Tombstone || p.Image != ref || n != nodes {
			return fmt.Errorf("%s on %d nodes, tombstone %v", p.Image, n, p.Tombstone)
		}
		return nil
	})
	return p
}

// annotate sets an annotation as skep rollout does.
func (r *rollout) annotate(name string, value int64) {
	r.t.Helper()
	r.annotateAny(name, strconv.FormatInt(value, 10))
}

func (r *rollout) annotateAny(name, value string) {
	r.t.Helper()
	r.change(r.app, func() { metav1.SetMetaDataAnnotation(&r.app.ObjectMeta, name, value) })
}

func TestAVersionComesToTheNodesInSteps(t *testing.T) {
	r := newRollout(t, intstr.FromInt32(1), intstr.FromString("50%"))
	r.to(toImage(r.second))
	p := r.reaches(r.second, 1)
	if !p.Reaches(r.nodes[0]) || p.Previous == nil || p.Previous.Image != r.first {
		t.Fatalf("sealed %+v", p)
	}
	version := p.VersionSerial()
	r.condition(r.app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "RolloutProgressing")
	if n := r.app.Status.Nodes; n.Retained != 4 || r.app.Status.Rollout.Nodes != 1 || r.app.Status.PreviousDigest != p.Previous.ImageDigest {
		t.Errorf("status says %+v, %+v, before it %s", n, r.app.Status.Rollout, r.app.Status.PreviousDigest)
	}
	r.loaded(r.nodes[0])
	p = r.reaches(r.second, 3)
	if p.VersionSerial() != version || p.Serial == version {
		t.Errorf("step 2 has serial %d and version %d, which was %d", p.Serial, p.VersionSerial(), version)
	}
	r.loaded(r.nodes[1], r.nodes[2])
	r.reaches(r.second, 5)
	r.condition(r.app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
	r.loaded(r.nodes[3], r.nodes[4])
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	if r.app.Status.Rollout != nil {
		t.Errorf("the rollout is over, and status says %+v", r.app.Status.Rollout)
	}
}

func TestARolloutStopsWhereANodeFails(t *testing.T) {
	r := newRollout(t)
	r.to(toImage(r.second))
	before := r.reaches(r.second, 1)
	r.answers(r.nodes[0], r.app, v1alpha1.NodeFailed, "R1 invalid mem access 'scalar'")
	ready := r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")
	for _, word := range []string{r.nodes[0], "R1 invalid mem access", "keep the version before", "skep rollout"} {
		if !strings.Contains(ready.Message, word) {
			t.Errorf("%q does not say %q", ready.Message, word)
		}
	}
	r.condition(r.app, v1alpha1.ConditionStalled, metav1.ConditionTrue, "RolloutStopped")

	t.Log("a definition that only speeds it up begins nothing anew")
	r.to(func(s *v1alpha1.BpfApplicationSpec) {
		s.Rollout = &v1alpha1.Rollout{Pause: &metav1.Duration{Duration: time.Second}}
	})
	r.until("the new generation to be looked at", func() error {
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(r.app), r.app); err != nil {
			return err
		}
		if r.app.Status.ObservedGeneration != r.app.Generation {
			return fmt.Errorf("generation %d of %d", r.app.Status.ObservedGeneration, r.app.Generation)
		}
		return nil
	})
	if p := r.reaches(r.second, 1); p.Serial != before.Serial || p.Previous == nil || p.Previous.Image != r.first {
		t.Errorf("sealed %+v", p)
	}
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")

	t.Log("somebody resumes it")
	r.annotate(v1alpha1.AnnotationResume, r.opened(r.app).Serial)
	r.reaches(r.second, 5)
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodesFailed")
}

func TestAThirdVersionHoldsNodesAtTheFirst(t *testing.T) {
	r := newRollout(t, intstr.FromInt32(2))
	r.to(toImage(r.second))
	r.reaches(r.second, 2)
	third, _ := r.Push("app:v3", append(slices.Clone(programs.Object("tracepoint_count")), 0, 0), "team-a")
	r.to(toImage(third))
	if p := r.reaches(third, 2); p.Previous == nil || p.Previous.Image != r.first {
		t.Errorf("sealed over %+v", p.Previous)
	}
	t.Log("and the first brought back in the definition is everywhere at once")
	r.to(toImage(r.first))
	r.reaches(r.first, 5)
}

func TestARolloutIsUndone(t *testing.T) {
	r := newRollout(t)
	r.to(toImage(r.second))
	r.reaches(r.second, 1)
	r.loaded(r.nodes[0])
	r.reaches(r.second, 5)
	r.loaded(r.nodes...)
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")

	r.annotate(v1alpha1.AnnotationUndo, r.app.Generation)
	r.reaches(r.first, 5)
	r.loaded(r.nodes...)
	ready := r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutRolledBack")
	if !strings.Contains(ready.Message, "skep rollout resume") || r.app.Status.Rollout.State != v1alpha1.RolloutRolledBack {
		t.Errorf("%s; %+v", ready.Message, r.app.Status.Rollout)
	}
	serial := r.opened(r.app).Serial

	t.Log("what was brought back is evaluated by itself")
	signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
	r.change(signer, func() { signer.Spec.Revoked = true })
	r.unloaded(r.app, "revoked")
	if now := r.opened(r.app).Serial; now <= serial {
		t.Errorf("serial %d after %d", now, serial)
	}
}

func TestAnUndoneDefinitionIsTakenUpAgain(t *testing.T) {
	r := newRollout(t)
	r.to(toImage(r.second))
	r.reaches(r.second, 1)
	r.annotate(v1alpha1.AnnotationUndo, r.app.Generation)
	r.reaches(r.first, 5)
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutRolledBack")
	r.change(r.app, func() { delete(r.app.Annotations, v1alpha1.AnnotationUndo) })
	if p := r.reaches(r.second, 1); p.Previous == nil || p.Previous.Image != r.first || p.Undone != 0 {
		t.Errorf("sealed %+v", p)
	}
}

func TestASignerRevokedInTheMiddleOfARollout(t *testing.T) {
	t.Run("of the new version: the one before is everywhere again", func(t *testing.T) {
		r := newRollout(t)
		r.to(toImage(r.second))
		r.reaches(r.second, 1)
		signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-b"}}
		r.change(signer, func() { signer.Spec.Revoked = true })
		r.reaches(r.first, 5)
		r.condition(r.app, v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied")
		r.runsStill(r.app)
	})
	t.Run("of the version before: no node is held at it", func(t *testing.T) {
		r := newRollout(t)
		r.to(toImage(r.second))
		r.reaches(r.second, 1)
		signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
		r.change(signer, func() { signer.Spec.Revoked = true })
		r.until("the version before to go", func() error {
			if p := r.opened(r.app); p.Previous != nil || p.Image != r.second {
				return fmt.Errorf("%s over %+v", p.Image, p.Previous)
			}
			return nil
		})
	})
}

func TestWhatRunsIsNotBroughtInStepsAgain(t *testing.T) {
	r := newRollout(t)
	for _, name := range r.nodes {
		n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.change(n, func() { n.Status.Applications[0].Revision = "r" })
	}
	before := r.opened(r.app).Serial
	if err := r.Delete(t.Context(), &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: string(r.app.UID)}}); err != nil {
		t.Fatal(err)
	}
	r.annotateAny("reconcile.fluxcd.io/requestedAt", "now")
	r.until("it to be sealed again", func() error {
		if p := r.opened(r.app); p == nil || p.Serial <= before {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
	if p := r.opened(r.app); p.Rollout != nil {
		t.Errorf("what five nodes run is taken from all but %+v", p.Rollout)
	}
}

func TestASuspendedRolloutHoldsNoNodeAtWhatIsRevoked(t *testing.T) {
	r := newRollout(t)
	r.to(toImage(r.second))
	r.reaches(r.second, 1)
	r.to(func(s *v1alpha1.BpfApplicationSpec) { s.Suspend = true })
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Suspended")
	signer := &v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
	r.change(signer, func() { signer.Spec.Revoked = true })
	r.until("the version before to go", func() error {
		if p := r.opened(r.app); p.Previous != nil || p.Image != r.second || p.Rollout == nil {
			return fmt.Errorf("%s over %+v", p.Image, p.Previous)
		}
		return nil
	})
}

func TestAnUndoThatMayNotBeIsTold(t *testing.T) {
	r := newRollout(t)
	r.to(toImage(r.second))
	r.reaches(r.second, 1)
	r.loaded(r.nodes[0])
	r.reaches(r.second, 5)
	p := clusterPolicy("not-by-a", `deny contains "by a" if { some s in input.signatures; s.signer == "team-a" }`, v1alpha1.RunningKeep)
	r.create(p)
	r.condition(p, v1alpha1.ConditionReady, metav1.ConditionTrue, "Active")
	r.annotate(v1alpha1.AnnotationUndo, r.app.Generation)
	ready := r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")
	if !strings.Contains(ready.Message, "is not allowed any more") {
		t.Errorf("%s", ready.Message)
	}
	r.reaches(r.second, 5)
}

// TestTheVerifierStopsARollout is a rollout on three real nodes.
func TestTheVerifierStopsARollout(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	nodes, _ := c.begin(3)
	first, _ := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	app := fleet(first)
	c.create(app)
	c.summary(app, "3/3")

	rejected, _ := c.Push("count:v2", programs.Object("xdp_rejected"), "team-a")
	c.change(app, func() {
		app.Spec.Bytecode.Image, app.Spec.Programs[0].Name = rejected, "xdp_rejected"
	})
	ready := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")
	t.Log(ready.Message)
	if n := app.Status.Nodes; n.Failed != 1 || n.Retained != 2 {
		t.Errorf("nodes %+v", n)
	}
	version := func() (all []string) {
		for _, m := range nodes {
			var n v1alpha1.BpfNode
			if err := c.Get(t.Context(), client.ObjectKey{Name: m.name}, &n); err != nil {
				t.Fatal(err)
			}
			all = append(all, n.ResourceVersion)
		}
		return all
	}
	before := version()
	for _, m := range nodes {
		m.counts()
	}

	t.Log("fixed, it comes to all")
	second, _ := c.Push("count:v3", programs.Object("xdp_count_v2"), "team-a")
	c.change(app, func() {
		app.Spec.Bytecode.Image, app.Spec.Programs[0].Name = second, "count_packets"
	})
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	for i, m := range nodes {
		m.counts()
		if now := version()[i]; now == before[i] {
			t.Errorf("%s says nothing of the version it has", m.name)
		}
	}
}
