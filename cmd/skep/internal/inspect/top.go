package inspect

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/top"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
)

// topFlags are those of skep top.
type topFlags struct {
	where   where.Flags
	request top.Request
	output  string
	watch   bool
	once    bool
}

// NewTop returns skep top.
func NewTop() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [OWNER...]",
		Short: "Show what each program costs: share of a CPU, runs, time of a run and memory; Skep's programs and others'",
		Long: "Show what each program of the kernel costs, those of others too.\n\n" +
			"skep run measures for up to 1 second of every 15. A terminal is redrawn after each measurement until Ctrl-C;\n" +
			"elsewhere, and with --once, the last one is printed. CPU % is of one CPU. OWNER leaves the programs of an application, as NAME or\n" +
			"NAMESPACE/NAME, or those that a process holds, by its name. Members of an XDP chain run in the chain's program.\n\n" +
			"In a cluster, name a node by --node, or one application, whose programs are shown on each of its nodes. For a node,\n" +
			nodeRight + " For an application, the right to get bpfapplications/view\nof view.skep.dev is enough.",
		Example: "  skep top\n  skep top --once --sort memory\n  skep top --unmanaged\n  skep top team-a/web -o json\n" +
			"  skep top --node node-1\n  skep top web -n team-a",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(top.Orders(), f.request.Sort) {
				return fmt.Errorf("unknown order %q; use --sort with one of %s", f.request.Sort, display.List(top.Orders()))
			}
			if f.once && f.watch {
				return fmt.Errorf("%s: --once ends after one look, and --watch does not: give one of them", cmd.Name())
			}
			f.request.Owners, f.request.Output = args, f.output
			f.request.Follow = f.watch || !f.once && !display.IsData(f.output) && display.Terminal(cmd.OutOrStdout())
			from, place, err := f.source(cmd)
			if err != nil {
				return err
			}
			if !f.request.Follow {
				where.Say(cmd, f.output, place)
			}
			return top.Show(cmd.Context(), cmd.OutOrStdout(), from, f.request)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.request.Sort, "sort", top.ByCPU, "order: "+strings.Join(top.Orders(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(top.Orders(), cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&f.request.Unmanaged, "unmanaged", false, "show only programs that are not Skep's")
	flags.BoolVarP(&f.watch, "watch", "w", false, "show programs again after each measurement, also if the output is no terminal")
	flags.BoolVar(&f.once, "once", false, "show the last measurement and end, also on a terminal")
	display.OutputFlag(cmd, &f.output, "text", "json", "yaml")
	f.where.Register(cmd)
	cmd.ValidArgsFunction = applications(&f.where, math.MaxInt)
	f.where.RegisterNode(cmd, "node of the cluster to ask for all its programs (default: this host)")
	return cmd
}

// source is what describes the nodes that the flags name.
func (f *topFlags) source(cmd *cobra.Command) (from top.Source, place string, err error) {
	isCluster, err := f.where.Cluster(cmd)
	switch {
	case err != nil:
		return nil, "", err
	case isCluster:
		return f.inCluster(cmd)
	}
	client := host.Client{State: f.where.State}
	return one(client.Node), thisHost(), nil
}

// inCluster is source in a cluster: a node with all its programs, or an application on its nodes.
func (f *topFlags) inCluster(cmd *cobra.Command) (top.Source, string, error) {
	names := f.request.Owners
	if f.where.Node == "" && len(names) != 1 {
		return nil, "", fmt.Errorf("%s: a cluster has many nodes: name one by --node, or one application", cmd.Name())
	}
	c, err := open(cmd, &f.where)
	if err != nil {
		return nil, "", err
	}
	f.request.Interval = clusterInterval
	if f.where.Node != "" {
		if c.Chosen {
			f.request.Namespace = c.Namespace
		}
		return one(func(ctx context.Context) (view.NodeView, error) { return c.Node(ctx, f.where.Node) }), c.Place + ", node " + f.where.Node, nil
	}
	application, err := c.Find(cmd.Context(), "show the cost of", names[0])
	if err != nil {
		return nil, "", err
	}
	// Each node describes nothing else.
	f.request.Owners = nil
	return func(ctx context.Context) ([]view.NodeView, error) { return c.Nodes(ctx, application.Identity) }, c.Place, nil
}

// one is a source of one node.
func one(from func(context.Context) (view.NodeView, error)) top.Source {
	return func(ctx context.Context) ([]view.NodeView, error) {
		n, err := from(ctx)
		return []view.NodeView{n}, err
	}
}
