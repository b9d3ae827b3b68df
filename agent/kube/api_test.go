package kube

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

func TestAnAPIServerThatSendsNoListByAWatchIsAskedForOne(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var said bytes.Buffer
	forbidden := field.ErrorList{
		field.Forbidden(field.NewPath("sendInitialEvents"), "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
	}
	refused := 0
	s := source{
		what: "node", kind: &metav1.PartialObjectMetadata{},
		list: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}}, nil
		},
		watch: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				refused++
				return nil, apierrors.NewInvalid(schema.GroupKind{Group: "meta.k8s.io", Kind: "ListOptions"}, "", forbidden)
			}
			cancel()
			return watch.NewFake(), nil
		},
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	s.follow(ctx, store, slog.New(slog.NewTextHandler(&said, nil)))
	if refused == 0 || len(store.List()) != 1 {
		t.Errorf("refused %d times, %d objects", refused, len(store.List()))
	}
	if said.Len() > 0 {
		t.Errorf("it complains: %s", &said)
	}
}
