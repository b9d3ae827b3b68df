package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
)

// Reconciling asks skep run to look at applications again.
type Reconciling struct{ client }

// Register adds the flags to a command.
func (r *Reconciling) Register(cmd *cobra.Command) {
	r.register(cmd, "In a cluster, name the application as cbpfapp/NAME, or as bpfapp/NAME with -n NAMESPACE")
}

// Ask has an application of this host looked at again, or each one if name is empty, and
// prints which.
func (r *Reconciling) Ask(ctx context.Context, w io.Writer, name string) error {
	var names []string
	if err := r.do(ctx, http.MethodPost, "reconcile?application="+url.QueryEscape(name), &names); err != nil {
		return err
	}
	if len(names) == 0 {
		_, err := fmt.Fprintln(w, "the source is read again; it defined no application")
		return err
	}
	_, err := fmt.Fprintf(w, "looking again at %s; skep status shows the outcome\n", display.List(names))
	return err
}
