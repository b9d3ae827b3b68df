// Package kubeconfig is how commands reach a cluster: as the caller, by kubectl's flags and files. It
// asks the cluster nothing, and shows no credentials.
package kubeconfig

import (
	"fmt"

	"github.com/spf13/cobra"
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
}

// Load returns the configuration and the namespace.
func (k *Flags) Load() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.file
	chosen := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.context})
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
