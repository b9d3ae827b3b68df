package inspect

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
)

// TestTopAsksTheHost for its programs, and says what of its flags is wrong.
func TestTopAsksTheHost(t *testing.T) {
	state := t.TempDir()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "unix", filepath.Join(state, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/node", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(view.NodeView{Programs: []view.Program{
			{ID: 7, Name: "count", Type: "XDP", MemoryBytes: 4096, Cost: &view.Cost{WindowSeconds: 1, Runs: 10, Nanoseconds: 1000}},
			{ID: 8, Name: "chain", Type: "XDP", Chain: true}}})
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	for args, c := range map[string]struct{ out, aside, err string }{
		"":                     {"NS/RUN", "host ", ""},
		"--once --sort memory": {"count", "host ", ""},
		"--unmanaged -o json":  {`"program": "count"`, "", ""},
		"--sort size":          {"", "", `unknown order "size"; use --sort with one of cpu, runs, ns, memory, name`},
		"--once -w":            {"", "", "--once ends after one look"},
		"nothing":              {"", "", "show programs of nothing: no program"},
		"-o yaml":              {"", "", `unknown output "yaml"`},
	} {
		var out, aside strings.Builder
		root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
		root.AddCommand(NewTop())
		root.SetOut(&out)
		root.SetErr(&aside)
		root.SetArgs(append([]string{"top", "--state", state}, strings.Fields(args)...))
		err := root.ExecuteContext(t.Context())
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("top %s: %v, want %q", args, err, c.err)
		}
		if !strings.Contains(out.String(), c.out) || !strings.HasPrefix(aside.String(), c.aside) || c.err == "" && c.aside == "" && aside.Len() > 0 {
			t.Errorf("top %s: %s\n%s", args, &out, &aside)
		}
		if strings.Contains(args, "--unmanaged") && strings.Contains(out.String(), "chain") {
			t.Errorf("top %s shows a program of Skep's: %s", args, &out)
		}
	}
}
