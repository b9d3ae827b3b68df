package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// opened is what the sealed intent of an application says; nil where there is
// none.
func (c *cluster) opened(app client.Object) *intent.Payload {
	c.t.Helper()
	if open := c.open(app); open != nil {
		p := open.Payload()
		return &p
	}
	return nil
}

// open opens the sealed intent of an application; nil where there is none.
func (c *cluster) open(app client.Object) *intent.Opened {
	c.t.Helper()
	open, err := c.tryOpen(app)
	if client.IgnoreNotFound(err) != nil {
		c.t.Fatal(err)
	}
	return open
}

// tryOpen is open for who waits for an intent to come, or for another seal of it.
func (c *cluster) tryOpen(app client.Object) (*intent.Opened, error) {
	c.t.Helper()
	sealer, err := intent.ParseKey(c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	if err != nil {
		c.t.Fatal(err)
	}
	var o v1alpha1.BpfIntent
	if err := c.Get(c.t.Context(), client.ObjectKey{Name: string(app.GetUID())}, &o); err != nil {
		return nil, err
	}
	open, err := trust.Open(o.Spec.Envelope)
	return &open, err
}

// answers has a node say of an application what an agent would say.
func (c *cluster) answers(node string, app client.Object, state v1alpha1.NodeState, message string) {
	c.t.Helper()
	p := c.opened(app)
	n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
		c.t.Fatal(err)
	}
	said := v1alpha1.NodeApplication{
		Kind: p.Application.Kind, Namespace: p.Application.Namespace, Name: p.Application.Name,
		UID: p.UID, Serial: p.VersionSerial(), State: state, Message: message,
	}
	n.Status.Applications = []v1alpha1.NodeApplication{said}
	if err := c.Update(c.t.Context(), n); err != nil {
		c.t.Fatal(err)
	}
}

func TestAnApplicationFromApplyToDeletion(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.node("one", nil)
	c.node("two", nil)
	c.create(c.Signer("team-a"))
	signed, digest := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := application("app", signed)
	c.create(app)

	c.condition(app, v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed")
	c.condition(app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
	if p := c.opened(app); p == nil || p.ImageDigest != digest || p.Tombstone {
		t.Fatalf("sealed %+v", p)
	}
	if app.Status.Digest != digest || fmt.Sprint(app.Status.Signers) != "[team-a]" {
		t.Errorf("status says digest %s, signers %v", app.Status.Digest, app.Status.Signers)
	}
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	c.answers("two", app, v1alpha1.NodeFailed, "R1 invalid mem access 'scalar'")
	failed := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "NodesFailed")
	if !strings.Contains(failed.Message, "two: R1 invalid mem access") || app.Status.Nodes.Summary != "1/2" {
		t.Errorf("%s; %s", failed.Message, app.Status.Nodes.Summary)
	}
	c.answers("two", app, v1alpha1.NodeLoaded, "")
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")

	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	c.until("a tombstone", func() error {
		if p := c.opened(app); p == nil || !p.Tombstone {
			return fmt.Errorf("sealed %+v", p)
		}
		return nil
	})
}

func TestAnUnsignedImageIsNeverSealed(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.create(c.Signer("team-a"))
	unsigned, _ := c.Push("app:v1", programs.Object("tracepoint_count"))
	app := application("app", unsigned)
	c.create(app)
	denied := c.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
	if !strings.Contains(denied.Message, "baseline/") {
		t.Errorf("the message names no rule: %s", denied.Message)
	}
	c.condition(app, v1alpha1.ConditionStalled, metav1.ConditionTrue, "Denied")
	if p := c.opened(app); p != nil {
		t.Errorf("sealed %+v", p)
	}
}

func TestALostKeyIsSealedOver(t *testing.T) {
	c := newCluster(t)
	stop := c.control()
	c.create(c.Signer("team-a"))
	app := c.loads("app", "one")
	before := c.opened(app).Serial
	stop()
	key, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	c.key = key
	c.control()
	c.until("the intent to be sealed by the new key", func() error {
		var o v1alpha1.BpfIntent
		if err := c.Get(t.Context(), client.ObjectKey{Name: string(app.GetUID())}, &o); err != nil {
			return err
		}
		if o.Spec.Serial <= before {
			return fmt.Errorf("serial %d, it was %d", o.Spec.Serial, before)
		}
		return nil
	})
	if p := c.opened(app); p == nil || p.Tombstone {
		t.Errorf("sealed %+v", p)
	}
}
