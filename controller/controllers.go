// Package controller is cluster mode's half without a kernel: it watches what
// people write, has the gate evaluate it, and writes sealed intents and statuses.
//
// It owns what runs in one process and how the parts are joined, as one list.
// What each part does stands in the folders below; none of them knows the
// agent.
package controller

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/controller/agents"
	"github.com/skep-dev/skep/controller/application"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/controller/imagestore"
	"github.com/skep-dev/skep/controller/intents"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/controller/pull"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/gate"
	gatemetrics "github.com/skep-dev/skep/gate/metrics"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/kubeauth"
	"github.com/skep-dev/skep/listen"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Options says what a controller is told once.
type Options struct {
	// Config reaches the API server. Needed.
	Config *rest.Config
	// Namespace is Skep's own, where leases and Secrets are. Needed.
	Namespace string
	// SealKey is the key intents are sealed with, as intent.GenerateKey made it.
	// Empty means the one in a Secret of Namespace, which is made on first use
	// and rotated; see package sealing.
	SealKey []byte
	// Rotation is how the key in the Secret is rotated.
	Rotation Rotation
	// Cache is a folder for bytecode. Needed. CacheSize is the room there, in bytes,
	// of which three quarters are used and a quarter is kept for what nothing needs
	// now; zero means 1 GiB.
	Cache     string
	CacheSize int64
	// InsecureRegistries are reached over plain http.
	InsecureRegistries []string
	// AllowedRegistries are the registries that applications may name; see
	// registry.Options. Empty means every one at a public address.
	AllowedRegistries []string
	// RegistryBackoff is how long to wait before a registry is asked again; see
	// registry.Options.
	RegistryBackoff time.Duration
	// LeaderElection lets one of several replicas write.
	LeaderElection bool
	// Leader is how long the lead lasts without an answer of the API server. It must
	// pass its Check once defaults are set.
	Leader leader.Timing
	// MetricsAddress and HealthAddress are where those are served; empty means
	// nowhere.
	MetricsAddress, HealthAddress string
	// InsecureMetrics serves metrics over http to whoever asks; else they are served
	// over https to those whom the API server lets get the path.
	InsecureMetrics bool
	// Mirror hands bytecode to agents.
	Mirror MirrorOptions
	// Aggregated has kube-apiserver hand on requests of people to nodes; the zero value does not.
	Aggregated AggregatedOptions
	// Interval is how often an application that is well is evaluated again; zero
	// means ten minutes.
	Interval time.Duration
	// NamespacedPoliciesEvery is how often policies of namespaces alone change what is
	// active, where they change again and again; zero means half a minute.
	NamespacedPoliciesEvery time.Duration
	// Admission is how requests to the API server are looked at; the zero value
	// serves none.
	Admission admission.Options
	// Agents chooses the Pods of Namespace that are agents; the zero value takes
	// one to run on every node.
	Agents agents.Options
	// Cue has CueArtifacts rendered and served; the zero value does not.
	Cue CueOptions
	// WatchLabelSelector chooses the CueArtifacts that are looked at; nil means all.
	WatchLabelSelector labels.Selector
	// PprofPort is where Go's profiles are served, on loopback alone; zero means
	// nowhere.
	PprofPort int
	// Metrics is where metrics are registered; nil means controller-runtime's own
	// registry, and one controller a process.
	Metrics prometheus.Registerer
}

// registry is where metrics are registered.
func (o Options) registry() prometheus.Registerer {
	if o.Metrics == nil {
		return metrics.Registry
	}
	return o.Metrics
}

// Rotation says how often keys are looked at, and by which clock; the zero value
// is what a cluster needs.
type Rotation struct {
	// Every is how often the Secret and the seals are looked at; zero means a minute
	// and 15 seconds.
	Every time.Duration
	// Now is the clock that a key's overlap with the one before is measured by; nil
	// means time.Now.
	Now func() time.Time
}

// MirrorOptions says where bytecode is served to agents; the zero value serves
// none.
type MirrorOptions struct {
	// Address is where to listen; Listener takes its place in tests.
	Address  string
	Listener net.Listener
	// Certificate shows who serves; nil means admission's, which then has to be
	// served, and whose authorities are published for agents.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ServiceAccount is the agents', in Namespace; empty means skep-agent.
	ServiceAccount string
	// TokenFile holds a token of the controller's own service account for the
	// mirror's audience, by which replicas ask each other for what they lack; empty
	// means that they do not.
	TokenFile string
	// Peers lists the replicas' mirrors as host:port; nil means those behind the
	// Service skep-mirror.
	Peers func(context.Context) ([]string, error)
	// ServerName is what the mirror's certificate says; empty means the Service's
	// name.
	ServerName string
	// requests are those of users, which agents ask for here.
	requests mirror.NodeRequests
}

// served reports whether there is to be a mirror.
func (m MirrorOptions) served() bool { return m.Address != "" || m.Listener != nil }

// Scheme knows every kind that the controller reads or writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s), sourcev1.AddToScheme(s))
}

// registries reads images, and caches them in the room there is.
func (o Options) registries(room int64, counts *gatemetrics.Metrics, to events.EventRecorder) (*registry.Client, error) {
	return registry.NewClient(registry.Options{
		CacheBytes: room / 4 * 3, CacheDir: filepath.Join(o.Cache, "bytecode"),
		InsecureRegistries: o.InsecureRegistries, UserAgent: "skep-controller", Answered: counts.Answered,
		AllowedRegistries: o.allowedRegistries(), Unreachable: newUnreachable(to, o.Namespace).report, Backoff: o.RegistryBackoff,
	}.ForInspection())
}

// allowedRegistries are those that applications may name: whoever writes one must not
// have a controller ask what it reaches inside.
func (o Options) allowedRegistries() []string {
	if len(o.AllowedRegistries) == 0 {
		return []string{transport.AnyPublic}
	}
	return o.AllowedRegistries
}

// New joins the parts of a controller. The manager's Start runs them, and has to be
// called.
func New(ctx context.Context, o Options) (_ ctrl.Manager, err error) {
	if o.Interval < 0 {
		return nil, fmt.Errorf("start: interval %s is negative: give how long to wait between two looks, such as 10m", o.Interval)
	}
	engine := policies.NewEngine(policies.EngineOptions{})
	defer func() {
		if err != nil {
			engine.Close()
		}
	}()
	mgr, err := join(ctx, o, engine)
	if err != nil {
		return nil, err
	}
	return draining{mgr, engine.Close}, nil
}

// draining is a manager that closes what its servers use once it has stopped: requests
// that came before are answered until then.
type draining struct {
	ctrl.Manager
	close func()
}

// Start implements manager.Manager.
func (d draining) Start(ctx context.Context) error {
	defer d.close()
	return d.Manager.Start(ctx)
}

// join joins the parts of a controller.
func join(ctx context.Context, o Options, engine *policies.Engine) (ctrl.Manager, error) {
	certificates := &admission.Certificates{}
	mgr, err := newManager(o, certificates)
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	ring, err := newRing(ctx, mgr, o)
	if err != nil {
		return nil, err
	}
	registry := o.registry()
	counts := gatemetrics.New(registry)
	room := cmp.Or(o.CacheSize, 1<<30)
	told := brief{mgr.GetEventRecorder(leaseName)}
	registries, err := o.registries(room, counts, told)
	if err != nil {
		return nil, fmt.Errorf("open registries: %w", err)
	}
	memory, shared := remembering(mgr.GetClient(), ring, registries)
	evaluator, err := newEvaluator(ctx, engine, gate.Options{Images: registries, Memory: memory, Observer: counts})
	if err != nil {
		return nil, err
	}
	keeper, err := newKeeper(mgr, o, policy.Options{Keys: ring.Keys, Evaluator: evaluator, Engine: engine})
	if err != nil {
		return nil, err
	}
	secrets := &pull.Secrets{Live: mgr.GetAPIReader(), Cached: mgr.GetClient(), Namespace: o.Namespace, Shared: shared}
	elector, err := newElector(mgr, o, told)
	if err != nil {
		return nil, fmt.Errorf("elect a leader: %w", err)
	}
	counted := application.NewMetrics(registry)
	applications := &application.Reconciler{
		Intents: &intents.Store{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Keys: ring.Keys, Wrote: counted.Sealed},
		Client:  mgr.GetClient(), Live: mgr.GetAPIReader(), Evaluator: evaluator, Keeper: keeper, Images: secrets.Reader,
		Interval: o.Interval, ReadyWithin: time.Second, Describe: memory.Describe,
		Events: told, Metrics: counted, Leader: elector,
	}
	again, err := registerEvaluated(ctx, mgr, o, secrets, applications)
	if err != nil {
		return nil, err
	}
	settings := &policy.Reconciler{Client: mgr.GetClient(), Keeper: keeper, Weigher: applications, Changed: again, Events: told,
		Leader: elector, NamespacedEvery: o.NamespacedPoliciesEvery}
	if err := settings.Register(mgr); err != nil {
		return nil, fmt.Errorf("register policies: %w", err)
	}
	if err := registerServers(ctx, mgr, o, ring, registries, secrets, applications.Intents, admission.Parts{
		Evaluator: evaluator, Keeper: keeper, Images: secrets.Reader, Certificates: certificates, Metrics: registry, Namespace: o.Namespace, Leader: elector,
	}); err != nil {
		return nil, err
	}
	elector.Add(
		&sealing.Resealer{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Ring: ring, Every: o.Rotation.Every},
		&imagestore.Sweeper{Client: mgr.GetClient()},
	)
	return mgr, errors.Join(registry.Register(newCensus(mgr.GetClient(), keeper)), addRunnables(mgr, elector, keeper,
		&imagestore.Pruner{Reader: mgr.GetClient(), Open: ring.OpenIntent, Cache: registries.Cache(), MaxBytes: room / 4}))
}

// newKeeper keeps the active policies of a cluster.
func newKeeper(mgr ctrl.Manager, o Options, of policy.Options) (*policy.Keeper, error) {
	direct, err := newDirect(mgr)
	if err != nil {
		return nil, err
	}
	of.Reader, of.Direct, of.Namespace = mgr.GetClient(), direct, o.Namespace
	return policy.NewKeeper(of), nil
}

// registerServers has the manager serve the webhook, the mirror and aggregated APIs.
func registerServers(ctx context.Context, mgr ctrl.Manager, o Options, ring *sealing.Ring, registries *registry.Client, secrets *pull.Secrets,
	store *intents.Store, parts admission.Parts) (err error) {
	if o.Mirror.requests, err = registerAggregated(mgr, o, ring, store, parts.Certificates); err != nil {
		return fmt.Errorf("register aggregated APIs: %w", err)
	}
	if o.Mirror.served() && o.Mirror.Certificate == nil {
		o.Mirror.Certificate, parts.Tell = parts.Certificates.Get, tellAgents(mgr, o.Namespace)
	}
	if err := admission.Register(mgr, o.Admission, parts); err != nil {
		return fmt.Errorf("register admission: %w", err)
	}
	if err := registerMirror(ctx, mgr, o, ring, registries, secrets); err != nil {
		return fmt.Errorf("register mirror: %w", err)
	}
	return nil
}

// addRunnables has the manager run what every replica runs beside its servers and
// reconcilers; the elector runs what is for the leader alone.
func addRunnables(mgr ctrl.Manager, elector *leader.Elector, keeper *policy.Keeper, pruner *imagestore.Pruner) error {
	return errors.Join(
		mgr.Add(elector),
		mgr.Add(pruner),
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("policies", keeper.Check),
	)
}

// leaseName is that of the lease that the leader holds.
const leaseName = "skep-controller"

// newElector decides whether this replica writes. The manager holds no election of
// its own: it would end the process, and with it the webhook, where the lead is lost.
func newElector(mgr ctrl.Manager, o Options, recorder events.EventRecorder) (*leader.Elector, error) {
	options := leader.Options{Name: leaseName, Timing: o.Leader}
	if o.LeaderElection {
		var err error
		if options.Lock, err = leader.NewLock(mgr.GetConfig(), o.Namespace, leaseName, o.Leader, leader.Recorder{EventRecorder: recorder}); err != nil {
			return nil, err
		}
	}
	return leader.New(options), nil
}

// remembering joins what replicas remember of images with where they read them:
// each fills the other.
func remembering(c client.Client, ring *sealing.Ring, registries *registry.Client) (*imagestore.Memory, *access.Shared) {
	memory := &imagestore.Memory{Client: c, Keys: ring.Keys, Gather: time.Second}
	shared := access.NewShared(registries, access.SharedOptions{Recall: memory.Recall})
	memory.Remember, memory.Open = shared.Remember, shared.Open
	return memory, shared
}

// registerEvaluated has the manager run what the gate evaluates: applications, and CueArtifacts
// with those that are rendered. again has all of it evaluated anew.
func registerEvaluated(ctx context.Context, mgr ctrl.Manager, o Options, secrets *pull.Secrets,
	r *application.Reconciler) (again func(policy.Where), err error) {
	applications, err := registerApplications(ctx, mgr, o.Agents, r)
	if err != nil {
		return nil, fmt.Errorf("register applications: %w", err)
	}
	rendered, err := registerCue(ctx, mgr, o.Cue, secrets, &cueartifact.Reconciler{
		Client: r.Client, Live: r.Live, Evaluator: r.Evaluator, Keeper: r.Keeper, Events: r.Events, Leader: r.Leader,
	})
	if err != nil {
		return nil, fmt.Errorf("register CueArtifacts: %w", err)
	}
	return func(where policy.Where) {
		applications(where)
		rendered()
	}, nil
}

// registerApplications has the manager run the reconciler, and look where agents
// run. again has applications evaluated anew where signers or policies changed.
func registerApplications(ctx context.Context, mgr ctrl.Manager, o agents.Options, r *application.Reconciler) (again func(policy.Where), err error) {
	if !o.Enabled() {
		return r.Register(ctx, mgr)
	}
	watch := &agents.Watch{Reader: mgr.GetClient(), Options: o}
	r.Agents = watch.Nodes
	if again, err = r.Register(ctx, mgr); err != nil {
		return nil, err
	}
	watch.Changed = func() { again(policy.Where{Everywhere: true}) }
	return again, watch.Register(mgr)
}

// newManager is a manager whose cache holds no more than is read.
func newManager(o Options, certificates *admission.Certificates) (ctrl.Manager, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	several := o.Metrics != nil
	objects := map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: trimNode}}
	if o.Cue.served() && o.WatchLabelSelector != nil {
		objects[&v1alpha1.CueArtifact{}] = cache.ByObject{Label: o.WatchLabelSelector}
	}
	maps.Copy(objects, o.Admission.Cache(o.Namespace))
	maps.Copy(objects, o.Agents.Cache(o.Namespace))
	// The API server's own priority and fairness bounds what a controller may ask;
	// client-go's twenty requests a second would keep a revocation from a thousand
	// applications for minutes.
	unbounded := rest.CopyConfig(o.Config)
	if unbounded.QPS == 0 {
		unbounded.QPS = -1
	}
	return ctrl.NewManager(unbounded, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                o.metricsServer(certificates),
		HealthProbeBindAddress: orOff(o.HealthAddress),
		PprofBindAddress:       loopback(o.PprofPort),
		WebhookServer:          o.Admission.Server(certificates),
		Controller:             config.Controller{SkipNameValidation: &several},
		Cache: cache.Options{
			DefaultTransform: trimMetadata,
			ByObject:         objects,
		},
	})
}

// metricsServer serves metrics: with the webhook's certificate where there is one,
// which the authorities that agents trust the mirror by signed, else with one that
// nobody vouches for.
func (o Options) metricsServer(certificates *admission.Certificates) metricsserver.Options {
	served := metricsserver.Options{BindAddress: orOff(o.MetricsAddress), TLSOpts: []func(*tls.Config){modern},
		HandlerOpts: []func(*promhttp.HandlerOpts){func(p *promhttp.HandlerOpts) {
			listen.Continue(p, o.registry(), slog.New(logr.ToSlogHandler(ctrl.Log)))
		}}}
	if o.InsecureMetrics {
		return served
	}
	served.SecureServing = true
	if o.Admission.Enabled() {
		served.TLSOpts = append(served.TLSOpts, func(c *tls.Config) { c.GetCertificate = certificates.Get })
	}
	served.FilterProvider = func(config *rest.Config, client *http.Client) (metricsserver.Filter, error) {
		guard, err := kubeauth.New(config, client)
		return func(log logr.Logger, next http.Handler) (http.Handler, error) {
			return guard.Handler(next, func(err error) { log.Error(err, "review who asks for metrics") }), nil
		}, err
	}
	return served
}

// modern denies TLS before 1.3.
func modern(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }

// orOff is controller-runtime's word for an address that is not served.
func orOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}

// loopback is the address of a port that nobody outside the Pod reaches.
func loopback(port int) string {
	if port == 0 {
		return orOff("")
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// trimMetadata keeps of an object's metadata what is read: no record of who wrote
// which field, no copy of the definition that kubectl keeps, and of a namespace, of
// which the metadata is all that is read, no annotations. Policies read all else.
func trimMetadata(o any) (any, error) {
	object, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	object.SetManagedFields(nil)
	switch object := object.(type) {
	case v1alpha1.Application:
		all := object.GetAnnotations()
		delete(all, gate.AnnotationLastApplied)
	case *metav1.PartialObjectMetadata:
		object.Annotations = nil
	}
	return o, nil
}

// trimNode keeps of a Node what is read: its labels, whether it is ready and since
// when.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	trimmed := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels,
	}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return trimmed, nil
}

// newDirect is a client that does not cache: what it reads, RBAC grants by name
// and to get alone.
func newDirect(mgr ctrl.Manager) (client.Client, error) {
	return client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
}

// tellAgents publishes who signs the mirror's certificate.
func tellAgents(mgr ctrl.Manager, namespace string) func(context.Context, []byte) error {
	return func(ctx context.Context, authorities []byte) error {
		direct, err := newDirect(mgr)
		if err != nil {
			return err
		}
		return sealing.Publish(ctx, direct, namespace, sealing.MirrorCA, authorities)
	}
}

// newRing is the key that was given, or those of the Secret.
func newRing(ctx context.Context, mgr ctrl.Manager, o Options) (*sealing.Ring, error) {
	if len(o.SealKey) == 0 {
		direct, err := newDirect(mgr)
		if err != nil {
			return nil, err
		}
		ring, err := sealing.Open(ctx, &sealing.Store{Client: direct, Namespace: o.Namespace, Now: o.Rotation.Now})
		if err != nil {
			return nil, err
		}
		ring.Every = o.Rotation.Every
		return ring, mgr.Add(ring)
	}
	sealer, err := intent.ParseKey(o.SealKey)
	if err != nil {
		return nil, fmt.Errorf("read sealing key: %w", err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	return sealing.NewRing(sealing.Keys{Sealer: sealer, Trust: trust}), err
}

// registerMirror has the manager serve bytecode, where it is asked to.
func registerMirror(ctx context.Context, mgr ctrl.Manager, o Options, ring *sealing.Ring, registries *registry.Client, secrets *pull.Secrets) error {
	m := o.Mirror
	if !m.served() {
		return nil
	}
	account := func(name string) string { return "system:serviceaccount:" + o.Namespace + ":" + name }
	published, err := signingKeys(mgr)
	if err != nil {
		return err
	}
	server := &mirror.Server{
		SigningKeys: published,
		Client:      mgr.GetClient(), Cache: registries, Pull: secrets.Again, Address: m.Address, Listener: m.Listener, Certificate: m.Certificate,
		Agent: account(cmp.Or(m.ServiceAccount, "skep-agent")), Replica: account("skep-controller"), Peers: peers(mgr, o), Open: ring.OpenIntent,
		Requests: m.requests,
	}
	return server.Register(ctx, mgr)
}

// signingKeys fetches the keys that the API server signs service account tokens
// with, from where it publishes them.
func signingKeys(mgr ctrl.Manager) (func(context.Context) ([]byte, error), error) {
	direct, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make client of published keys: %w", err)
	}
	return func(ctx context.Context) ([]byte, error) {
		return direct.RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
	}, nil
}

// peers are the other replicas' mirrors; nil where they are not to be asked.
func peers(mgr ctrl.Manager, o Options) *mirror.Peers {
	const service = "skep-mirror"
	m := o.Mirror
	if m.TokenFile == "" {
		return nil
	}
	if m.Peers == nil {
		m.Peers = mirror.Endpoints(mgr.GetAPIReader(), o.Namespace, service)
	}
	return &mirror.Peers{
		Addresses: m.Peers, TokenFile: m.TokenFile, ServerName: cmp.Or(m.ServerName, service+"."+o.Namespace+".svc"),
		Authorities: authorities(mgr, o),
	}
}

// authorities returns those that the mirror's certificate may be signed by, as agents are told them.
func authorities(mgr ctrl.Manager, o Options) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		return sealing.Published(ctx, mgr.GetAPIReader(), o.Namespace, sealing.MirrorCA)
	}
}

// newEvaluator is a gate that trusts nobody yet; the keeper tells it whom to.
func newEvaluator(ctx context.Context, engine *policies.Engine, o gate.Options) (*gate.Evaluator, error) {
	var err error
	if o.Trust, err = signing.NewTrust(nil); err != nil {
		return nil, err
	}
	if o.Policies, err = engine.Compile(ctx, nil, policies.Options{}); err != nil {
		return nil, err
	}
	return gate.New(o)
}
