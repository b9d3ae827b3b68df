package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// rotation is a key that is replaced while three nodes hold what it sealed.
type rotation struct {
	*cluster
	nodes []*machine
	flows []*flow
	// changed is asked for other things all the time, quiet is left alone.
	changed, quiet             *v1alpha1.ClusterBpfApplication
	changedDigest, quietDigest string
	priority                   int32
	// ahead is how far the controller's clock is.
	ahead atomic.Int64
	stop  func()
}

// quick has a controller look at its keys all the time, by the test's clock.
func (r *rotation) quick(o *controller.Options) {
	o.SealKey = nil
	o.Rotation = controller.Rotation{Every: 100 * time.Millisecond, Now: func() time.Time { return time.Now().Add(time.Duration(r.ahead.Load())) }}
}

// passes lets time pass for the controller.
func (r *rotation) passes(d time.Duration) { r.ahead.Add(int64(d)) }

// newRotation has two applications run on three nodes.
func newRotation(t *testing.T) *rotation {
	r := &rotation{cluster: newCluster(t), priority: 100}
	t.Cleanup(func() {
		for _, o := range r.owned() {
			_ = r.Delete(context.WithoutCancel(t.Context()), o)
		}
	})
	var served served
	served, r.stop = r.serve(t.TempDir(), r.quick)
	r.takesKey()
	r.create(r.Signer("team-a"))
	r.nodes = r.machines(command.Build(t, "skep-agent"), served, 3)
	counts, digest := r.Push("count:v1", programs.Object("xdp_count"), "team-a")
	passes, other := r.Push("pass:v1", programs.Object("xdp_pass"), "team-a")
	r.changed, r.quiet, r.changedDigest, r.quietDigest = fleet(counts), fleet(passes), digest, other
	r.quiet.Name, r.quiet.Spec.Programs[0].Name = "quiet", "xdp_pass"
	for _, app := range []*v1alpha1.ClusterBpfApplication{r.changed, r.quiet} {
		app.Spec.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("100%")}}
		r.create(app)
		r.summary(app, "3/3")
	}
	for _, m := range r.nodes {
		r.flows = append(r.flows, m.flows())
	}
	return r
}

// published waits until so many keys are what agents are to trust, and returns
// them as a kubelet brings them.
func (r *rotation) published(want int) (trust []byte) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d keys to be published", want), func() (err error) {
		trust, err = sealing.Published(r.t.Context(), r.Client, "default", "trust.pem")
		if n := bytes.Count(trust, []byte("BEGIN PUBLIC KEY")); n != want {
			err = fmt.Errorf("%d are, %w", n, err)
		}
		return err
	})
	return trust
}

// changes asks for something else, and waits until machines run it: every one
// has gone on counting, and has rejected nothing for its seal.
func (r *rotation) changes(what string, on ...*machine) {
	r.t.Helper()
	r.t.Log(what)
	r.priority++
	r.change(r.changed, func() { prefers(r.priority)(&r.changed.Spec) })
	r.sealed(r.changed)
	for _, m := range on {
		m.runs(r.changed, r.changedDigest)
	}
	for _, f := range r.flows {
		f.counted()
	}
	for _, m := range r.nodes {
		if n := m.said("reason=seal"); n != 0 {
			r.t.Errorf("%s: %s refused %d envelopes for their seal", what, m.name, n)
		}
	}
}

// said is how often the machine's agent has said something.
func (m *machine) said(what string) int {
	m.c.t.Helper()
	said, err := os.ReadFile(m.log.Name())
	if err != nil {
		m.c.t.Fatal(err)
	}
	return bytes.Count(said, []byte(what))
}

// brings replaces the keys that a machine trusts.
func (m *machine) brings(trust []byte) {
	m.c.t.Helper()
	if err := os.WriteFile(m.flags[slices.Index(m.flags, "--trust")+1], trust, 0o600); err != nil {
		m.c.t.Fatal(err)
	}
}

// learns brings them to an agent that runs, and waits until it has read them.
func (m *machine) learns(trust []byte) {
	m.c.t.Helper()
	const changed = "the keys that count changed"
	before := m.said(changed)
	m.brings(trust)
	m.says(changed, before+1)
}

// reaches brings keys to the nodes, one soon, one by a restart, and one late.
func (r *rotation) reaches(trust []byte, when string) (late func()) {
	soon, restarted, last := r.nodes[0], r.nodes[1], r.nodes[2]
	soon.learns(trust)
	r.changes(when+": one node has learned of it", r.nodes...)
	restarted.kill()
	restarted.brings(trust)
	r.changes(when+": another is without its agent", soon, last)
	restarted.start()
	r.changes(when+": that agent starts, and one has yet to learn", r.nodes...)
	return func() { last.learns(trust) }
}

// rotated waits until another key seals, and takes it for the cluster's.
func (r *rotation) rotated() {
	r.t.Helper()
	before := r.key
	r.until("another key to seal", func() error {
		if r.takesKey(); bytes.Equal(r.key, before) {
			return errors.New("the former does")
		}
		return nil
	})
}

// TestAKeyIsRotatedWithoutAGapOnAnyNode replaces the sealing key while three
// agents learn of it at three times, and things are asked for all the while.
func TestAKeyIsRotatedWithoutAGapOnAnyNode(t *testing.T) {
	need.Kernel(t)
	r := newRotation(t)
	former, err := intent.ParseKey(r.key)
	if err != nil {
		t.Fatal(err)
	}
	r.changes("before", r.nodes...)
	secret := r.owned()[0]
	r.change(secret, func() {
		metav1.SetMetaDataAnnotation(&secret.(*corev1.Secret).ObjectMeta, sealing.AnnotationRotate, "now")
	})
	late := r.reaches(r.published(2), "a new key is trusted")
	r.passes(9 * time.Minute)
	r.changes("the overlap is all but over", r.nodes...)
	late()
	r.passes(2 * time.Minute)
	r.rotated()
	r.changes("the new key seals", r.nodes...)
	for _, m := range r.nodes {
		m.runs(r.quiet, r.quietDigest)
	}
	r.until("every intent to be sealed anew, and for how long to be noted", func() error {
		if err := r.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		if secret.GetAnnotations()[v1alpha1.Group+"/resealed"] == "" {
			return fmt.Errorf("annotations %v", secret.GetAnnotations())
		}
		return nil
	})
	r.passes(11 * time.Minute)
	r.reaches(r.published(1), "the former key is trusted no more")()
	r.changes("all is over", r.nodes...)
	r.stolen(former)
	r.alone(r.nodes[2])
}

// stolen has somebody who can write BpfIntents seal with the former key.
func (r *rotation) stolen(former *intent.Sealer) {
	r.t.Helper()
	r.stop()
	envelope, err := gate.SealTombstone(former, r.changed.Identity(), gate.Stamp{UID: string(r.changed.UID), Serial: time.Now().Add(time.Hour).UnixMilli()},
		"stolen")
	if err != nil {
		r.t.Fatal(err)
	}
	forged := r.stored(string(r.changed.UID))
	forged.Spec.Envelope = envelope
	if err := r.Update(r.t.Context(), forged); err != nil {
		r.t.Fatal(err)
	}
	for i, m := range r.nodes {
		m.says("reason=seal", 1)
		r.flows[i].counted()
	}
	_, r.stop = r.serve(r.t.TempDir(), r.quick)
	for _, m := range r.nodes {
		m.runs(r.changed, r.changedDigest)
	}
}

// alone boots a node anew, out of reach of the API server: what is on its disk is
// sealed with the key that it trusts.
func (r *rotation) alone(m *machine) {
	r.t.Helper()
	m.kill()
	m.inNode("rm", "-rf", bpffsOf+"/skep")
	kubeconfig := m.flags[slices.Index(m.flags, "--kubeconfig")+1]
	body, err := os.ReadFile(kubeconfig)
	if err != nil {
		r.t.Fatal(err)
	}
	nowhere := regexp.MustCompile(`server: .*`).ReplaceAll(body, []byte("server: https://127.0.0.1:1"))
	if err := os.WriteFile(kubeconfig, nowhere, 0o600); err != nil {
		r.t.Fatal(err)
	}
	m.start()
	m.counts()
	if got := len(m.revisions(r.quiet)); got != 1 {
		r.t.Errorf("%d revisions of what nobody touched are pinned", got)
	}
}
