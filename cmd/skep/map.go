package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/readers/show"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
)

// mapCommand is what the commands below skep map have in common.
type mapCommand struct {
	bpffs, output, typeName string
	// node has the commands read in the cluster of kube.
	node string
	kube kubeconfig.Flags
}

func newMap() *cobra.Command {
	m := &mapCommand{}
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Show the maps of Skep's programs on this host or on a node of a cluster, their entries and records",
		Long: "Show the maps of Skep's programs, their entries and records.\n\n" +
			"On this host it needs CAP_SYS_ADMIN, reads the kernel, and needs neither grants nor a running agent.\n" +
			"By --node it reads on a node of the cluster, where mapReads is enabled, and needs the verbs get and watch of\n" +
			"clusterbpfapplications/maps or bpfapplications/maps in the API group maps.skep.dev. A reader without privilege\n" +
			"gets maps by spec.maps.NAME.export. APPLICATION is NAME or NAMESPACE/NAME; with -n, NAME is of that namespace.",
	}
	cmd.PersistentFlags().StringVar(&m.bpffs, "bpffs", "", "folder of Skep's pins (default /sys/fs/bpf/skep)")
	cmd.AddCommand(m.list(), m.dump(), m.get(), m.watch())
	for _, c := range cmd.Commands() {
		m.kube.Register(c)
		c.Flags().StringVar(&m.node, "node", "", "node of the cluster to read on (default: this host)")
		// The flag was just made, so that nothing can fail.
		_ = c.RegisterFlagCompletionFunc("node", m.kube.Names(v1alpha1.GroupVersion().WithResource("bpfnodes")))
		local := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if !m.isCluster(cmd) {
				return local(cmd, args)
			}
			return m.inCluster(cmd, args)
		}
	}
	return cmd
}

func (m *mapCommand) all(ctx context.Context) ([]show.Map, error) {
	o := inventory.Options{Managed: m.bpffs}
	if !strings.HasPrefix(o.Managed, "/sys/fs/bpf/") {
		o.BPFFS = o.Managed
	}
	return show.List(ctx, o)
}

// find finds a map; one that is not there is the answer no.
func (m *mapCommand) find(ctx context.Context, args []string) (show.Map, error) {
	all, err := m.all(ctx)
	if err != nil {
		return show.Map{}, err
	}
	found, err := show.Find(all, args[0], args[1])
	return found, absent(err)
}

func absent(err error) error {
	if errors.Is(err, show.ErrNotFound) {
		return exit.Absent("%w", err)
	}
	return err
}

// isCluster reports whether the caller names a node of a cluster, or the cluster.
func (m *mapCommand) isCluster(cmd *cobra.Command) bool {
	return m.node != "" || m.kube.Given(cmd) != "" || where.IsPlugin(cmd)
}

// complete completes the application and, on this host, its map.
func (m *mapCommand) complete(cmd *cobra.Command, args []string, _ string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
	if m.isCluster(cmd) {
		if len(args) == 0 {
			found = m.kube.ApplicationNames(cmd.Context())
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := m.all(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, one := range all {
		switch {
		case len(args) == 0:
			found = append(found, one.Application)
		case len(args) == 1 && one.Application == args[0]:
			found = append(found, one.Name)
		}
	}
	// An application is listed once for each of its maps.
	slices.Sort(found)
	return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
}

func (m *mapCommand) list() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "list [APPLICATION]",
		Short:             "List the maps of all applications, or of one",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: m.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := m.all(cmd.Context())
			if err != nil {
				return err
			}
			chosen := []show.Map{}
			for _, one := range all {
				if len(args) == 0 || one.Application == args[0] {
					chosen = append(chosen, one)
				}
			}
			if len(args) > 0 && len(chosen) == 0 {
				return exit.Absent("no application %s with maps runs here; see skep map list", args[0])
			}
			if m.output == "json" {
				return display.JSON(cmd.OutOrStdout(), chosen)
			}
			if len(chosen) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), "No maps found: no program of Skep's is loaded")
				return nil
			}
			return m.printMaps(cmd, chosen)
		},
	}
	display.OutputFlag(cmd, &m.output, "text", "json")
	return cmd
}

const perLine = "By -o json, each is a JSON object on a line."

// open opens the map that arguments name.
func (m *mapCommand) open(ctx context.Context, args []string) (*show.Entries, error) {
	found, err := m.find(ctx, args)
	if err != nil {
		return nil, err
	}
	return show.Open(found)
}

func (m *mapCommand) dump() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump APPLICATION MAP",
		Short: "Print all entries of a map",
		Long: "Print all entries of a map.\n\n" +
			"Keys and values are decoded by the BTF of the map; without BTF they are hex digits. A per-CPU map has a list\n" +
			"of values, one for each possible CPU. " + perLine,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: m.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := m.open(cmd.Context(), args)
			if err != nil {
				return err
			}
			defer entries.Close()
			return entries.All(cmd.Context(), func(e show.Entry) error { return m.print(cmd.OutOrStdout(), e) })
		},
	}
	display.OutputFlag(cmd, &m.output, "text", "json")
	return cmd
}

func (m *mapCommand) get() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get APPLICATION MAP KEY",
		Short: "Print the entry of a key",
		Long: "Print the entry of a key.\n\n" +
			"KEY is JSON as the key's type has it, such as 7 or '{\"port\": 53}', as dump prints it; without BTF it is the\n" +
			"hex digits of its bytes. Exit code 1 says that the map has no such key.",
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: m.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := m.open(cmd.Context(), args)
			if err != nil {
				return err
			}
			defer entries.Close()
			entry, err := entries.Get(args[2])
			if err != nil {
				return absent(err)
			}
			return m.print(cmd.OutOrStdout(), entry)
		},
	}
	display.OutputFlag(cmd, &m.output, "text", "json")
	return cmd
}

func (m *mapCommand) watch() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch APPLICATION MAP",
		Short: "Print the records of a ring or perf buffer as they come",
		Long: "Print the records of a ring or perf buffer as they come, until Ctrl-C.\n\n" +
			"It takes the records, as every consumer does, and does not start while another process consumes them. The\n" +
			"map has no type for its records: --type names a struct of the program's. " + perLine,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: m.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := m.find(cmd.Context(), args)
			if err != nil {
				return err
			}
			return absent(show.Watch(cmd.Context(), found, m.typeName, func(r show.Record) error { return m.printRecord(cmd, r) }))
		},
	}
	cmd.Flags().StringVar(&m.typeName, "type", "", "name of the struct that records have in the program's source, such as event")
	display.OutputFlag(cmd, &m.output, "text", "json")
	return cmd
}

// printMaps prints a table.
func (*mapCommand) printMaps(cmd *cobra.Command, all []show.Map) error {
	var rows [][]string
	for _, one := range all {
		rows = append(rows, []string{one.Application, one.Name, one.Type, strconv.Itoa(int(one.KeySize)), strconv.Itoa(int(one.ValueSize)),
			strconv.Itoa(int(one.MaxEntries))})
	}
	return display.Table(cmd.OutOrStdout(), []string{"APPLICATION", "MAP", "TYPE", "KEY", "VALUE", "ENTRIES"}, rows)
}

// printRecord prints a record on a line.
func (m *mapCommand) printRecord(cmd *cobra.Command, r show.Record) error {
	if m.output == "json" {
		return printLine(cmd.OutOrStdout(), r)
	}
	if r.Lost > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d records were lost\n", r.Lost)
	}
	if r.Value == "" {
		return nil
	}
	return printLine(cmd.OutOrStdout(), r.Value)
}

// print prints an entry on a line.
func (m *mapCommand) print(w io.Writer, e show.Entry) error {
	if m.output == "json" {
		return printLine(w, e)
	}
	key, err := display.JSONLine(e.Key)
	if err != nil {
		return err
	}
	var value any = e.Values
	if e.Values == nil {
		value = e.Value
	}
	text, err := display.JSONLine(value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s  %s\n", key, text)
	return err
}

// printLine prints a value as JSON on a line.
func printLine(w io.Writer, v any) error {
	line, err := display.JSONLine(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, line)
	return err
}
