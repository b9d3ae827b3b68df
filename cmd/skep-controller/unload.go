package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller/unload"
)

// newUnload is what the chart runs before it is uninstalled, where it is told to.
func newUnload() *cobra.Command {
	var (
		kubeconfig, namespace string
		timeout               time.Duration
	)
	cmd := &cobra.Command{
		Use:   "unload",
		Short: "Take the agents away, and wait until their nodes are clean",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if namespace == "" {
				return errors.New("name Skep's own namespace with --namespace")
			}
			config, err := config(kubeconfig)
			if err != nil {
				return fmt.Errorf("reach the API server: %w", err)
			}
			c, err := client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
			if err != nil {
				return fmt.Errorf("reach the API server: %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return unload.Run(ctx, c, namespace)
		},
	}
	set := cmd.Flags()
	set.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig (default: the pod's service account)")
	set.StringVar(&namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Skep's own namespace (default: $POD_NAMESPACE)")
	set.DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	return cmd
}
