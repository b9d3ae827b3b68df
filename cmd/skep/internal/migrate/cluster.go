package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/convert"
)

// page is how many objects are listed at once.
const page = 100

// cluster reads the objects of the kinds that are converted.
func (c *command) cluster(cmd *cobra.Command) ([]source, error) {
	config, _, err := c.kube.Load()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach cluster: %w", err)
	}
	namespace := ""
	if flag := cmd.Flags().Lookup("namespace"); flag.Changed {
		namespace = flag.Value.String()
	}
	var all []source
	left := total{objects: convert.MaxObjects, bytes: maxBytes}
	for _, group := range convert.Groups() {
		version := schema.GroupVersion{Group: group, Version: "v1alpha1"}
		resources, err := converted(cmd.Context(), config, version, namespace != "")
		if err != nil {
			return nil, err
		}
		for _, r := range resources {
			api := dynamic.ResourceInterface(client.Resource(version.WithResource(r.Name)))
			if r.Namespaced {
				api = client.Resource(version.WithResource(r.Name)).Namespace(namespace)
			}
			found, err := every(cmd.Context(), api, r.Name+"."+group, &left)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
	}
	return all, nil
}

// converted returns the resources of the kinds that are converted, of a version that the cluster may lack.
func converted(ctx context.Context, config *rest.Config, version schema.GroupVersion, namespaced bool) ([]metav1.APIResource, error) {
	// A discovery client brings all types of Kubernetes along, which make up a quarter of a binary.
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("reach cluster: %w", err)
	}
	var list metav1.APIResourceList
	body, err := client.Get().Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list kinds of %s: %w", version, err)
	}
	return slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
		return !slices.Contains(convert.Kinds(), r.Kind) || !slices.Contains(r.Verbs, "list") || !r.Namespaced && namespaced
	}), nil
}

// every lists every object of a kind, and takes each of what is left of the bounds.
func every(ctx context.Context, api dynamic.ResourceInterface, name string, left *total) ([]source, error) {
	var all []source
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := api.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", name, err)
		}
		for i := range list.Items {
			data, err := json.Marshal(&list.Items[i])
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", name, err)
			}
			if err := left.take(len(data)); err != nil {
				return nil, fmt.Errorf("list %s: %w by namespace, with -n", name, err)
			}
			identity := v1alpha1.Identity{Namespace: list.Items[i].GetNamespace(), Name: list.Items[i].GetName()}
			all = append(all, source{name: name + "/" + identity.String(), data: data})
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
