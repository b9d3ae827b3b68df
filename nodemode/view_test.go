package nodemode

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	awaits "github.com/skep-dev/skep/test/harness/await"
)

func TestAHostDescribesItselfOnItsSocket(t *testing.T) {
	s := newStage(t)
	h := s.open(func(o *Options) { o.Interval, o.Now, o.Version = time.Hour, nil, "v7" })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, nil) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	s.write(filepath.Join(s.defs, "app.yaml"), s.definition("app", s.push(first, "app:v1", "team-a")))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.state, SocketName))
	}}}
	get := func(path string) (int, []byte) {
		t.Helper()
		response, err := client.Get("http://host" + path)
		if err != nil {
			return 0, nil
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, body
	}
	var n view.NodeView
	awaits.True(t, "the application and its program to be described", time.Minute, func() bool {
		_, body := get("/v1/node")
		n = view.NodeView{}
		return json.Unmarshal(body, &n) == nil && len(n.LeftOut) == 0 && isDescribed(n)
	})
	if n.Kind != view.KindNodeView || n.Name == "" || n.Agent.Version != "v7" || n.Kernel.Release == "" || len(n.Kernel.Hooks) == 0 {
		t.Errorf("the host is %+v", n)
	}
	is := n.Applications[0]
	status, body := get("/v1/node?kind=ClusterBpfApplication&name=other")
	scoped := view.NodeView{}
	if err := json.Unmarshal(body, &scoped); err != nil || status != http.StatusOK || len(scoped.Applications) != 0 || scoped.Others == nil ||
		scoped.Others.Applications != 1 || strings.Contains(string(body), is.UID) {
		t.Errorf("another's view is %d %s, %v", status, body, err)
	}
	if status, body = get("/v1/node?namespace=team-a"); status != http.StatusBadRequest || !strings.Contains(string(body), "kind") {
		t.Errorf("a namespace without a kind: %d %s", status, body)
	}
}

// isDescribed reports whether the one application has an attachment whose program is among those of the kernel as its own.
func isDescribed(n view.NodeView) bool {
	if len(n.Applications) != 1 || len(n.Applications[0].Attachments) != 1 {
		return false
	}
	at := n.Applications[0].Attachments[0]
	return at.State == string(agent.Attached) && slices.ContainsFunc(n.Programs, func(p view.Program) bool {
		return p.ID == at.ProgramID && p.Application != nil && p.Application.Name == "app"
	})
}
