package host

import (
	"context"
	"net/http"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// View describes this host as its skep run sees it now.
func (c Client) View(ctx context.Context) (n view.NodeView, err error) {
	err = c.do(ctx, http.MethodGet, "node", &n)
	return n, err
}
