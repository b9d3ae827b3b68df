package inspect

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
)

// TestNodesOfAClusterAreAsked for all that they have, or for an application on its nodes.
func TestNodesOfAClusterAreAsked(t *testing.T) {
	measured := view.Program{ID: 7, Name: "count", Type: "XDP", Cost: &view.Cost{WindowSeconds: 1, Runs: 10, Nanoseconds: 1000},
		Application: &v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "web"}}
	node := func(name string, all ...view.Program) view.NodeView {
		return view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: name}, Programs: all}
	}
	const group = "/apis/view.skep.dev/v1alpha1/"
	answers := map[string]any{
		group + "namespaces/team-a/bpfapplications/web/view": view.NodeViewList{Items: []view.NodeView{node("node-1", measured),
			node("node-2", measured)}},
		group + "nodeviews/empty":                                       node("empty"),
		group + "nodeviews/node-1":                                      node("node-1", measured, view.Program{ID: 8, Name: "foreign", Type: "XDP"}),
		"/apis/skep.dev/v1alpha1/namespaces/team-a/bpfapplications/web": v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: %q}}]\n"+
		"contexts: [{name: a, context: {cluster: a}}]\n", server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, c := range map[string]struct {
		has, lacks []string
		err        string
	}{
		"top --node node-1":               {[]string{"foreign", "team-a/web"}, []string{"NODE"}, ""},
		"top --node node-1 -n team-a":     {[]string{"team-a/web"}, []string{"foreign"}, ""},
		"top --node node-1 web":           {[]string{"team-a/web"}, []string{"foreign"}, ""},
		"top web -n team-a":               {[]string{"NODE", "node-1", "node-2"}, []string{"foreign"}, ""},
		"top team-a/web":                  {[]string{"node-2"}, nil, ""},
		"top":                             {nil, nil, "name one by --node, or one application"},
		"top web dns":                     {nil, nil, "name one by --node, or one application"},
		"top none -n team-a":              {nil, nil, "none"},
		"top --node node-1 -o yaml":       {[]string{"\n  program: count\n"}, nil, ""},
		"inventory --node node-1 -o wide": {[]string{"foreign", "skep team-a/web", "PINS"}, nil, ""},
		"inventory --node node-1 -o yaml": {[]string{"leftOut: []\nprograms:\n- ", "\n  name: foreign\n"}, nil, ""},
		"inventory --node empty -o json":  {[]string{"\"programs\": []", "\"leftOut\": []"}, []string{"null"}, ""},
		"chain --node empty -o yaml":      {[]string{"[]\n"}, nil, ""},
	} {
		var out, aside strings.Builder
		root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
		root.AddCommand(NewTop(), NewInventory(), NewChain())
		root.SetOut(&out)
		root.SetErr(&aside)
		root.SetArgs(append(strings.Fields(args), "--kubeconfig", config))
		err := root.ExecuteContext(t.Context())
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, want %q", args, err, c.err)
		}
		for _, want := range c.has {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s lacks %s: %s", args, want, &out)
			}
		}
		for _, not := range c.lacks {
			if strings.Contains(out.String(), not) {
				t.Errorf("%s has %s: %s", args, not, &out)
			}
		}
	}
}

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
		"-o wide":              {"", "", `unknown output "wide"`},
		"--once -o yaml":       {"  program: count\n", "", ""},
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
