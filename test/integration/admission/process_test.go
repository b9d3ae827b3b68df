package admission

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/deployment"
)

// processes are replicas that are processes of their own, as in a cluster.
type processes struct {
	*world
	binary string
	// of are the processes behind replicas.
	of map[*replica]*deployment.Replica
}

// newProcesses builds the binary.
func newProcesses(w *world) *processes {
	w.t.Helper()
	return &processes{world: w, binary: command.Build(w.t, "skep-controller"), of: map[*replica]*deployment.Replica{}}
}

// start starts one, by its service account, and has the Service find it.
func (p *processes) start() *replica {
	t := p.t
	t.Helper()
	config, err := serviceAccount(t.Context(), "skep-controller", nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, kube := filepath.Join(t.TempDir(), "kubeconfig"), clientcmdapi.NewConfig()
	kube.Clusters["c"] = &clientcmdapi.Cluster{
		Server: plane.Env.ControlPlane.APIServer.SecureServing.URL("https", "").String(), CertificateAuthorityData: config.CAData,
	}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kube.Contexts["x"], kube.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*kube, kubeconfig); err != nil {
		t.Fatal(err)
	}
	process := deployment.Start(t, deployment.Options{Binary: p.binary, Kubeconfig: kubeconfig, Namespace: namespace,
		Flags: []string{"--certificate-name=127.0.0.1", "--admission-budget=" + budget.String()}})
	one := &replica{webhook: process.Webhook, health: process.Health, stop: process.Stop}
	p.of[one] = process
	pair.join(one)
	t.Cleanup(func() { pair.leave(one) })
	p.until(func() error { return pair.ready(t.Context()) })
	return one
}

// leader waits until one of the processes leads.
func (p *processes) leader(of ...*replica) (leads *replica) {
	p.t.Helper()
	p.until(func() error {
		for _, one := range of {
			if p.of[one].Leads() {
				leads = one
				return nil
			}
		}
		return errors.New("nobody leads")
	})
	return leads
}

// holder is who the lease says leads.
func (p *processes) holder() string {
	p.t.Helper()
	var lease coordinationv1.Lease
	if err := admin.Get(p.t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-controller"}, &lease); err != nil {
		p.t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// asking has a user ask again and again, until the function it returns is called,
// which tells how often the webhook answered and what came instead of an answer.
func (p *processes) asking(by client.Client, app *v1alpha1.BpfApplication) (stop func() (answered int, failed []error)) {
	ctx, cancel := context.WithCancel(p.t.Context())
	var (
		wait     sync.WaitGroup
		answered int
		failed   []error
	)
	wait.Go(func() {
		for ctx.Err() == nil {
			switch err := by.Create(ctx, app.DeepCopy(), client.DryRunAll); {
			case err == nil:
				answered++
			case ctx.Err() == nil:
				failed = append(failed, fmt.Errorf("after %d answers: %w", answered, err))
			}
		}
	})
	return func() (int, []error) {
		cancel()
		wait.Wait()
		return answered, failed
	}
}

// forgedDigest is what no image has.
const forgedDigest = "sha256:forged"

// settled has the reconcilers look at applications once more, and returns the
// versions of their intents.
func (p *processes) settled(by client.Client, apps ...*v1alpha1.BpfApplication) (versions string) {
	p.t.Helper()
	for _, app := range apps {
		if err := admin.Get(p.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			p.t.Fatal(err)
		}
		// It is looked at when its label changes, and what is wrong with its status
		// is put right.
		lie, before := app.DeepCopy(), app.DeepCopy()
		lie.Status.Digest = forgedDigest
		if err := admin.Status().Patch(p.t.Context(), lie, client.MergeFrom(app)); err != nil {
			p.t.Fatal(err)
		}
		app.Labels = map[string]string{"looked": lie.ResourceVersion}
		if err := by.Patch(p.t.Context(), app, client.MergeFrom(before)); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, app := range apps {
		p.until(func() error {
			if err := admin.Get(p.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				return err
			}
			if app.Status.Digest == forgedDigest {
				return fmt.Errorf("%s was not looked at", app.Name)
			}
			return nil
		})
		o := p.intent(app, lives)
		versions += fmt.Sprintf("%s %s\n", o.Spec.Application, o.ResourceVersion)
	}
	return versions
}

// TestALeaderThatIsKilledOrStopsIsFollowed has two replicas of the real binary,
// of which the one that leads is killed, and later stopped.
func TestALeaderThatIsKilledOrStopsIsFollowed(t *testing.T) {
	w := newWorld(t)
	p := newProcesses(w)
	image, gus := w.signed(), w.member("gus-of-"+w.namespace)
	apps := []*v1alpha1.BpfApplication{w.app("one", image), w.app("two", image)}
	for _, app := range apps {
		w.create(gus, app)
		w.intent(app, lives)
	}
	// The other tests' replicas come back last.
	pair.refill(t)
	first, second := p.start(), p.start()
	for range 2 {
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
	}
	old := p.leader(first, second)
	before := p.settled(gus, apps...)

	t.Log("kill the leader")
	dead, stop := p.holder(), p.asking(gus, w.app("asked", image))
	p.of[old].Kill()
	pair.leave(old)
	third := w.app("three", image)
	w.until(func() error { return gus.Create(t.Context(), third) })
	if p.holder() != dead {
		t.Error("the test came too late to see the webhook answer while nobody leads")
	}
	w.intent(third, lives)
	if answered, failed := stop(); len(failed) > 1 || answered < 10 {
		t.Errorf("the webhook answered %d times, and then: %v", answered, failed)
	}
	apps = append(apps, third)
	if now := p.settled(gus, apps...); !strings.HasPrefix(now, before) {
		t.Errorf("intents were written:\n%s\nwere\n%s", now, before)
	}

	t.Log("stop the leader, with another one there")
	before = p.settled(gus, apps...)
	other := p.start()
	old = p.leader(first, second)
	was, stop := p.holder(), p.asking(gus, w.app("asked", image))
	pair.leave(old)
	if err := old.stop(); err != nil {
		t.Errorf("it ends with %v", err)
	}
	if is := p.holder(); is == was {
		t.Errorf("it ended and still holds the lease: %s", is)
	}
	p.leader(other)
	fourth := w.app("four", image)
	w.create(gus, fourth)
	w.intent(fourth, lives)
	if answered, failed := stop(); len(failed) > 0 || answered < 10 {
		t.Errorf("the webhook answered %d times, and then: %v", answered, failed)
	}
	if now := p.settled(gus, apps...); now != before {
		t.Errorf("intents were written:\n%s\nwere\n%s", now, before)
	}
}

// holds has somebody else hold the lease, as another replica would, and for an hour;
// nobody lets it go.
func (p *processes) holds(identity string) {
	p.t.Helper()
	p.until(func() error {
		var lease coordinationv1.Lease
		if err := admin.Get(p.t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-controller"}, &lease); err != nil {
			return err
		}
		now, hour := metav1.NowMicro(), int32(3600)
		lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &identity, &now, &hour
		return admin.Update(p.t.Context(), &lease)
	})
}

// TestAReplicaThatLosesTheLeadKeepsAnswering has the lease of the only replica taken
// by somebody who never writes anything, and let go.
func TestAReplicaThatLosesTheLeadKeepsAnswering(t *testing.T) {
	w := newWorld(t)
	p := newProcesses(w)
	image, gus := w.signed(), w.member("gus-of-"+w.namespace)
	first := w.app("first", image)
	w.create(gus, first)
	w.intent(first, lives)
	pair.refill(t)
	only := p.start()
	for range 2 {
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
	}
	p.leader(only)
	was := p.holder()
	before := p.settled(gus, first)
	stop := p.asking(gus, w.app("asked", image))

	t.Log("somebody takes the lease")
	p.holds("thief")
	p.until(func() error {
		if p.of[only].Leads() {
			return errors.New("it still leads")
		}
		return nil
	})
	second := w.app("second", image)
	w.create(gus, second)
	for range 50 {
		if err := gus.Create(t.Context(), w.app("third", image), client.DryRunAll); err != nil {
			t.Fatal(err)
		}
	}
	if err := pair.ready(t.Context()); err != nil {
		t.Errorf("it is not ready without the lead: %v", err)
	}
	var intents v1alpha1.BpfIntentList
	if err := admin.List(t.Context(), &intents); err != nil {
		t.Fatal(err)
	}
	for _, o := range intents.Items {
		if o.Name == string(second.UID) {
			t.Error("it sealed without the lead")
		}
	}

	t.Log("and lets it go")
	p.holds("")
	p.leader(only)
	w.intent(second, lives)
	if now := p.settled(gus, first); now != before {
		t.Errorf("intents were written:\n%s\nwere\n%s", now, before)
	}
	if is := p.holder(); is != was {
		t.Errorf("%s holds the lease, and %s did: it was started anew", is, was)
	}
	if answered, failed := stop(); len(failed) > 0 || answered < 10 {
		t.Errorf("the webhook answered %d times, and then: %v", answered, failed)
	}
}
