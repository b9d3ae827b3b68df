package main

import (
	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/cmd/skep/internal/rollout"
)

func newReconcile() *cobra.Command {
	var (
		here host.Reconciling
		k    kubeconfig.Flags
	)
	cmd := &cobra.Command{
		Use:   "reconcile [APPLICATION]",
		Short: "Have applications looked at again at once, such as after a new signature",
		Long: "On a host, APPLICATION is a name as skep status prints it; without one, skep run looks at all. It fetches the\n" +
			"source and asks registries again about what is denied or was out of reach.\n\n" +
			"In a cluster, APPLICATION is cbpfapp/NAME for a ClusterBpfApplication, or bpfapp/NAME for a BpfApplication of\n" +
			"the namespace. The command sets the annotation reconcile.fluxcd.io/requestedAt, as flux reconcile does: the tag\n" +
			"is resolved again, too. The controller answers one request of an application in ten seconds.",
		Example: "  skep reconcile\n  skep reconcile team/app\n  skep reconcile bpfapp/app -n team",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			if rollout.IsTarget(name) {
				return rollout.Reconcile(cmd.Context(), cmd.OutOrStdout(), &k, name)
			}
			return here.Ask(cmd.Context(), cmd.OutOrStdout(), name)
		},
	}
	here.Register(cmd)
	k.Register(cmd)
	return cmd
}
