package inspect

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/cmd/skep/internal/cluster"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
)

// answer is a status: all of it, and what of it is news if it changes.
type answer struct{ whole, news func(io.Writer) error }

// asked asks for a status, and every is how often it is asked for while it is watched.
type asked struct {
	ask   func(context.Context) (answer, error)
	every time.Duration
}

// askStatus returns what asks the place that the caller means.
func askStatus(cmd *cobra.Command, f *where.Flags, output string, names []string) (asked, error) {
	isCluster, err := f.Cluster(cmd)
	if err != nil {
		return asked{}, err
	}
	if isCluster {
		c, err := open(cmd, f)
		return asked{func(ctx context.Context) (answer, error) {
			s, err := c.Status(ctx, names)
			return answer{
				whole: func(w io.Writer) error { return cluster.PrintStatus(w, output, s) },
				news:  func(w io.Writer) error { return cluster.PrintNews(w, s) },
			}, err
		}, clusterInterval}, err
	}
	return asked{func(ctx context.Context) (answer, error) {
		s, err := host.Client{State: f.State}.Status(ctx, names)
		same := timeless(s)
		show := func(w io.Writer, s nodemode.Status) error {
			return host.PrintStatus(w, output, host.ConfirmHere(f.State), s)
		}
		return answer{
			whole: func(w io.Writer) error {
				host.PrintHealth(w, output, s)
				return show(w, s)
			},
			news: func(w io.Writer) error { return show(w, same) },
		}, err
	}, watchInterval}, nil
}

// timeless is a status without times: when skep run last looked changes, and how long ago something was, while what it saw may not.
func timeless(s nodemode.Status) nodemode.Status {
	s.Synced, s.Applications = time.Time{}, slices.Clone(s.Applications)
	for i := range s.Applications {
		a := &s.Applications[i]
		a.Conditions = slices.Clone(a.Conditions)
		for j := range a.Conditions {
			a.Conditions[j].LastTransitionTime = metav1.Time{}
		}
	}
	return s
}

// How often a host is asked, and a cluster: a look lists all applications there, or goes to a node.
const (
	watchInterval   = time.Second
	clusterInterval = 5 * time.Second
)

// follow shows the status whenever it changed, until it cannot be had or ctx ends.
func follow(cmd *cobra.Command, output string, from asked) error {
	last := ""
	tick := time.NewTicker(from.every)
	defer tick.Stop()
	w := cmd.OutOrStdout()
	for {
		is, err := from.ask(cmd.Context())
		if err != nil {
			return err
		}
		var news strings.Builder
		if err := is.news(&news); err != nil {
			return err
		}
		if news.String() != last {
			if _, err := io.WriteString(w, between(w, output, last == "")); err != nil {
				return err
			}
			if err := is.whole(w); err != nil {
				return err
			}
			last = news.String()
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-tick.C:
		}
	}
}

// between is what parts one status from the previous one: a terminal is redrawn, and has the time.
func between(w io.Writer, output string, first bool) string {
	parted := display.Between(w, output, first)
	if display.Terminal(w) && !display.IsData(output) {
		what := "last change"
		if first {
			what = "watched since"
		}
		parted += display.Below + fmt.Sprintf("%s %s, Ctrl-C ends\n\n", what, time.Now().Format(time.TimeOnly))
	}
	return parted
}
