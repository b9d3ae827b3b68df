package inspect

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
)

// completeTime is how long skep run may take to answer a shell.
const completeTime = 3 * time.Second

// applications completes the names of up to so many applications as status prints them, of this host or of a cluster. Where they cannot be read, a
// shell completes nothing.
func applications(f *where.Flags, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		isCluster, err := f.Cluster(cmd)
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if isCluster {
			names = f.Kube.ApplicationNames(cmd.Context())
		} else {
			ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
			defer cancel()
			s, err := host.Client{State: f.State}.Status(ctx, nil)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for _, a := range s.Applications {
				names = append(names, a.Identity().String())
			}
		}
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// interfaces completes the name of an interface of this host that has programs in an order.
func interfaces(f *where.Flags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		isCluster, err := f.Cluster(cmd)
		if err != nil || isCluster || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
		defer cancel()
		n, err := host.Client{State: f.State}.Node(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, i := range n.Interfaces {
			if !slices.Contains(names, i.Target.Interface) {
				names = append(names, i.Target.Interface)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
