package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/schemas"
)

// Client asks the skep run of a state folder through its socket.
type Client struct {
	State string

	// patience is how long skep run may take to answer; zero means two minutes. A look at its kernel takes longest.
	patience time.Duration
}

// errNotRunning is why nothing answers at the socket.
var errNotRunning = errors.New("skep run is not running")

// do sends one request to the socket and reads its JSON into v.
func (c Client) do(ctx context.Context, method, path string, v any) error {
	socket := filepath.Join(c.State, nodemode.SocketName)
	var dialer net.Dialer
	patience := cmp.Or(c.patience, 2*time.Minute)
	transport := &http.Transport{ResponseHeaderTimeout: patience, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://skep/v1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return where.Refused(c.State, err)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w with this --state: start it without --once, or name a cluster by --context if the command asks one (%s: %w)", errNotRunning,
			socket, errors.Unwrap(err))
	case isTimeout(err):
		return fmt.Errorf("skep run did not answer within %s: its process may be stopped (%s)", patience, socket)
	case err != nil:
		return fmt.Errorf("ask skep run: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		err := errors.New(strings.TrimSpace(string(text)))
		if resp.StatusCode == http.StatusNotFound {
			err = exit.Absent("%w", err)
		}
		return err
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// isTimeout reports whether an error of a request is that no answer came.
func isTimeout(err error) bool {
	var of *url.Error
	return errors.As(err, &of) && of.Timeout()
}

// Status is the status of skep run, of the named applications alone where any are. If no skep run runs, it is what the last
// one left, without what the kernel has no more.
func (c Client) Status(ctx context.Context, names []string) (nodemode.Status, error) {
	var s nodemode.Status
	err := c.do(ctx, http.MethodGet, "status", &s)
	if errors.Is(err, errNotRunning) {
		left, leftErr := c.left(ctx, err)
		s, err = left.Status, leftErr
	}
	if err != nil || len(names) == 0 {
		return s, err
	}
	for _, name := range names {
		if _, known := find(s, name); !known {
			return s, noApplication("show status of", name)
		}
	}
	s.Applications = slices.DeleteFunc(s.Applications, func(a nodemode.Application) bool { return !slices.Contains(names, a.Identity().String()) })
	s.Problems = slices.DeleteFunc(s.Problems, func(p schemas.Problem) bool {
		return p.Definition != nil && !slices.Contains(names, p.Definition.String())
	})
	return s, nil
}

// Node describes this host. If no skep run runs, it is what the last one left, without the interfaces where the kernel has nothing
// of it any more, and with the programs that the kernel has now.
func (c Client) Node(ctx context.Context) (view.NodeView, error) {
	var n view.NodeView
	err := c.do(ctx, http.MethodGet, "node", &n)
	if errors.Is(err, errNotRunning) {
		left, leftErr := c.left(ctx, err)
		n, err = left.Node, leftErr
	}
	return n, err
}

// Reconcile has an application looked at again, or each one if name is empty, and returns which.
func (c Client) Reconcile(ctx context.Context, name string) (names []string, err error) {
	err = c.do(ctx, http.MethodPost, "reconcile?application="+url.QueryEscape(name), &names)
	return names, err
}

// Confirm lets a change through that unload protection holds.
func (c Client) Confirm(ctx context.Context, revision string) (released nodemode.UnloadProtection, err error) {
	err = c.do(ctx, http.MethodPost, "confirm?revision="+url.QueryEscape(revision), &released)
	return released, err
}
