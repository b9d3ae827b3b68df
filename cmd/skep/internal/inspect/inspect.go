// Package inspect has the commands that show what Skep does, on this host or in a cluster: status, explain, chain, inventory,
// history, and reconcile and confirm beside them. It asks and prints by other packages, and must not decide anything but which.
package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/api/v1alpha1"
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
	return cluster.Open(&f.Kube, cmd.ErrOrStderr())
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
		Short: "Show Skep's own health, what it keeps loaded, and what is denied, on this host or in a cluster",
		Long: "Show the health of Skep, then each application: whether it runs, where, and why not.\n\n" +
			"After skep run --once, it shows what that run left, as far as the kernel still has it.\n\n" +
			"The exit code is 0 for every state, and 1 where there is no application APP. To fail where something is denied, use skep vet\n" +
			"or skep run --once.",
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := askStatus(cmd, &f, output, args)
			if err != nil {
				return err
			}
			if watch {
				return follow(cmd, output, from)
			}
			is, err := from.ask(cmd.Context())
			if err != nil {
				return err
			}
			return is.whole(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the status again whenever it changes, until Ctrl-C; a terminal is redrawn")
	display.OutputFlag(cmd, &output, "text", "wide", "json", "yaml")
	f.Register(cmd)
	cmd.ValidArgsFunction = applications(&f, math.MaxInt)
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
		Short: "Show why one application runs or not: reasons, conditions, attachments, the verifier's log",
		Long: "Show all that is known of one application: source, image, signers, reasons, conditions, attachments, the verifier's log, and\n" +
			"in a cluster the state on each node, history and events.\n\n" +
			"APP is a name or NAMESPACE/NAME, as skep status prints it; of a name that is in one namespace alone,\n" +
			"the name is enough. The exit code is 1 where there is none, or more than one.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			isCluster, err := f.Cluster(cmd)
			if err != nil {
				return err
			}
			if isCluster {
				return explainInCluster(cmd, &f, output, args[0])
			}
			s, err := host.Client{State: f.State}.Status(cmd.Context(), nil)
			if err != nil {
				return err
			}
			a, err := host.Named(s, "explain", args[0])
			if err != nil {
				return err
			}
			where.Say(cmd, output, host.Place(s.Run))
			return host.Explain(cmd.OutOrStdout(), output, a)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json", "yaml")
	f.Register(cmd)
	cmd.ValidArgsFunction = applications(&f, 1)
	f.RegisterNode(cmd, "node of the cluster to ask alone (default: every node that runs it)")
	return cmd
}

// explainInCluster prints all about an application of a cluster.
func explainInCluster(cmd *cobra.Command, f *where.Flags, output, name string) error {
	c, err := open(cmd, f)
	if err != nil {
		return err
	}
	e, err := c.Explain(cmd.Context(), name, f.Node)
	if err != nil {
		return err
	}
	where.Say(cmd, output, c.Place)
	return cluster.PrintExplanation(cmd.OutOrStdout(), output, e)
}

// NewHistory returns skep history.
func NewHistory() *cobra.Command {
	var (
		f      where.Flags
		output string
	)
	cmd := &cobra.Command{
		Use:   "history APP",
		Short: "Show the last ten versions of an application: when, what changed, who signed, and what became of each",
		Long: "Show the last ten versions of an application, with what changed from the version that ran before.\n\n" +
			"APP is a name or NAMESPACE/NAME, as skep status prints it. The newest version is first. Changes name variables,\n" +
			"and show no values.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			place, all, err := history(cmd, &f, args[0])
			if err != nil {
				return err
			}
			where.Say(cmd, output, place)
			if display.IsData(output) {
				return display.Data(cmd.OutOrStdout(), output, append([]v1alpha1.ApplicationVersion{}, all...))
			}
			if len(all) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "No versions found: none of %s was evaluated yet, or what evaluated it keeps no history\n", text.Line(args[0]))
				return nil
			}
			return nodes.PrintHistory(cmd.OutOrStdout(), output == "wide", all)
		},
	}
	display.OutputFlag(cmd, &output, "text", "wide", "json", "yaml")
	f.Register(cmd)
	cmd.ValidArgsFunction = applications(&f, 1)
	return cmd
}

// history reads the versions of an application where the flags say.
func history(cmd *cobra.Command, f *where.Flags, name string) (place string, all []v1alpha1.ApplicationVersion, err error) {
	isCluster, err := f.Cluster(cmd)
	if err != nil {
		return "", nil, err
	}
	if isCluster {
		c, err := open(cmd, f)
		if err != nil {
			return "", nil, err
		}
		a, err := c.Find(cmd.Context(), "show history of", name)
		return c.Place, a.Status.History, err
	}
	s, err := host.Client{State: f.State}.Status(cmd.Context(), nil)
	if err != nil {
		return "", nil, err
	}
	a, err := host.Named(s, "show history of", name)
	return host.Place(s.Run), a.History, err
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
		Long: "Show the programs of interfaces in the order in which a packet meets them, at xdp, tcx, tc and netkit, Skep's and others'. Several XDP\n" +
			"programs of Skep's on an interface are counted by verdict.\n\n" +
			"IFACE is a name, of this and of every other network namespace, or a name and its namespace as\n" +
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
	display.OutputFlag(cmd, &output, "text", "json", "yaml")
	f.Register(cmd)
	cmd.ValidArgsFunction = interfaces(&f)
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
		Long: "Confirm a change of policies, signers or the source that would unload many applications. skep status prints the REVISION.\n\n" +
			"In a cluster, the message of the application names the annotation that confirms.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			released, err := host.Client{State: state}.Confirm(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "confirmed: %s; skep run unloads %s\n", text.Indented(released.Reason),
				text.Line(display.List(released.Applications)))
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
		Short: "Evaluate applications again now, such as after a new signature",
		Long: "Evaluate one application again, or on a host all, without waiting for the next interval.\n\n" +
			"On a host, APPLICATION is a name as skep status prints it; without one, skep run looks at all. It fetches the\n" +
			"source and asks registries again about what is denied or was out of reach.\n\n" +
			"In a cluster, APPLICATION is a name as skep status prints it, cbpfapp/NAME for a ClusterBpfApplication, or\n" +
			"bpfapp/NAME for a BpfApplication of the namespace. The command sets the annotation reconcile.fluxcd.io/requestedAt, as flux reconcile does: the tag\n" +
			"is resolved again, too. The controller answers one request of an application in ten seconds.",
		Example: "  skep reconcile\n  skep reconcile team/app\n  skep reconcile bpfapp/app -n team",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			isCluster, named, err := f.Explicit(cmd)
			if err == nil && !named && !rollout.IsTarget(name) {
				isCluster, err = f.Cluster(cmd)
			}
			switch {
			case err != nil:
				return err
			case isCluster || rollout.IsTarget(name):
				return reconcileInCluster(cmd, &f, name)
			}
			where.Say(cmd, "", thisHost())
			names, err := host.Client{State: f.State}.Reconcile(cmd.Context(), name)
			switch {
			case err != nil:
				return err
			case len(names) == 0:
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "the source is read again; it defined no application")
			default:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "looking again at %s; skep status shows the outcome\n", text.Line(display.List(names)))
			}
			return err
		},
	}
	f.Register(cmd)
	cmd.ValidArgsFunction = applications(&f, 1)
	return cmd
}

// reconcileInCluster has the controller look at an application again.
func reconcileInCluster(cmd *cobra.Command, f *where.Flags, name string) error {
	if name == "" {
		return errors.New("reconcile: in a cluster, name the application as status prints it")
	}
	if !rollout.IsTarget(name) {
		c, err := open(cmd, f)
		if err != nil {
			return err
		}
		a, err := c.Find(cmd.Context(), "reconcile", name)
		if err != nil {
			return err
		}
		if name = "cbpfapp/" + a.Name; a.Namespace != "" {
			name = "bpfapp/" + a.Name
			f.Kube.InNamespace(a.Namespace)
		}
	}
	where.Say(cmd, "", f.Kube.Describe())
	return rollout.Reconcile(cmd.Context(), cmd.OutOrStdout(), &f.Kube, name)
}
