// Package sealing keeps the controller's sealing key in a Secret, and what agents
// trust in a ConfigMap: the keys, and who signs the mirror's certificate.
//
// It makes both on first use and rotates them so that no agent ever meets a
// seal it does not trust: a new key is trusted first and seals later. It holds
// private bytes no longer than it takes to parse them, and says none of them.
package sealing

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/clock"
	"github.com/skep-dev/skep/intent"
)

// The names of the Secret and the ConfigMap, and of what is in them.
const (
	SecretName    = "skep-seal" //nolint:gosec // the name of a Secret, and nothing secret
	ConfigMapName = "skep-trust"

	// sealing seals; next, where it is there, is trusted and will seal; former
	// holds public keys that sealed before.
	sealing = "sealing.key"
	next    = "next.key"
	former  = "former.pub"
	// trusted is the ConfigMap's file of every public key that agents are to trust.
	trusted = "trust.pem"
)

// MirrorCA is the ConfigMap's file of the authorities that the mirror's
// certificate may be signed by.
const MirrorCA = "mirror-ca.pem"

// AnnotationRotate on the Secret asks for a new key: any value that differs from
// the one in AnnotationRotated.
const AnnotationRotate = v1alpha1.Group + "/rotate"

// AnnotationRotated holds the value of AnnotationRotate that was worked on,
// annotationNext the one that the next key was made for, and annotationSince since
// when the ConfigMap is known to hold that.
const (
	AnnotationRotated = v1alpha1.Group + "/rotated"
	annotationNext    = v1alpha1.Group + "/rotating"
	annotationSince   = v1alpha1.Group + "/trusted-since"
)

// annotationResealed holds when every intent was first found sealed with the
// current key; absent where one may not be.
const annotationResealed = v1alpha1.Group + "/resealed"

// Keys are what a controller seals with and opens with.
type Keys struct {
	Sealer *intent.Sealer
	Trust  *intent.Trust
	// Former tells that Trust holds keys that sealed before.
	Former bool
}

// Store reads and writes the Secret and the ConfigMap of one namespace.
type Store struct {
	// Client is needed; it should not cache.
	Client client.Client
	// Namespace is Skep's own.
	Namespace string
	// Overlap is how long a new key is trusted before it seals: longer than a
	// kubelet takes to bring a changed ConfigMap to a node. Zero means ten
	// minutes.
	Overlap time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Load brings the Secret and the ConfigMap to where they are to be now, and
// returns the keys active. Of several replicas that make the first key, one
// wins and the others take its.
func (s *Store) Load(ctx context.Context) (Keys, error) {
	secret, err := s.secret(ctx)
	if err != nil {
		return Keys{}, err
	}
	if err := s.ask(ctx, secret); err != nil {
		return Keys{}, err
	}
	published, err := s.publish(ctx, secret)
	if err != nil {
		return Keys{}, err
	}
	if err := s.rotate(ctx, secret, published); err != nil {
		return Keys{}, err
	}
	if _, err := s.publish(ctx, secret); err != nil {
		return Keys{}, err
	}
	sealer, err := intent.ParseKey(secret.Data[sealing])
	if err != nil {
		return Keys{}, fmt.Errorf("read %s of Secret %s/%s: %w", sealing, s.Namespace, SecretName, err)
	}
	trust, err := s.trust(secret)
	return Keys{Sealer: sealer, Trust: trust, Former: len(secret.Data[former]) > 0}, err
}

// trust is every key of the Secret.
func (s *Store) trust(o *corev1.Secret) (*intent.Trust, error) {
	pem, err := publics(o)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", s.Namespace, SecretName, err)
	}
	trust, err := intent.ParseTrust(pem)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s/%s: %w", s.Namespace, SecretName, err)
	}
	return trust, nil
}

// publish has agents trust every key of the Secret. changed reports whether the
// ConfigMap did not hold exactly these keys before.
func (s *Store) publish(ctx context.Context, o *corev1.Secret) (changed bool, err error) {
	if _, err := s.trust(o); err != nil {
		return false, err
	}
	pem, err := publics(o)
	if err != nil {
		return false, fmt.Errorf("read Secret %s/%s: %w", s.Namespace, SecretName, err)
	}
	return publish(ctx, s.Client, s.Namespace, trusted, pem)
}

// secret is the Secret, made where there is none.
func (s *Store) secret(ctx context.Context) (*corev1.Secret, error) {
	o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: SecretName}}
	err := s.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	if err == nil || !apierrors.IsNotFound(err) {
		return o, wrap("get", o, err)
	}
	key, err := intent.GenerateKey()
	if err != nil {
		return nil, err
	}
	o.Data = map[string][]byte{sealing: key}
	if err = s.Client.Create(ctx, o); apierrors.IsAlreadyExists(err) {
		err = s.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
	}
	return o, wrap("create", o, err)
}

// ask makes the next key, where a rotation is asked for. Who asks anew while a key
// waits to seal does not trust that one: it never seals.
func (s *Store) ask(ctx context.Context, o *corev1.Secret) error {
	asked := o.Annotations[AnnotationRotate]
	if asked == "" || asked == o.Annotations[AnnotationRotated] || len(o.Data[next]) > 0 && asked == o.Annotations[annotationNext] {
		return nil
	}
	key, err := intent.GenerateKey()
	if err != nil {
		return err
	}
	o.Data[next] = key
	o.Annotations[annotationNext] = asked
	// It is trusted from when it is published, which it is not yet.
	delete(o.Annotations, annotationSince)
	return wrap("update", o, s.Client.Update(ctx, o))
}

// rotate takes the next step of a rotation that is due. A next key waits for the
// overlap from when the ConfigMap is known to hold it; published tells that the
// ConfigMap had to be written just now, so that agents may have read one without
// it until now.
func (s *Store) rotate(ctx context.Context, o *corev1.Secret, published bool) error {
	if len(o.Data[next]) == 0 {
		return nil
	}
	switch since := o.Annotations[annotationSince]; {
	case published || since == "":
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, annotationSince, s.now().UTC().Format(time.RFC3339))
	case s.overlapped(o, annotationSince):
		old, err := intent.ParseKey(o.Data[sealing])
		if err != nil {
			return fmt.Errorf("read %s of Secret %s/%s: %w", sealing, s.Namespace, SecretName, err)
		}
		public, err := old.MarshalPublic()
		if err != nil {
			return err
		}
		o.Data[former], o.Data[sealing] = append(o.Data[former], public...), o.Data[next]
		delete(o.Data, next)
		delete(o.Annotations, annotationResealed)
		delete(o.Annotations, annotationSince)
		o.Annotations[AnnotationRotated] = o.Annotations[annotationNext]
		delete(o.Annotations, annotationNext)
	default:
		return nil
	}
	return wrap("update", o, s.Client.Update(ctx, o))
}

// retire drops the former keys, once all intents are sealed with the current one
// for so long that every agent has them so. all reports whether they are; sealed
// says by which key that was looked at.
func (s *Store) retire(ctx context.Context, sealed ed25519.PublicKey, all bool) (dropped bool, err error) {
	o, err := s.secret(ctx)
	if err != nil || len(o.Data[former]) == 0 {
		return false, err
	}
	current, err := intent.ParseKey(o.Data[sealing])
	if err != nil {
		return false, fmt.Errorf("read %s of Secret %s/%s: %w", sealing, s.Namespace, SecretName, err)
	}
	_, noted := o.Annotations[annotationResealed]
	switch {
	case !current.Public().Equal(sealed):
		return false, nil
	case !all && noted:
		delete(o.Annotations, annotationResealed)
	case all && !noted:
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, annotationResealed, s.now().UTC().Format(time.RFC3339))
	case all && s.overlapped(o, annotationResealed):
		delete(o.Data, former)
		delete(o.Annotations, annotationResealed)
		dropped = true
	default:
		return false, nil
	}
	return dropped, wrap("update", o, s.Client.Update(ctx, o))
}

// overlapped reports whether what an annotation says since when is so was so for
// long enough that every agent knows.
func (s *Store) overlapped(o *corev1.Secret, annotation string) bool {
	since, err := time.Parse(time.RFC3339, o.Annotations[annotation])
	overlap := s.Overlap
	if overlap == 0 {
		overlap = 10 * time.Minute
	}
	return err == nil && s.now().Sub(since) >= overlap
}

func (s *Store) now() time.Time { return clock.OrSystem(s.Now)() }

// publics is every public key of a Secret, as PEM.
func publics(o *corev1.Secret) ([]byte, error) {
	var all bytes.Buffer
	for _, name := range []string{sealing, next} {
		if len(o.Data[name]) == 0 {
			continue
		}
		key, err := intent.ParseKey(o.Data[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		public, err := key.MarshalPublic()
		if err != nil {
			return nil, err
		}
		all.Write(public)
	}
	all.Write(o.Data[former])
	return all.Bytes(), nil
}

// Published is one file of the ConfigMap that agents read; nil where it is not
// there.
func Published(ctx context.Context, reader client.Reader, namespace, file string) ([]byte, error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ConfigMapName}}
	if err := reader.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		return nil, wrap("get", o, err)
	}
	return []byte(o.Data[file]), nil
}

// Publish writes one file of the ConfigMap that agents read, where it says
// anything else, and leaves the others. The client should not cache.
func Publish(ctx context.Context, c client.Client, namespace, file string, content []byte) error {
	_, err := publish(ctx, c, namespace, file, content)
	return err
}

// publish is Publish, and reports whether the file said anything else before.
func publish(ctx context.Context, c client.Client, namespace, file string, content []byte) (changed bool, err error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: ConfigMapName}}
	overtaken := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err = retry.OnError(retry.DefaultBackoff, overtaken, func() error {
		now := o.DeepCopy()
		changed = false
		err := c.Get(ctx, client.ObjectKeyFromObject(o), now)
		switch {
		case apierrors.IsNotFound(err):
			now, changed = o.DeepCopy(), true
			now.Data = map[string]string{file: string(content)}
			return c.Create(ctx, now)
		case err != nil || now.Data[file] == string(content):
			return err
		case now.Data == nil:
			now.Data = map[string]string{}
		}
		now.Data[file], changed = string(content), true
		return c.Update(ctx, now)
	})
	return changed, wrap("write", o, err)
}

// wrap names the object of a request that was not answered well.
func wrap(verb string, o client.Object, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %T %s/%s: %w", verb, o, o.GetNamespace(), o.GetName(), err)
}
