package aggregated

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// leaveAgain is how soon the removal of an APIService is tried again.
const leaveAgain = 200 * time.Millisecond

// leave removes the APIServices once the namespace of the Server is deleted. While an API that is registered does not answer,
// kube-controller-manager deletes no namespace of the cluster, and so not this one either.
func (s *Server) leave(ctx context.Context) {
	deleted := make(chan struct{}, 1)
	if err := s.onDeletion(ctx, func() {
		select {
		case deleted <- struct{}{}:
		default:
		}
	}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "watch the namespace of the aggregated APIs")
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-deleted:
	}
	ctrl.LoggerFrom(ctx).Info("removing the APIServices, since the namespace of their server is deleted", "namespace", s.Namespace)
	_ = wait.PollUntilContextCancel(ctx, leaveAgain, true, func(ctx context.Context) (bool, error) {
		err := s.withdraw(ctx)
		if err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "remove APIServices; trying again")
		}
		return err == nil, nil
	})
}

// onDeletion calls f when the namespace is being deleted.
func (s *Server) onDeletion(ctx context.Context, f func()) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	informer, err := s.Informers.GetInformer(ctx, namespace)
	if err != nil {
		return err
	}
	look := func(o any) {
		if m, is := o.(metav1.Object); is && m.GetName() == s.Namespace && m.GetDeletionTimestamp() != nil {
			f()
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, now any) { look(now) }})
	return err
}

// withdraw removes the APIServices.
func (s *Server) withdraw(ctx context.Context) error {
	var errs []error
	for _, api := range s.APIs {
		service := api.service()
		if err := client.IgnoreNotFound(s.Writer.Delete(ctx, service)); err != nil {
			errs = append(errs, fmt.Errorf("remove APIService %s: %w", service.GetName(), err))
		}
	}
	return errors.Join(errs...)
}

// service is the APIService of an API, with its name alone.
func (a API) service() *unstructured.Unstructured {
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	service.SetName(a.Version + "." + a.Group)
	return service
}
