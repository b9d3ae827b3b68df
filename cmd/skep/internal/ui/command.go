package ui

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/host"
)

// New returns skep ui.
func New() *cobra.Command {
	var (
		port  int
		state string
	)
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show what runs, where, in which order and why, as a page in a browser",
		Long: "Serves one read-only page on this machine's loopback interface, with your own rights, until Ctrl-C. The address that it\n" +
			"prints opens one browser, once.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := NewHost(state)
			if err != nil {
				return err
			}
			s, err := Listen(cmd.Context(), port, source)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\nOpen it in a browser on this machine: it opens one, once. Ctrl-C ends the page.\n", s.Address())
			return s.Serve(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of 127.0.0.1 (default a free one)")
	cmd.Flags().StringVar(&state, "state", host.DefaultState, "state folder of the skep run to ask")
	return cmd
}
