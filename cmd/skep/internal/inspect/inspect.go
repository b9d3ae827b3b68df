// Package inspect has the commands that show what Skep does, on this host or in a cluster: status, explain, chain, inventory,
// history, and reconcile and confirm beside them. It asks and prints by other packages, and must not decide anything but which.
package inspect

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/nodes"
	"github.com/skep-dev/skep/cmd/skep/internal/rollout"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/text"
)

// thisHost names this host for people.
func thisHost() string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	return "host " + cmp.Or(name, "unknown")
}

// open returns a client for the cluster that the flags name.
func open(cmd *cobra.Command, f *where.Flags) (*cluster.Client, error) {
	return cluster.Open(&f.Kube, cmd.Flags().Changed("namespace"), cmd.ErrOrStderr())
}

// NewStatus returns skep status.
func NewStatus() *cobra.Command {
	var (
		f      where.Flags
		output string
		watch  bool
	)
	cmd := &cobra.Command{
		Use:   "status [APP...]",
		Short: "Show how Skep itself does, what it keeps loaded, and what is denied, on this host or in a cluster",
		Long: "After skep run --once, it shows what that left, as far as the kernel still has it.\n\n" +
			"The exit code is 0 where there is an answer, whatever it shows, and 1 where there is no application APP.\n" +
			"skep run --once and skep vet are those that fail where something is denied.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ask, err := askStatus(cmd, &f, output, args)
			if err != nil {
				return err
			}
			if watch {
				return follow(cmd, output, ask)
			}
			is, err := ask(cmd.Context())
			if err != nil {
				return err
			}
			return is.whole(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the status again whenever it changes, until Ctrl-C; a terminal is redrawn")
	display.OutputFlag(cmd, &output, "text", "wide", "json", "yaml")
	f.Register(cmd)
	return cmd
}

// NewExplain returns skep explain.
func NewExplain() *cobra.Command {
	var (
		f      where.Flags
		output string
	)
	cmd := &cobra.Command{
		Use:   "explain APP",
		Short: "Tell all about one application: reasons, conditions, attachments, the verifier's log",
		Long: "APP is a name or NAMESPACE/NAME, as skep status prints it; of a name that is in one namespace alone,\n" +
			"the name is enough. The exit code is 1 where there is none, or more than one.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := host.Client{State: f.State}.Status(cmd.Context(), nil)
			if err != nil {
				return err
			}
			a, err := host.Named(s, args[0])
			if err != nil {
				return err
			}
			where.Say(cmd, output, host.Place(s.Run))
			return host.Explain(cmd.OutOrStdout(), output, a)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json", "yaml")
	f.Register(cmd)
	return cmd
}

// NewChain returns skep chain.
func NewChain() *cobra.Command {
	var (
		f      where.Flags
		output string
	)
	cmd := &cobra.Command{
		Use:   "chain [IFACE [in NETNS]]",
		Short: "Show the programs of an interface in the order they run, Skep's and others', and how often each XDP program returned which verdict",
		Long: "IFACE is a name, of this and of every other network namespace, or a name and its namespace as\n" +
			"skep prints them, such as eth0 in net:[4026532281]. Without it all interfaces are shown. In a cluster,\n" +
			"name the node by --node; " + nodeRight,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, place, err := node(cmd, &f)
			if err != nil {
				return err
			}
			// The name of a network namespace has spaces, which the shell may have split.
			chosen, err := nodes.Interfaces(n, strings.Join(args, " "))
			if err != nil {
				return err
			}
			where.Say(cmd, output, place)
			return nodes.PrintChains(cmd.OutOrStdout(), cmd.ErrOrStderr(), output, n, chosen)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json")
	f.Register(cmd)
	f.RegisterNode(cmd, "node of the cluster to ask (default: this host)")
	return cmd
}

// nodeRight says what a caller needs to ask a node.
const nodeRight = "it needs the right to get nodeviews.view.skep.dev,\nand that the chart has view.enabled=true."

// node describes this host, or the node of the cluster that the flags name.
func node(cmd *cobra.Command, f *where.Flags) (n view.NodeView, place string, err error) {
	isCluster, err := f.Cluster(cmd)
	switch {
	case err != nil:
		return n, "", err
	case !isCluster:
		n, err = host.Client{State: f.State}.Node(cmd.Context())
		return n, thisHost(), err
	case f.Node == "":
		return n, "", fmt.Errorf("%s: a cluster has many nodes: name one by --node; kubectl get bpfnodes lists them", cmd.Name())
	}
	c, err := open(cmd, f)
	if err != nil {
		return n, "", err
	}
	n, err = c.Node(cmd.Context(), f.Node)
	return n, c.Place + ", node " + f.Node, err
}

// NewConfirm returns skep confirm.
func NewConfirm() *cobra.Command {
	var state string
	cmd := &cobra.Command{
		Use:   "confirm REVISION",
		Short: "Confirm a change of policies or of the source that unload protection holds back on this host",
		Long:  "In a cluster, the message of the application names the annotation that confirms.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			released, err := host.Client{State: state}.Confirm(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "confirmed: %s; skep run unloads %s\n", text.Printable(released.Reason), display.List(released.Applications))
			return err
		},
	}
	cmd.Flags().StringVar(&state, "state", where.DefaultState, "state folder of the skep run to ask")
	return cmd
}

// NewReconcile returns skep reconcile.
func NewReconcile() *cobra.Command {
	var f where.Flags
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
			name := strings.Join(args, "")
			cluster, named, err := f.Explicit(cmd)
			if err == nil && !named && !rollout.IsTarget(name) {
				cluster, err = f.Cluster(cmd)
			}
			switch {
			case err != nil:
				return err
			case cluster || rollout.IsTarget(name):
				where.Say(cmd, "", f.Kube.Describe())
				return rollout.Reconcile(cmd.Context(), cmd.OutOrStdout(), &f.Kube, name)
			}
			where.Say(cmd, "", thisHost())
			names, err := host.Client{State: f.State}.Reconcile(cmd.Context(), name)
			switch {
			case err != nil:
				return err
			case len(names) == 0:
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "the source is read again; it defined no application")
			default:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "looking again at %s; skep status shows the outcome\n", display.List(names))
			}
			return err
		},
	}
	f.Register(cmd)
	return cmd
}
