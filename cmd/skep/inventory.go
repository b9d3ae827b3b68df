package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

func newInventory() *cobra.Command {
	var (
		output string
		o      inventory.Options
	)
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "List every BPF program, link and map on this host, Skep's and others'",
		Long:  "Needs CAP_SYS_ADMIN: the kernel lets nobody else look BPF objects up by id.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !strings.HasPrefix(o.Managed, "/sys/fs/bpf/") {
				o.BPFFS = o.Managed
			}
			all, err := inventory.List(cmd.Context(), o)
			if err != nil {
				return err
			}
			if output == "json" {
				return display.JSON(cmd.OutOrStdout(), all)
			}
			return printInventory(cmd.OutOrStdout(), output == "wide", all)
		},
	}
	cmd.Flags().StringVar(&o.Managed, "bpffs", "", "folder of Skep's pins (default /sys/fs/bpf/skep)")
	display.OutputFlag(cmd, &output, "text", "wide", "json")
	return cmd
}

// printInventory is a table with a line for each program; wide has tag, time of loading, and
// every pin, and shortens nothing.
func printInventory(w io.Writer, wide bool, all inventory.Inventory) error {
	header := []string{"ID", "TYPE", "NAME", "ATTACHED", "OWNER", "HELD BY"}
	if wide {
		header = append(header, "TAG", "LOADED", "PINS")
	}
	var rows [][]string
	for _, p := range all.Programs {
		var places, holders []string
		for _, a := range p.Attached {
			places = append(places, strings.TrimSuffix(a.Hook+"@"+a.Target, "@"))
		}
		for _, h := range p.Holders {
			holders = append(holders, h.Name)
		}
		if len(p.Pins) > 0 {
			holders = append(holders, "pin "+filepath.Base(p.Pins[0]))
		}
		owner := "unmanaged"
		if p.Managed {
			owner = "skep"
			if p.Owner != nil {
				owner = "skep " + p.Owner.App
			}
		}
		attached, held := display.List(places), display.List(holders)
		if display.Terminal(w) && !wide {
			attached, held = display.Fit(places, 22), display.Fit(holders, 16)
		}
		row := []string{strconv.Itoa(int(p.ID)), p.Type, p.Name, cmp.Or(attached, "-"), owner, cmp.Or(held, "-")}
		if wide {
			row = append(row, p.Tag, p.LoadedAt.UTC().Format(time.RFC3339), cmp.Or(display.List(p.Pins), "-"))
		}
		rows = append(rows, row)
	}
	if err := display.Table(w, header, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d programs, %d links, %d maps; -o json tells all\n", len(all.Programs), len(all.Links), len(all.Maps))
	return err
}
