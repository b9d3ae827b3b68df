// Package kubeconfig is how commands reach a cluster: as the caller, by kubectl's flags and files. It
// asks the cluster for names to complete alone, and shows no credentials.
package kubeconfig

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Flags are kubectl's.
type Flags struct{ file, context, namespace string }

// Register adds the flags to a command.
func (k *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.file, "kubeconfig", "", "kubeconfig file (default $KUBECONFIG, else ~/.kube/config)")
	cmd.Flags().StringVar(&k.context, "context", "", "context of the kubeconfig")
	cmd.Flags().StringVarP(&k.namespace, "namespace", "n", "", "namespace (default the context's)")
	k.complete(cmd)
}

// complete completes the values of the flags, as the caller may read them. No registration can fail: the flags were just made.
func (k *Flags) complete(cmd *cobra.Command) {
	_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		config, err := k.chosen().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
	})
	_ = cmd.RegisterFlagCompletionFunc("namespace", k.Names(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}))
}

// completeTime is how long a cluster may take to answer a shell.
const completeTime = 3 * time.Second

// Names completes the names of objects of the cluster: those of the namespace, where they have one.
func (k *Flags) Names(resource schema.GroupVersionResource) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		config, _, err := k.Load()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		found, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: mostNames})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
		for _, one := range found.Items {
			names = append(names, one.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// mostNames bounds the objects that a shell is given.
const mostNames = 1000

// Load returns the configuration and the namespace.
func (k *Flags) Load() (*rest.Config, string, error) {
	chosen := k.chosen()
	config, err := chosen.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w; name one by --kubeconfig", err)
	}
	namespace := k.namespace
	if namespace == "" {
		if namespace, _, err = chosen.Namespace(); err != nil {
			return nil, "", fmt.Errorf("read kubeconfig: %w", err)
		}
	}
	return config, namespace, nil
}

// chosen is the kubeconfig that the flags choose.
func (k *Flags) chosen() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.file
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.context})
}
