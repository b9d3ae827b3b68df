package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/series"
	"github.com/skep-dev/skep/test/harness/workers"
)

const (
	// namespace is where the chart is installed.
	namespace = "skep-system"
	// budget is the webhook's: enough for a registry beside it on a busy machine.
	budget = 3 * time.Second
	// patience bounds what a test waits for; far more than anything takes.
	patience = 3 * time.Minute
)

// plane is shared by the package's tests: each has a namespace of its own.
var (
	plane *controlplane.Plane
	// here is what the chart finds on it.
	here  deployment.Chart
	admin client.Client
	pair  replicas
	// folder holds what the replicas cache.
	folder string
)

func TestMain(m *testing.M) {
	policies.MaybeWorkerChild()
	workers.Use()
	ctrl.SetLogger(logr.Discard())
	os.Exit(leaks.Apart(func() int { return run(m) }))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "admission")
	if err == nil {
		err = start(dir)
	}
	if err == nil {
		code := m.Run()
		if err = pair.stop(); err == nil {
			defer func() { _ = errors.Join(plane.Stop(), os.RemoveAll(dir)) }()
			return code
		}
	}
	fmt.Fprintln(os.Stderr, err)
	if plane != nil {
		_ = plane.Stop()
	}
	return 1
}

// recorded is the name of the applications whose updates the API server's audit log has.
const recorded = "recorded"

// auditLog has the API server write the log to a file in the folder.
func auditLog(dir string) (flags map[string][]string, err error) {
	policy := filepath.Join(dir, "audit.yaml")
	rules := fmt.Sprintf("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n"+
		"- {level: Metadata, resources: [{group: %s, resources: [bpfapplications], resourceNames: [%s]}]}\n- {level: None}\n", v1alpha1.Group, recorded)
	return map[string][]string{"audit-policy-file": {policy}, "audit-log-path": {filepath.Join(dir, "audit.log")}, "audit-log-mode": {"blocking"}},
		os.WriteFile(policy, []byte(rules), 0o600)
}

// start installs the chart's part into a real API server, and runs two
// controllers with the rights it gives them.
func start(dir string) error {
	ctx := context.Background()
	var err error
	audit, err := auditLog(dir)
	if err != nil {
		return err
	}
	if plane, err = controlplane.Start(ctx, controlplane.Options{Flags: audit}); err != nil {
		return err
	}
	if admin, err = newClient(plane.Config); err != nil {
		return err
	}
	mutates, err := plane.Mutates()
	if err != nil {
		return err
	}
	if here = older; mutates {
		here = newest
	}
	if pair.service, err = deployment.Listen(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	for _, file := range []string{"rbac.yaml", "roles.yaml", "writers.yaml", "requester.yaml", "webhook.yaml"} {
		for _, o := range render(file, here) {
			if err := admin.Create(ctx, o); err != nil {
				return fmt.Errorf("install %s: %w", file, err)
			}
		}
	}
	folder = dir
	for range 2 {
		if err := pair.add(); err != nil {
			return err
		}
	}
	return inForce(ctx)
}

// inForce waits until the API server has seen all that was installed.
func inForce(ctx context.Context) error {
	for _, err := range []error{
		until(ctx, func() error { return pair.ready(ctx) }),
		until(ctx, func() error { return requesterRecorded(ctx, true) }),
		until(ctx, func() error {
			forged := &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: "forged"}, Spec: forgedIntent}
			if admin.Create(ctx, forged, client.DryRunAll) == nil {
				return errors.New("an admin may write intents")
			}
			return nil
		}),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// requesterRecorded reports whether an application that is created bears its
// requester, or is rejected since it does not.
func requesterRecorded(ctx context.Context, want bool) error {
	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}
	app.Spec.Bytecode.Image = "127.0.0.1:1/none@sha256:" + string(slices.Repeat([]byte("0"), 64))
	app.Spec.Programs = []v1alpha1.Program{{Name: "p"}}
	app.Annotations = map[string]string{v1alpha1.AnnotationRequester: forgery}
	err := admin.Create(ctx, app, client.DryRunAll)
	if !want {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "admission/requester") {
			return fmt.Errorf("it is not refused: %w", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	if got := app.Annotations[v1alpha1.AnnotationRequester]; got == forgery {
		return fmt.Errorf("requester is %q", got)
	}
	return nil
}

// until asks often, until check is content.
func until(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return await.Until(ctx, 250*time.Millisecond, check)
}

func newClient(config *rest.Config) (client.Client, error) {
	scheme, err := controller.Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// replica is one controller.
type replica struct {
	webhook, health string
	// metrics are those of a replica in this process.
	metrics *prometheus.Registry
	// stop ends it as a kubelet does.
	stop func() error
}

// replicas are controllers behind a Service.
type replicas struct {
	service *deployment.Service

	mu      sync.Mutex
	running []*replica
}

// add starts a controller with the rights of its service account, which asks for
// a certificate of more names than the others'.
func (r *replicas) add(names ...string) error {
	cache, err := os.MkdirTemp(folder, "replica")
	if err != nil {
		return err
	}
	// It outlives the test that starts it.
	ctx, cancel := context.WithCancel(context.Background())
	config, err := serviceAccount(ctx, "skep-controller", nil)
	if err != nil {
		cancel()
		return err
	}
	done := make(chan error, 1)
	one := &replica{metrics: prometheus.NewRegistry(), stop: func() error {
		cancel()
		return <-done
	}}
	for _, address := range []*string{&one.webhook, &one.health} {
		if *address, err = deployment.Free(ctx); err != nil {
			return err
		}
	}
	at, err := net.ResolveTCPAddr("tcp", one.webhook)
	if err != nil {
		return err
	}
	mgr, err := controller.New(ctx, controller.Options{
		Config: config, Namespace: namespace, Cache: cache, LeaderElection: true, Leader: deployment.Timing(), HealthAddress: one.health, Metrics: one.metrics,
		AllowedRegistries: append(supply.Loopback(), floodRegistries()...), RegistryBackoff: time.Millisecond,
		Admission: admission.Options{Host: "127.0.0.1", Port: at.Port, Names: append(names, "127.0.0.1"), Budget: budget},
		// One test's policies do not wait for another's.
		NamespacedPoliciesEvery: time.Millisecond,
	})
	if err != nil {
		return err
	}
	go func() { done <- mgr.Start(ctx) }()
	r.join(one)
	return nil
}

// join has the Service find a replica, leave has it find it no more.
func (r *replicas) join(one *replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = append(r.running, one)
	r.service.Join(one.webhook)
}

func (r *replicas) leave(one *replica) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(o *replica) bool { return o == one })
	r.service.Leave(one.webhook)
}

// remove stops the replica that runs longest.
func (r *replicas) remove() error {
	first := r.running[0]
	r.leave(first)
	return first.stop()
}

func (r *replicas) stop() error {
	var errs []error
	for len(r.running) > 0 {
		errs = append(errs, r.remove())
	}
	return errors.Join(append(errs, r.service.Close())...)
}

// ready asks every replica.
func (r *replicas) ready(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.running {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: one.health, Path: "/readyz"}).String(), http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return fmt.Errorf("not ready: %s %w", body, err)
		}
	}
	return nil
}

// sum adds up one series of every replica.
func (r *replicas) sum(t testing.TB, of string) (sum float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.running {
		sum += series.Of(t, one.metrics)[of]
	}
	return sum
}

// requests counts the requests of a kind that reached any replica, by verdict.
func (r *replicas) requests(kind string) map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, one := range r.running {
		families, err := one.metrics.Gather()
		if err != nil {
			continue
		}
		for _, f := range families {
			if f.GetName() != "skep_admission_requests_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				if labels["kind"] == kind {
					counts[labels["verdict"]] += int(m.GetCounter().GetValue())
				}
			}
		}
	}
	return counts
}

// serviceAccount is who shows a token of a service account of the chart, bound
// to a Pod where one is given.
func serviceAccount(ctx context.Context, name string, pod *corev1.Pod) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := admin.SubResource("token").Create(ctx, sa, request); err != nil {
		return nil, fmt.Errorf("ask for token of %s: %w", name, err)
	}
	config := rest.AnonymousClientConfig(plane.Config)
	config.BearerToken, config.QPS = request.Status.Token, -1
	return config, nil
}
