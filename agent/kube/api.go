package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The resources that the agent knows.
const (
	resourceIntents = "bpfintents"
	resourceNodes   = "bpfnodes"
)

// writeTimeout bounds one write; watches have none.
const writeTimeout = 30 * time.Second

// api is what the agent asks of the API server. All of it goes over one
// connection.
type api struct {
	name string
	skep rest.Interface
	meta metadata.Interface
}

// newAPI connects to nothing yet.
func newAPI(config *rest.Config, name string) (*api, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	s := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	version := v1alpha1.GroupVersion()
	ours := rest.CopyConfig(config)
	ours.GroupVersion, ours.APIPath = &version, "/apis"
	ours.NegotiatedSerializer = serializer.NewCodecFactory(s).WithoutConversion()
	skep, err := rest.RESTClientForConfigAndClient(ours, client)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	meta, err := metadata.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("reach API server: %w", err)
	}
	return &api{name: name, skep: skep, meta: meta}, nil
}

// create makes the node's BpfNode.
func (c *api) create(ctx context.Context, n *v1alpha1.BpfNode) (*v1alpha1.BpfNode, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	made := &v1alpha1.BpfNode{}
	return made, c.skep.Post().Resource(resourceNodes).Body(n).Do(ctx).Into(made)
}

// patch merges into the node's BpfNode.
func (c *api) patch(ctx context.Context, body map[string]any) (*v1alpha1.BpfNode, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	patched := &v1alpha1.BpfNode{}
	return patched, c.skep.Patch(types.MergePatchType).Resource(resourceNodes).Name(c.name).Body(data).Do(ctx).Into(patched)
}

// source lists and watches one resource, or of it the object of one name.
type source struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	named string
	// what says what it is, for the log.
	what string
	kind runtime.Object
}

// ours is a resource of Skep's.
func (c *api) ours(resource, named string, kind runtime.Object) source {
	get := func(o metav1.ListOptions) *rest.Request {
		return c.skep.Get().Resource(resource).VersionedParams(&o, metav1.ParameterCodec)
	}
	return source{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return get(o).Do(ctx).Get() },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return get(o).Watch(ctx) },
		named: named, what: resource, kind: kind,
	}
}

// metadata is the metadata of a resource of Kubernetes's own.
func (c *api) metadata(resource, named string) source {
	of := c.meta.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource})
	return source{
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) },
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return of.Watch(ctx, o) },
		named: named, what: resource, kind: &metav1.PartialObjectMetadata{},
	}
}

// follow keeps the store up to date until the context ends: it lists, watches,
// and after an error waits ever longer, up to half a minute. What goes wrong is
// logged when the words change.
func (s source) follow(ctx context.Context, store cache.ReflectorStore, log *slog.Logger) {
	said := ""
	say := func(err error) {
		// Addresses bear numbers that differ each time.
		err = scrub(err)
		switch {
		case err == nil && said != "":
			log.Info("the API server answers again", "watching", s.what)
			said = ""
		case err != nil && err.Error() != said && !errors.Is(err, context.Canceled):
			said = err.Error()
			log.Warn("cannot watch; what runs is kept", "watching", s.what, "error", err)
		}
	}
	choose := func(o *metav1.ListOptions) {
		if s.named != "" {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", s.named).String()
		}
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			choose(&o)
			list, err := s.list(ctx, o)
			say(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			choose(&o)
			o.Watch = true
			w, err := s.watch(ctx, o)
			// Those that send no list by a watch, such as of 1.30, are asked for one then.
			if o.SendInitialEvents == nil || !apierrors.IsInvalid(err) {
				say(err)
			}
			return w, err
		},
	}
	cache.NewReflectorWithOptions(lw, s.kind, store, cache.ReflectorOptions{Name: s.what}).RunWithContext(ctx)
}
