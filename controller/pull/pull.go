// Package pull has the images of applications read with the pull Secrets they
// name: those of an application's namespace, and Skep's own for what belongs to
// no namespace.
//
// It reads a Secret by name when it is needed and keeps nothing of it; package
// image sees to it that nobody gets what only another's Secret opens. What a
// Secret holds stands in no error.
package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn/kubernetes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/intent"
)

// Secrets has images read with pull Secrets.
type Secrets struct {
	// Live reads Secrets past the cache, so that RBAC need not let them be listed.
	// Needed.
	Live client.Reader
	// Cached reads applications from the cache. Needed.
	Cached client.Reader
	// Namespace is Skep's own.
	Namespace string
	// Shared is what all applications read from. Needed.
	Shared *access.Shared
}

// Reader reads the image of an application. Where a Secret that it names cannot
// be had, every use of the Reader says so.
func (s *Secrets) Reader(ctx context.Context, app v1alpha1.Application) *access.Reader {
	var credentials []access.Credential
	var errs []error
	party := app.Identity().Namespace
	for _, named := range app.Body().Bytecode.ImagePullSecrets {
		key := types.NamespacedName{Namespace: party, Name: named.Name}
		if party == "" {
			key.Namespace = s.Namespace
		}
		c, err := s.credential(ctx, key)
		credentials, errs = append(credentials, c), append(errs, err)
	}
	return s.Shared.Reader(party, errors.Join(errs...), credentials...)
}

// Again pulls what a sealed intent names, with the pull Secrets that its
// application names now, where it is still there.
func (s *Secrets) Again(ctx context.Context, p intent.Payload) error {
	var app interface {
		client.Object
		v1alpha1.Application
	} = &v1alpha1.BpfApplication{}
	if p.Application.Kind == v1alpha1.KindClusterBpfApplication {
		app = &v1alpha1.ClusterBpfApplication{}
	}
	err := s.Cached.Get(ctx, types.NamespacedName{Namespace: p.Application.Namespace, Name: p.Application.Name}, app)
	reader := s.Shared.Reader(p.Application.Namespace, nil)
	switch {
	case err == nil:
		reader = s.Reader(ctx, app)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get %s %s: %w", p.Application.Kind, p.Application, err)
	}
	pinned, err := reader.Pin(p.Image, p.ImageDigest)
	if err != nil {
		return err
	}
	pulled, err := reader.Sealed().Pull(ctx, pinned)
	if err == nil {
		pulled.Release()
	}
	return err
}

// credential is what one Secret holds.
func (s *Secrets) credential(ctx context.Context, key types.NamespacedName) (access.Credential, error) {
	var secret corev1.Secret
	switch err := s.Live.Get(ctx, key, &secret); {
	case apierrors.IsNotFound(err):
		return access.Credential{}, fmt.Errorf("get Secret %s: it is not there: create it, or take it out of spec.bytecode.imagePullSecrets", key)
	case apierrors.IsForbidden(err):
		return access.Credential{}, fmt.Errorf("get Secret %s: Skep may not read it: let it by the chart's registries.pullSecretNamespaces, "+
			"or by a Role for this Secret", key)
	case err != nil:
		return access.Credential{}, fmt.Errorf("get Secret %s: %w", key, err)
	}
	if secret.Type != corev1.SecretTypeDockerConfigJson {
		return access.Credential{}, fmt.Errorf("read Secret %s: it is of type %s: name one of type %s", key, secret.Type, corev1.SecretTypeDockerConfigJson)
	}
	keychain, err := kubernetes.NewFromPullSecrets(ctx, []corev1.Secret{secret})
	if err != nil {
		// The cause may repeat a piece of what is in the Secret.
		return access.Credential{}, fmt.Errorf("read Secret %s: it holds no Docker configuration: delete it, and make it with "+
			"`kubectl create secret docker-registry %s --namespace %s --from-file=.dockerconfigjson=CONFIG`",
			key, secret.Name, secret.Namespace)
	}
	return access.Credential{Name: "Secret " + key.String(), Keychain: keychain}, nil
}
