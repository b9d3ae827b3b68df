package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/controller/leader"
)

// overlap is how long a replica goes on with the certificate it shows while
// others learn to trust the next one, and the API server with the path it calls
// while replicas learn to serve the next one: longer than a kubelet takes to bring
// a changed ConfigMap to a node.
const overlap = 10 * time.Minute

// Certificates keeps the certificate by which the API server knows the webhook,
// and agents the mirror, and the path by which the webhook knows the API server:
// one for all replicas, in a Secret, renewed in time, its authority and the path in
// the webhook configurations, and the authority where agents read it. Any
// replica renews it in time; the Secret's resourceVersion lets one of them win. Where
// somebody else renews it, it is shown and published as it lies in a folder.
type Certificates struct {
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	client client.Client
	secret types.NamespacedName
	names  []string
	// leader reports whether this replica leads.
	leader *leader.Elector
	// tell has agents trust authorities; nil where nobody asks.
	tell func(ctx context.Context, authorities []byte) error
	// folder holds somebody else's certificate; nil where Skep makes its own.
	folder *certwatcher.CertWatcher

	// mu guards what follows.
	mu sync.RWMutex
	// shown is what is served now.
	shown *tls.Certificate
	// trusted are the authorities published last: they stay trusted where the
	// Secret is lost. So do the paths stay served, the newest first.
	trusted []byte
	paths   []string
}

// configurations are the kinds of objects that tell the API server whom to
// trust.
func configurations() []client.Object {
	return []client.Object{&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfiguration{}}
}

// errNoCertificate says that a replica cannot answer yet.
var errNoCertificate = errors.New("there is no certificate yet")

// Get is tls.Config's GetCertificate.
func (c *Certificates) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.folder != nil {
		return c.folder.GetCertificate(hello)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.shown == nil {
		return nil, errNoCertificate
	}
	return c.shown, nil
}

// register has a manager run it on every replica.
func (c *Certificates) register(mgr ctrl.Manager) error {
	everywhere := false
	one := reconcile.Request{NamespacedName: c.secret}
	toOne := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{one} })
	b := ctrl.NewControllerManagedBy(mgr).Named("certificate").
		WithOptions(controller.Options{NeedLeaderElection: &everywhere}).
		Watches(&corev1.Secret{}, toOne).
		WatchesRawSource(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			q.Add(one)
			c.leader.Elected(func() { q.Add(one) })
			return nil
		}))
	for _, kind := range configurations() {
		b = b.Watches(kind, toOne)
	}
	return b.Complete(c)
}

// Reconcile renews, publishes and shows, in this order: nobody is shown a
// certificate whose authority was not published before. A path that is published
// before it is served, as the first one is, is served a moment later.
func (c *Certificates) Reconcile(ctx context.Context, _ reconcile.Request) (ctrl.Result, error) {
	stored, err := c.renew(ctx)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		// Another replica was first; its Secret comes by the watch, or here.
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	var errs []error
	for _, kind := range configurations() {
		errs = append(errs, c.publish(ctx, kind, stored))
	}
	if c.tell != nil {
		errs = append(errs, c.tell(ctx, stored.bundle))
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	c.show(stored)
	return ctrl.Result{RequeueAfter: max(stored.next(c.now(), c.leader.Leads()).Sub(c.now()), time.Second)}, nil
}

// renew reads the Secret, and makes what is in it anew where that is due. That
// names are missing is for the leader alone to fix: replicas of two versions
// with other names each would take turns without end.
func (c *Certificates) renew(ctx context.Context) (pair, error) {
	var secret corev1.Secret
	err := c.client.Get(ctx, c.secret, &secret)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return pair{}, fmt.Errorf("get Secret %s: %w", c.secret, err)
	}
	stored, err := parse(secret.Data)
	if err == nil && c.now().Before(stored.renewAt) && (stored.covers(c.names) || !c.leader.Leads()) {
		if !c.leader.Leads() || !turned(secret.Data, stored, c.now()) {
			return stored, nil
		}
		if err := c.client.Update(ctx, &secret); err != nil {
			return pair{}, fmt.Errorf("write Secret %s: %w", c.secret, err)
		}
		return parse(secret.Data)
	}
	c.mu.RLock()
	trusted, served := c.trusted, slices.Concat(stored.served(c.now()), c.paths)
	c.mu.RUnlock()
	data, err := issue(c.now(), c.names, slices.Concat(secret.Data[keyAuthorities], trusted))
	if err != nil {
		return pair{}, fmt.Errorf("issue certificate: %w", err)
	}
	data[keyPaths], data[keyPathsAt] = joinPaths(newPath(), served), []byte(c.now().UTC().Format(time.RFC3339))
	ctrl.LoggerFrom(ctx).Info("issuing certificate of the webhook", "secret", c.secret.String(), "names", c.names)
	secret.Data, secret.Type = data, corev1.SecretTypeTLS
	if missing {
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: c.secret.Namespace, Name: c.secret.Name}
		err = c.client.Create(ctx, &secret)
	} else {
		err = c.client.Update(ctx, &secret)
	}
	if err != nil {
		return pair{}, fmt.Errorf("write Secret %s: %w", c.secret, err)
	}
	return parse(data)
}

// publish writes the authorities and the path into a webhook configuration, where
// it stands and says anything else: somebody may have applied it without them.
func (c *Certificates) publish(ctx context.Context, kind client.Object, stored pair) error {
	err := c.client.Get(ctx, types.NamespacedName{Name: configurationName}, kind)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get webhook configuration: %w", err)
	}
	changed := false
	configs, prefix := clientConfigs(kind)
	for _, config := range configs {
		moved, err := point(config, prefix, stored.served(c.now()), stored.called(c.now()))
		if err != nil {
			return err
		}
		changed = changed || moved || !bytes.Equal(config.CABundle, stored.bundle)
		config.CABundle = stored.bundle
	}
	if !changed {
		return nil
	}
	if err := c.client.Update(ctx, kind); err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write webhook configuration: %w", err)
	}
	return err
}

// clientConfigs are the places of a webhook configuration that name an authority
// and a path, and what the path begins with.
func clientConfigs(o client.Object) (found []*admissionregistrationv1.WebhookClientConfig, prefix string) {
	switch o := o.(type) {
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		prefix = prefixValidate
		for i := range o.Webhooks {
			found = append(found, &o.Webhooks[i].ClientConfig)
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		prefix = prefixRequester
		for i := range o.Webhooks {
			found = append(found, &o.Webhooks[i].ClientConfig)
		}
	}
	return found, prefix
}

// show serves a pair: at once where nothing that holds is served, else when the
// API server had time to trust it. Its paths are served at once.
func (c *Certificates) show(p pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trusted, c.paths = p.bundle, p.served(c.now())
	if c.shown == nil || p.settled(c.now()) || !c.now().Before(c.shown.Leaf.NotAfter) {
		c.shown = &p.certificate
	}
}

func (c *Certificates) now() time.Time { return clock.OrSystem(c.Now)() }
