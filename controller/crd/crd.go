// Package crd tells which CRD the objects of a kind are of today.
//
// An object that vanished with its CRD was not deleted by anybody: where
// absence decides, it is believed only under the CRD that the object was of. It
// decides nothing itself.
package crd

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// UID is that of the CRD of a resource, such as bpfpolicies; empty where it is
// not there, or about to be no more. live should not cache.
func UID(ctx context.Context, live client.Reader, resource string) (types.UID, error) {
	var crd metav1.PartialObjectMetadata
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	err := live.Get(ctx, types.NamespacedName{Name: resource + "." + v1alpha1.Group}, &crd)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get CRD of %s: %w", resource, err)
	case crd.DeletionTimestamp != nil:
		return "", nil
	}
	return crd.UID, nil
}
