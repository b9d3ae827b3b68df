package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/text"
)

// defaultPins is where skep run pins what it loads, unless it is told another folder.
const defaultPins = "/sys/fs/bpf/skep"

func newUnload() *cobra.Command {
	var (
		all          bool
		state, bpffs string
		maps         string
	)
	cmd := &cobra.Command{
		Use:   "unload --all",
		Short: "Unload every program of Skep's on this host (root; stop skep run first)",
		Long: "Detach and unload every program of Skep's, remove its pins, and forget what would load them at the\n" +
			"next start. Programs of others, keys and caches stay. The kernel is asked whether they are gone.\n\n" +
			"skep run must be stopped. Started again, it loads what its source defines.\n" +
			"Exit code 0: nothing of Skep's is left; 2: something is left, or it could not be determined.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !all {
				return errors.New("unload: name what to unload: --all is every program of Skep's on this host")
			}
			u, err := nodemode.Unload(cmd.Context(), state, bpffs, maps)
			if err != nil {
				return err
			}
			return printRemoved(cmd.OutOrStdout(), u)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "every program of Skep's on this host")
	cmd.Flags().StringVar(&state, "state", where.DefaultState, "state folder of skep run")
	cmd.Flags().StringVar(&bpffs, "bpffs", defaultPins, "folder of Skep's pins")
	cmd.Flags().StringVar(&maps, "maps-dir", host.DefaultMapsDir, "folder of the maps that groups were granted")
	return cmd
}

// printRemoved names each program with where it was, and fails where some are left.
func printRemoved(w io.Writer, u nodemode.Unloaded) error {
	for _, p := range u.Gone {
		fmt.Fprintln(w, text.Line("unloaded "+programName(p)))
	}
	for _, p := range u.Left {
		fmt.Fprintln(w, text.Line("still loaded "+programName(p)))
		for _, pin := range p.Pins {
			fmt.Fprintln(w, text.Line("  held by the pin "+pin))
		}
		for _, h := range p.Holders {
			fmt.Fprintln(w, text.Line(fmt.Sprintf("  held by the process %d %s", h.PID, h.Name)))
		}
	}
	if len(u.Left) > 0 {
		return errors.New("unload: programs are still loaded, since another pin or process holds them or their links; " +
			"remove the pin or end the process, which `skep inventory` shows")
	}
	if len(u.Gone) == 0 {
		fmt.Fprintln(w, "nothing of Skep's was pinned; skep inventory lists what something else holds")
		return nil
	}
	fmt.Fprintln(w, "no program of Skep's is loaded")
	return nil
}

// programName is a program with its owner, as a person knows it.
func programName(p inventory.Program) string {
	name := fmt.Sprintf("program %d %s", p.ID, p.Name)
	if p.Owner != nil && p.Owner.App != "" {
		name += " of " + p.Owner.App
	}
	return name
}
