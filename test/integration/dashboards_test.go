package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/need"
)

// scrapesEnv names the folder of scrapes. The tests of test/dashboards read it; set for this test, it has the scrapes stay there.
const scrapesEnv = "SKEP_SCRAPES"

// observed is a cluster with all that Prometheus scrapes: two controllers, the agents of two nodes, a host with
// skep run, and the API server.
type observed struct {
	*cluster
	pair    []*deployment.Replica
	webhook string
	// host is the folder of what skep run reads.
	host string
	// targets are the addresses of /metrics, by the job and the instance in the file's name.
	targets map[string]string
	folder  string
}

// TestDashboardsAndAlerts has a cluster and a host go through all that the chart's dashboards and alerts are about, scrapes each binary
// before and after, and has the module in test/dashboards evaluate every expression by Prometheus' engine.
func TestDashboardsAndAlerts(t *testing.T) {
	need.Kernel(t)
	o := newObserved(t)
	for round := range 2 {
		o.runs(round)
		o.onTheHost(round, "team-a")
		o.scrape("healthy", round)
	}
	o.breaks()
	for round := range 2 {
		o.fails(round)
		o.denies(round)
		o.outOfReach(round)
		o.webhookAway(round)
		o.onTheHost(round)
		if round == 1 {
			o.measures()
		}
		o.scrape("story", round)
	}
	// Flags as the suite's, so that both link one set of compiled packages.
	evaluate := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-ldflags=-w", ".")
	evaluate.Dir = filepath.Join(module.Root(), "test", "dashboards")
	evaluate.Env = append(os.Environ(), scrapesEnv+"="+o.folder, "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := evaluate.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func newObserved(t *testing.T) *observed {
	o := &observed{cluster: ownCluster(t), targets: map[string]string{}, folder: os.Getenv(scrapesEnv)}
	if o.folder == "" {
		o.folder = t.TempDir()
	}
	var served served
	o.pair, served = o.deploys("--certificate-name=127.0.0.1")
	for i, one := range o.pair {
		o.targets[fmt.Sprintf("controller-%d", i)] = one.Metrics
	}
	o.create(o.Signer("team-a"))
	for _, m := range o.machines(command.Build(t, "skep-agent"), served, 2) {
		// It listens from the start on.
		m.kill()
		address := net.JoinHostPort(m.inside, "9092")
		m.flags = append(m.flags, "--listen="+address, "--metrics-secure=false")
		m.start()
		o.targets["agent-"+m.name] = address
	}
	o.rules()
	webhook, err := deployment.Listen(t.Context(), "127.0.0.1:0", o.pair[0].Webhook, o.pair[1].Webhook)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = webhook.Close() })
	o.webhook = webhook.Address()
	o.admits(o.webhook)
	o.skepRun()
	return o
}

// rules gives the namespace default the interface of each node, and denies the names of some applications for the record only.
func (o *observed) rules() {
	o.t.Helper()
	baseline := &v1alpha1.ClusterBpfPolicy{}
	baseline.Name = "baseline"
	baseline.Spec.Profile = "baseline"
	baseline.Spec.Parameters = map[string]apiextensionsv1.JSON{"nodeInterfaces": {Raw: []byte(`{"default":["eth0"]}`)}}
	audited := clusterPolicy("names", "deny contains \"a name with a number\" if regex.match(`[0-9]`, input.application.metadata.name)", "")
	audited.Spec.Mode = "Audit"
	o.create(baseline, audited)
}

// breaks adds a node without an agent, and a definition on the host that cannot be read.
func (o *observed) breaks() {
	o.t.Helper()
	o.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent", Labels: map[string]string{"role": "edge"}}})
	if err := os.WriteFile(filepath.Join(o.host, "defs", "broken.yaml"), []byte("kind: ClusterBpfApplication\nspec: 1\n"), 0o600); err != nil {
		o.t.Fatal(err)
	}
}

// counter is a fleet of its own, whose map has metrics.
func (o *observed) counter(name string, round int) *v1alpha1.ClusterBpfApplication {
	o.t.Helper()
	image, _ := o.Push(fmt.Sprintf("%s-%d:v1", name, round), programs.Object("xdp_count"), "team-a")
	app := fleet(image)
	app.Name = fmt.Sprintf("%s-%d", name, round)
	app.Spec.Maps = map[string]v1alpha1.Map{"counts": {Metrics: &v1alpha1.MapMetrics{Name: "packets_total", Type: v1alpha1.MapCounter}}}
	return app
}

// runs has an application of the cluster and one of a namespace be loaded on both nodes.
func (o *observed) runs(round int) {
	o.t.Helper()
	counts := o.counter("counts", round)
	own := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("own-%d", round)}, Spec: *counts.Spec.DeepCopy()}
	o.create(counts, own)
	o.condition(counts, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	o.condition(own, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
}

// fails has the kernel of a node reject an application.
func (o *observed) fails(round int) {
	o.t.Helper()
	bad, _ := o.Push(fmt.Sprintf("rejected-%d:v1", round), programs.Object("xdp_rejected"), "team-a")
	app := fleet(bad)
	app.Name, app.Spec.Programs[0].Name = fmt.Sprintf("rejected-%d", round), "xdp_rejected"
	o.create(app)
	o.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")
}

// unsigned is an application of an image that no signer signed.
func (o *observed) unsigned(name string) *v1alpha1.ClusterBpfApplication {
	o.t.Helper()
	image, _ := o.Push(name+":v1", append(programs.Object("xdp_pass"), name...))
	app := fleet(image)
	app.Name, app.Spec.Programs[0].Name = name, "xdp_pass"
	return app
}

// denies has the webhook deny an application.
func (o *observed) denies(round int) {
	o.t.Helper()
	if err := o.Create(o.t.Context(), o.unsigned(fmt.Sprintf("denied-%d", round))); !apierrors.IsForbidden(err) {
		o.t.Fatalf("an image that no signer signed: %v", err)
	}
}

// outOfReach creates two applications while the registry is away, which the webhook cannot verify: once the registry is back, one is
// denied.
func (o *observed) outOfReach(round int) {
	o.t.Helper()
	away, stray := o.counter("away", round), o.unsigned(fmt.Sprintf("stray-%d", round))
	o.Down.Store(true)
	defer o.Down.Store(false)
	o.create(away, stray)
	o.condition(away, v1alpha1.ConditionVerified, metav1.ConditionUnknown, "EvaluationFailed")
	o.Down.Store(false)
	// Another signer has all be evaluated now; by itself that is later.
	o.create(o.Signer(fmt.Sprintf("another-%d", round)))
	o.condition(stray, v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied")
}

// webhookAway asks for something while the API server reaches no controller.
func (o *observed) webhookAway(round int) {
	o.t.Helper()
	nowhere, err := deployment.Free(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	asks := func(from, to string) {
		o.t.Helper()
		webhooks := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "skep"}}
		o.change(webhooks, func() {
			for _, hook := range webhooks.Webhooks {
				*hook.ClientConfig.URL = strings.Replace(*hook.ClientConfig.URL, from, to, 1)
			}
		})
	}
	tries := func(want bool) error {
		err := o.Create(o.t.Context(), o.Signer(fmt.Sprintf("tried-%d", round)), client.DryRunAll)
		if away := err != nil && strings.Contains(err.Error(), "failed calling webhook"); away != want {
			return fmt.Errorf("away is to be %t: %w", want, err)
		}
		return nil
	}
	asks(o.webhook, nowhere)
	o.until("the webhook to be away", func() error { return tries(true) })
	asks(nowhere, o.webhook)
	o.until("the webhook to be back", func() error { return tries(false) })
}

// skepRun has a host read definitions from a folder.
func (o *observed) skepRun() {
	t := o.t
	t.Helper()
	o.host = t.TempDir()
	address, err := deployment.Free(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(o.host, "defs"), 0o700), os.Mkdir(filepath.Join(o.host, "signers"), 0o700),
		os.WriteFile(filepath.Join(o.host, "signers", "signer.yaml"), []byte(o.manifests(o.Signer("team-a"))), 0o600)); err != nil {
		t.Fatal(err)
	}
	// Mounts of its own, as a machine has, and a limit that the kernel shows to its first network namespace alone.
	run := exec.Command(need.Program(t, "unshare", "util-linux"), "--mount", "--propagation", "private", "sh", "-c", "mount -t bpf -o mode=0700 bpf "+bpffsOf+
		" && cp -r /proc/sys/net/core "+o.host+"; echo 264241152 > "+o.host+"/core/bpf_jit_limit && mount --bind "+o.host+"/core /proc/sys/net/core"+
		` && exec "$0" "$@"`, command.Build(t, "skep"), "run", "--source", filepath.Join(o.host, "defs"), "--signers", filepath.Join(o.host, "signers"),
		"--state", filepath.Join(o.host, "state"), "--bpffs", bpffsOf+"/skep", "--listen", address, "--maps-dir", filepath.Join(o.host, "maps"),
		"--interval", "1s", "--allowed-registry", "127.0.0.1:*")
	var said strings.Builder
	run.Stderr = &said
	if err := child.Start(run); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = errors.Join(run.Process.Kill(), run.Wait())
		if t.Failed() {
			t.Logf("skep run:\n%s", said.String())
		}
	})
	o.targets["run-host"] = address
	// The tracepoint of its applications, all the time.
	done := make(chan struct{})
	go func() {
		for tick := time.NewTicker(time.Millisecond); ; <-tick.C {
			select {
			case <-done:
				return
			default:
				_, _ = unix.Getpgid(0)
			}
		}
	}()
	t.Cleanup(func() { close(done) })
}

// onTheHost adds a definition whose image these parties signed, and waits until it runs, or is denied if none did.
func (o *observed) onTheHost(round int, signers ...string) {
	o.t.Helper()
	name := fmt.Sprintf("host-%d-%d", round, len(signers))
	image, _ := o.Push(name+":v1", append(programs.Object("tracepoint_count"), name...), signers...)
	if err := os.WriteFile(filepath.Join(o.host, "defs", name+".yaml"), []byte(o.manifests(application(name, image))), 0o600); err != nil {
		o.t.Fatal(err)
	}
	if len(signers) > 0 {
		o.serves(fmt.Sprintf("skep_applications{allowed=\"True\"} %d\n", round+1), "skep_applications_not_ready{")
	} else {
		o.serves(fmt.Sprintf("skep_applications_not_ready{reason=\"Denied\"} %d\n", round+1))
	}
	o.serves(runsOnTheHost)
}

// serves waits until the host serves a text among its metrics, and none of others.
func (o *observed) serves(text string, not ...string) {
	o.t.Helper()
	o.until("the host to serve "+text, func() error {
		body, err := fetch(o.t.Context(), o.targets["run-host"])
		if err == nil && (!strings.Contains(body, text) || slices.ContainsFunc(not, func(other string) bool { return strings.Contains(body, other) })) {
			err = errors.New(body)
		}
		return err
	})
}

// runsOnTheHost is how often the host's first program ran, by what was measured until now.
const runsOnTheHost = `skep_program_runs_total{application="host-0-1",kind="ClusterBpfApplication",namespace="",program="tracepoint_count"} `

// measures waits until the cost of programs was measured once more since the first scrape.
func (o *observed) measures() {
	o.t.Helper()
	first, err := os.ReadFile(filepath.Join(o.folder, "run-host.healthy.0"))
	if err != nil {
		o.t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(first), runsOnTheHost)
	if !found {
		o.t.Fatalf("there is no %s in\n%s", runsOnTheHost, first)
	}
	before, _, _ := strings.Cut(rest, "\n")
	o.serves(runsOnTheHost, runsOnTheHost+before+"\n")
}

// fetch asks an address for its metrics.
func fetch(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(body), err
}

// scrape writes what each target answers to files JOB-INSTANCE.PHASE.ROUND.
func (o *observed) scrape(phase string, round int) {
	o.t.Helper()
	write := func(target, body string, err error) {
		if err = errors.Join(err, os.WriteFile(filepath.Join(o.folder, fmt.Sprintf("%s.%s.%d", target, phase, round)), []byte(body), 0o600)); err != nil {
			o.t.Fatalf("scrape %s: %v", target, err)
		}
	}
	for target, address := range o.targets {
		body, err := fetch(o.t.Context(), address)
		write(target, body, err)
	}
	api, err := rest.HTTPClientFor(o.plane.Config)
	if err != nil {
		o.t.Fatal(err)
	}
	answer, err := api.Get(strings.TrimSuffix(o.plane.Config.Host, "/") + "/metrics")
	if err != nil {
		o.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	write("apiserver-0", string(body), err)
}
