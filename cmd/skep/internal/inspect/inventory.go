package inspect

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/inventory"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/nodes"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
)

// NewInventory returns skep inventory.
func NewInventory() *cobra.Command {
	var (
		f             where.Flags
		output, bpffs string
	)
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "List every BPF program, link and map on this host, or every program on a node of a cluster, Skep's and others'",
		Long: "List every BPF program in the kernel, with its type, places, owner and holders.\n\n" +
			"This host's kernel is asked, whether skep run runs or not. This needs CAP_SYS_ADMIN: the kernel lets no other process look\n" +
			"BPF objects up by id. With --node a node of the cluster is asked; " + nodeRight,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			isCluster, _, err := f.Explicit(cmd)
			if err != nil {
				return err
			}
			if isCluster {
				return printNodesInventory(cmd, &f, output)
			}
			all, err := inventory.List(cmd.Context(), inventory.Of(bpffs))
			if err != nil {
				return err
			}
			where.Say(cmd, output, thisHost())
			if display.IsData(output) {
				return display.Data(cmd.OutOrStdout(), output, all)
			}
			if err := nodes.PrintPrograms(cmd.OutOrStdout(), output == "wide", host.Programs(all), nil); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%s, %s, %s; -o json lists all\n", display.Count(len(all.Programs), "program"),
				display.Count(len(all.Links), "link"), display.Count(len(all.Maps), "map"))
			return err
		},
	}
	cmd.Flags().StringVar(&bpffs, "bpffs", "", "folder of Skep's pins on this host (default /sys/fs/bpf/skep)")
	display.OutputFlag(cmd, &output, "text", "wide", "json", "yaml")
	f.RegisterCluster(cmd)
	f.RegisterNode(cmd, "node of the cluster to ask (default: this host)")
	return cmd
}

// printNodesInventory prints the programs of a node of the cluster.
func printNodesInventory(cmd *cobra.Command, f *where.Flags, output string) error {
	n, place, err := node(cmd, f)
	if err != nil {
		return err
	}
	where.Say(cmd, output, place)
	if display.IsData(output) {
		return display.Data(cmd.OutOrStdout(), output, map[string]any{"programs": append([]view.Program{}, n.Programs...),
			"leftOut": append([]string{}, n.LeftOut...)})
	}
	nodes.PrintLeftOut(cmd.ErrOrStderr(), n)
	return nodes.PrintPrograms(cmd.OutOrStdout(), output == "wide", n.Programs, n.Interfaces)
}
