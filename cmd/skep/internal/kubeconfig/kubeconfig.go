// Package kubeconfig is how commands reach a cluster: as the caller, by kubectl's flags and files. It
// asks the cluster for names to complete alone, and shows no credentials.
package kubeconfig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Flags are kubectl's.
type Flags struct {
	file      string
	overrides clientcmd.ConfigOverrides
	// everywhere reports that the caller wants all namespaces, also with -n, as kubectl does.
	everywhere bool
}

// The flags that are not of clientcmd.
const (
	fileFlag       = "kubeconfig"
	everywhereFlag = "all-namespaces"
)

// names are the flags that kubectl has, by their names in client-go.
func names() clientcmd.ConfigOverrideFlags {
	n := clientcmd.RecommendedConfigOverrideFlags("")
	n.CurrentContext.Description = "context of the kubeconfig"
	n.ContextOverrideFlags.Namespace.Description = "namespace (default the context's)"
	n.ClusterOverrideFlags.APIServer.ShortName = "s"
	// API servers take no passwords any more, and a proxy is the kubeconfig's.
	n.AuthOverrideFlags.Username, n.AuthOverrideFlags.Password, n.ClusterOverrideFlags.ProxyURL = clientcmd.FlagInfo{}, clientcmd.FlagInfo{}, clientcmd.FlagInfo{}
	return n
}

// Register adds the flags to a command. Help lists the three that most callers need.
func (k *Flags) Register(cmd *cobra.Command) {
	known := map[string]bool{fileFlag: true, clientcmd.FlagContext: true, clientcmd.FlagNamespace: true}
	cmd.Flags().StringVar(&k.file, fileFlag, "", "kubeconfig file (default $KUBECONFIG, else ~/.kube/config); kubectl's other flags, such as --as, are known, too")
	clientcmd.BindOverrideFlags(&k.overrides, cmd.Flags(), names())
	for _, name := range flagNames() {
		if f := cmd.Flags().Lookup(name); f != nil && !known[name] {
			f.Hidden = true
		}
	}
	k.complete(cmd)
}

// RegisterEverywhere adds -A to a command that shows all namespaces unless one is chosen.
func (k *Flags) RegisterEverywhere(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&k.everywhere, everywhereFlag, "A", false, "all namespaces, as far as you may read them (default without -n)")
}

// Chosen reports whether the caller chose one namespace.
func (k *Flags) Chosen() bool { return k.overrides.Context.Namespace != "" && !k.everywhere }

// flagNames are the long names of all flags.
func flagNames() []string {
	return []string{
		fileFlag, everywhereFlag, clientcmd.FlagContext, clientcmd.FlagNamespace, clientcmd.FlagClusterName, clientcmd.FlagAuthInfoName, clientcmd.FlagAPIServer,
		clientcmd.FlagTLSServerName, clientcmd.FlagInsecure, clientcmd.FlagCertFile, clientcmd.FlagKeyFile, clientcmd.FlagCAFile, clientcmd.FlagBearerToken,
		clientcmd.FlagImpersonate, clientcmd.FlagImpersonateUID, clientcmd.FlagImpersonateGroup, clientcmd.FlagTimeout, clientcmd.FlagDisableCompression,
	}
}

// Given returns the first of the flags that the caller gave, as --NAME; empty if there is none.
func (k *Flags) Given(cmd *cobra.Command) string {
	for _, name := range flagNames() {
		if cmd.Flags().Changed(name) {
			return "--" + name
		}
	}
	return ""
}

// chosen is the configuration that flags and files name.
func (k *Flags) chosen() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.file
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &k.overrides)
}

// Exists reports whether there is a kubeconfig, or the command runs in a pod.
func (k *Flags) Exists() bool {
	_, err := k.chosen().ClientConfig()
	return !clientcmd.IsEmptyConfig(err)
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

// Names completes the names of objects of the cluster that are in no namespace.
func (k *Flags) Names(resource schema.GroupVersionResource) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		found, err := k.list(ctx, resource, "")
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []cobra.Completion
		for _, one := range found {
			names = append(names, one.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// list reads what objects are called: of one namespace, or of all if it is empty.
func (k *Flags) list(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]metav1.PartialObjectMetadata, error) {
	config, _, err := k.Load()
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	type answer struct {
		all *metav1.PartialObjectMetadataList
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		all, err := client.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: mostNames})
		answers <- answer{all, err}
	}()
	// A plug-in that fetches credentials knows no deadline.
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case is := <-answers:
		if is.err != nil {
			return nil, is.err
		}
		return is.all.Items, nil
	}
}

// Applications returns the applications that the caller may list, for a shell to complete: those of the chosen namespace, else of all, else of the
// context's, and those of the cluster. What cannot be read in time is left out.
func (k *Flags) Applications(ctx context.Context, inOneNamespace bool) (all []v1alpha1.Identity) {
	ctx, cancel := context.WithTimeout(ctx, completeTime)
	defer cancel()
	_, namespace, err := k.Load()
	if err != nil {
		return nil
	}
	namespaced := v1alpha1.GroupVersion().WithResource("bpfapplications")
	of := ""
	if inOneNamespace {
		of = namespace
	}
	found, err := k.list(ctx, namespaced, of)
	if err != nil && of == "" {
		found, _ = k.list(ctx, namespaced, namespace)
	}
	for _, one := range found {
		all = append(all, v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: one.Namespace, Name: one.Name})
	}
	found, _ = k.list(ctx, v1alpha1.GroupVersion().WithResource("clusterbpfapplications"), "")
	for _, one := range found {
		all = append(all, v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: one.Name})
	}
	return all
}

// ApplicationNames completes applications as commands take them. With -n, these are the namespace's.
func (k *Flags) ApplicationNames(ctx context.Context) (names []cobra.Completion) {
	for _, a := range k.Applications(ctx, k.Chosen()) {
		if !k.Chosen() || a.Namespace != "" {
			names = append(names, a.String())
		}
	}
	return names
}

// mostNames bounds the objects that a shell is given.
const mostNames = 1000

// Load returns the configuration and the namespace.
func (k *Flags) Load() (*rest.Config, string, error) {
	chosen := k.chosen()
	config, err := chosen.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, "", errors.New("read kubeconfig: there is none, at $KUBECONFIG or ~/.kube/config; name one by --kubeconfig")
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("read kubeconfig: %w; name one by --kubeconfig", err)
	case err != nil:
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	namespace, _, err := chosen.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return config, namespace, nil
}

// InNamespace chooses a namespace, as -n does.
func (k *Flags) InNamespace(namespace string) { k.overrides.Context.Namespace = namespace }

// Describe names the cluster and the context for people: cluster NAME, context NAME.
func (k *Flags) Describe() string {
	raw, err := k.chosen().RawConfig()
	name := cmp.Or(k.overrides.CurrentContext, raw.CurrentContext)
	context := raw.Contexts[name]
	if err != nil || context == nil {
		return "cluster " + cmp.Or(k.overrides.ClusterInfo.Server, "of this pod")
	}
	return fmt.Sprintf("cluster %s, context %s", cmp.Or(k.overrides.ClusterInfo.Server, k.overrides.Context.Cluster, context.Cluster), name)
}
