package host

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/hook"
)

// NewChain returns skep chain.
func NewChain() *cobra.Command {
	var (
		l      client
		output string
	)
	cmd := &cobra.Command{
		Use:   "chain [IFACE [in NETNS]]",
		Short: "Show the XDP programs of an interface in the order they run, how often each returned which verdict, and the room left",
		Long: "IFACE is a name, of this and of every other network namespace, or a name and its namespace as\n" +
			"skep prints them, such as eth0 in net:[4026532281]. Without it all interfaces are shown.",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var all []agent.ChainStatus
			if err := l.do(cmd.Context(), http.MethodGet, "chains", &all); err != nil {
				return err
			}
			// The name of a network namespace has spaces, which the shell may have split.
			name := strings.Join(args, " ")
			chosen := []agent.ChainStatus{}
			for _, c := range all {
				if name == "" || c.Interface == name || c.Label() == name {
					chosen = append(chosen, c)
				}
			}
			if name != "" && len(chosen) == 0 {
				return exit.Absent("show chain of %s: no XDP program of Skep's runs there; see skep inventory for others", name)
			}
			if output == "json" {
				return display.JSON(cmd.OutOrStdout(), chosen)
			}
			if len(chosen) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), noChains)
			}
			for _, c := range chosen {
				if err := printChain(cmd.OutOrStdout(), c); err != nil {
					return err
				}
			}
			return nil
		},
	}
	display.OutputFlag(cmd, &output, "text", "json")
	l.register(cmd, clusterShows)
	return cmd
}

// noChains answers where no interface has a chain, as kubectl get does.
const noChains = "No chains found: no XDP program of Skep's is attached on this host. A program at the hook xdp makes one; see skep status"

func printChain(w io.Writer, c agent.ChainStatus) error {
	fmt.Fprintf(w, "%s  program %d, link %d", c.Label(), c.ProgramID, c.LinkID)
	if c.XDPMode != "" {
		fmt.Fprintf(w, ", mode %s", c.XDPMode)
	}
	fmt.Fprintln(w)
	if c.XDPReason != "" {
		fmt.Fprintln(w, c.XDPReason)
	}
	var rows [][]string
	for i, m := range c.Members {
		runs := "-"
		if m.Runs != nil {
			runs = strconv.FormatUint(*m.Runs, 10)
		}
		if m.SwitchedOff {
			runs += " (off)"
		}
		rows = append(rows, []string{
			strconv.Itoa(i + 1), strconv.Itoa(int(m.Priority)), m.Application, m.Program, display.List(m.ProceedOn), runs, describeVerdicts(m.Verdicts),
		})
	}
	if err := display.Table(w, []string{"#", "PRIORITY", "APPLICATION", "PROGRAM", "PROCEED ON", "RUNS", "VERDICTS"}, rows); err != nil {
		return err
	}
	if c.Error != "" {
		_, err := fmt.Fprintf(w, "not all is known: %s\n", c.Error)
		return err
	}
	_, err := fmt.Fprintf(w, "room left: %d maps, %d subprograms\n", c.Room.Maps, c.Room.Subprograms)
	return err
}

// describeVerdicts lists how often a member returned which verdict, in the order of enum xdp_action.
func describeVerdicts(counts map[string]uint64) string {
	var all []string
	for _, v := range hook.XDPVerdicts() {
		if n := counts[v.Name]; n > 0 {
			all = append(all, fmt.Sprintf("%s %d", v.Name, n))
		}
	}
	if n := counts["Other"]; n > 0 {
		all = append(all, fmt.Sprintf("Other %d", n))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}
