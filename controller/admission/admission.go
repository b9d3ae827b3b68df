// Package admission is the gate at the API server: it looks at what
// people write before it is stored.
//
// It denies what is known to be bad and lets in what could not be determined in time.
// It allows nothing to be loaded: what it lets in is evaluated again by the
// reconcilers, and only what they seal reaches a node. It also records who
// asked, and keeps the certificate by which the API server knows it.
package admission

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	webhookadmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
)

// The paths below which is served what nobody finds who was not told, the name of
// the webhook's Service and of the Secret, of the mirror's Service, and that of the
// webhook configurations, as the chart has them.
const (
	prefixValidate  = "/validate/"
	prefixRequester = "/requester/"

	webhookName       = "skep-webhook"
	mirrorName        = "skep-mirror"
	configurationName = "skep"
)

// DefaultBudget is how long an image nothing is known of is tried.
const DefaultBudget = 2 * time.Second

// Options says how admission is served.
type Options struct {
	// Port is where; zero means that nothing is served.
	Port int
	// Host is the address it listens on; empty means every one.
	Host string
	// CertDir holds tls.crt, tls.key and ca.crt, which somebody else renews, such
	// as cert-manager, and path, 32 bytes in hexadecimal that end the paths which
	// the API server calls. Empty means that Skep keeps a certificate and a path of
	// its own, in a Secret that all replicas share.
	CertDir string
	// Names are the names or addresses the API server calls it by, and agents the
	// mirror; empty means those of the chart's Services. They stand in Skep's own certificate.
	Names []string
	// Budget is how long one request may take to learn what is not known; zero means
	// DefaultBudget. It waits a quarter of that before while too much is looked at:
	// keep all of it below the webhook's timeoutSeconds.
	Budget time.Duration
}

// Enabled reports whether anything is served.
func (o Options) Enabled() bool { return o.Port != 0 }

// selfManaged reports whether Skep makes the certificate.
func (o Options) selfManaged() bool { return o.Enabled() && o.CertDir == "" }

// Cache narrows what a manager's cache holds for admission to the few objects of
// its own, so that RBAC can grant it those by name.
func (o Options) Cache(namespace string) map[client.Object]cache.ByObject {
	if !o.selfManaged() {
		return nil
	}
	named := func(name string) fields.Selector { return fields.OneTermEqualSelector("metadata.name", name) }
	by := map[client.Object]cache.ByObject{
		&corev1.Secret{}: {Namespaces: map[string]cache.Config{namespace: {FieldSelector: named(webhookName)}}},
	}
	for _, kind := range configurations() {
		by[kind] = cache.ByObject{Field: named(configurationName)}
	}
	return by
}

// Server is the webhook server for a manager's options; nil where none is
// served, and New has the certificate it shows.
func (o Options) Server(certificates *Certificates) webhook.Server {
	if !o.Enabled() {
		return nil
	}
	return webhook.NewServer(webhook.Options{Host: o.Host, Port: o.Port, CertDir: o.CertDir, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.MinVersion = tls.VersionTLS13
		if o.selfManaged() {
			c.GetCertificate = certificates.Get
		}
	}}})
}

// Parts is what admission asks.
type Parts struct {
	// Evaluator and Keeper are the reconcilers' own, so that both say the same.
	Evaluator *gate.Evaluator
	Keeper    *policy.Keeper
	// Images is the reconcilers' own too; see Validator.
	Images func(context.Context, v1alpha1.Application) *access.Reader
	// Certificates is what Options.Server was given.
	Certificates *Certificates
	// Metrics is where metrics are registered.
	Metrics prometheus.Registerer
	// Namespace is Skep's own.
	Namespace string
	// Leader reports whether this replica leads; nil means that it does.
	Leader *leader.Elector
	// Tell has agents trust authorities of the certificate, in PEM; nil where
	// nobody but the API server is shown it.
	Tell func(ctx context.Context, authorities []byte) error
}

// Register has a manager serve admission on every replica.
func Register(mgr ctrl.Manager, o Options, p Parts) error {
	if !o.Enabled() {
		return nil
	}
	if err := p.Certificates.keep(mgr, o, p); err != nil {
		return fmt.Errorf("register certificates: %w", err)
	}
	server, budget := mgr.GetWebhookServer(), cmp.Or(o.Budget, DefaultBudget)
	waiting := &queue{patience: budget / 4}
	door := func(h webhookadmission.Handler) http.Handler {
		return inTime(p.Certificates.told(waiting.before(&webhook.Admission{Handler: h})))
	}
	// The patterns are what metrics and logs say; the path itself is in neither.
	server.Register(prefixValidate+"{path}", door(&Validator{
		Reader: mgr.GetClient(), Evaluator: p.Evaluator, Keeper: p.Keeper, Images: p.Images, Budget: budget, Metrics: NewMetrics(p.Metrics),
	}))
	server.Register(prefixRequester+"{path}", door(Recorder{}))
	return mgr.AddReadyzCheck("webhook", func(r *http.Request) error {
		if _, err := p.Certificates.Get(nil); err != nil {
			return err
		}
		return server.StartedChecker()(r)
	})
}
