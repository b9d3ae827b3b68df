package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/controlplane"
)

// processes are replicas that are processes of their own, as in a cluster.
type processes struct {
	*world
	binary string
	// metrics are where each serves them.
	metrics map[*replica]string
}

// newProcesses builds the binary.
func newProcesses(w *world) *processes {
	w.t.Helper()
	p := &processes{world: w, binary: filepath.Join(w.t.TempDir(), "skep-controller"), metrics: map[*replica]string{}}
	build := exec.CommandContext(w.t.Context(), "go", "build", "-o", p.binary, "./cmd/skep-controller")
	build.Dir, build.Env = controlplane.Root(), append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		w.t.Fatalf("build: %v\n%s", err, out)
	}
	return p
}

// start starts one, by its service account, and has the Service find it.
func (p *processes) start() *replica {
	t, dir := p.t, p.t.TempDir()
	t.Helper()
	config, err := serviceAccount(t.Context(), "skep-controller", nil)
	if err != nil {
		t.Fatal(err)
	}
	kube := clientcmdapi.NewConfig()
	kube.Clusters["c"] = &clientcmdapi.Cluster{Server: plane.Env.ControlPlane.APIServer.SecureServing.URL("https", "").String(), CertificateAuthorityData: config.CAData}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kube.Contexts["x"], kube.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*kube, filepath.Join(dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	one := &replica{webhook: freeAddress(), health: freeAddress()}
	p.metrics[one] = freeAddress()
	_, port, err := net.SplitHostPort(one.webhook)
	if err != nil {
		t.Fatal(err)
	}
	one.cmd = exec.Command(p.binary, "--kubeconfig="+filepath.Join(dir, "kubeconfig"), "--namespace="+namespace, "--cache="+filepath.Join(dir, "cache"),
		"--webhook-port="+port, "--certificate-name=127.0.0.1", "--admission-budget="+budget.String(),
		"--metrics-address="+p.metrics[one], "--health-address="+one.health)
	var said bytes.Buffer
	one.cmd.Stderr = &said
	one.cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	one.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := one.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	one.stop = sync.OnceValue(func() error {
		_ = one.cmd.Process.Signal(syscall.SIGTERM)
		return one.cmd.Wait()
	})
	t.Cleanup(func() {
		pair.leave(one)
		_ = one.stop()
		if t.Failed() {
			t.Logf("%s:\n%s", one.webhook, said.String())
		}
	})
	pair.join(one)
	p.until(func() error { return pair.ready(t.Context()) })
	return one
}

// leads tells whether a process says that it does.
func (p *processes) leads(one *replica) bool {
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.metrics[one]+"/metrics", http.NoBody)
	if err != nil {
		p.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return err == nil && strings.Contains(string(body), `leader_election_master_status{name="skep-controller"} 1`)
}

// leader waits until one of the processes leads.
func (p *processes) leader(of ...*replica) (leads *replica) {
	p.t.Helper()
	p.until(func() error {
		for _, one := range of {
			if p.leads(one) {
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
	t.Cleanup(func() {
		err := errors.Join(pair.add(), pair.add())
		if err == nil {
			ctx := context.WithoutCancel(t.Context())
			err = until(ctx, func() error { return pair.ready(ctx) })
		}
		if err != nil {
			t.Error(err)
		}
	})
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
	if err := old.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
