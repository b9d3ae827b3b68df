package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/nodemode"
)

// TestReconcileAsksTheHost for one application, by its name, or for all.
func TestReconcileAsksTheHost(t *testing.T) {
	state := t.TempDir()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "unix", filepath.Join(state, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/v1/reconcile" || r.FormValue("application") == "nothing" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode([]string{"asked for " + r.FormValue("application")})
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	for _, args := range [][]string{{"reconcile"}, {"reconcile", "team/app"}} {
		cmd, stderr := skepProcess(t, t.TempDir(), append(args, "--state", state)...)
		out, err := cmd.Output()
		want := "looking again at " + strings.TrimSpace("asked for "+strings.Join(args[1:], ""))
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("skep %q: %v, %s%s, want %q", args, err, out, stderr, want)
		}
	}
	cmd, _ := skepProcess(t, t.TempDir(), "reconcile", "nothing", "--state", state)
	if code := exitCode(t, cmd.Run()); code != exit.Denied {
		t.Errorf("of an application that does not exist: exit code %d", code)
	}
}
