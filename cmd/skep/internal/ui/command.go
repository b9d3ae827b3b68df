package ui

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/text"
)

// New returns skep ui.
func New() *cobra.Command {
	var (
		f    where.Flags
		port int
	)
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Show what runs, where, in which order and why, on a page in your browser",
		Long: "Serve one read-only page on the loopback interface of this machine, with your own rights, until Ctrl-C. The address that\n" +
			"it prints works once, for one browser.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, place, err := choose(cmd, &f)
			if err != nil {
				return err
			}
			s, err := Listen(cmd.Context(), port, source)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\nOpen this address in a browser on this machine; it works once. The page shows %s. Ctrl-C ends it.\n",
				s.Address(), text.Line(place))
			return s.Serve(cmd.Context())
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of 127.0.0.1 (default a free one)")
	f.Register(cmd)
	return cmd
}

// choose is where the page's data come from, and what a person calls that.
func choose(cmd *cobra.Command, f *where.Flags) (Source, string, error) {
	inCluster, err := f.Cluster(cmd)
	if err != nil {
		return nil, "", err
	}
	if !inCluster {
		source, err := NewHost(f.State)
		return source, "this host", err
	}
	c, err := cluster.Open(&f.Kube, cmd.ErrOrStderr())
	if err != nil {
		return nil, "", err
	}
	return NewCluster(c), c.Place, nil
}
