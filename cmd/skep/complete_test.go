package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
)

// completed is what a shell is given, with cobra's directive last.
func completed(t *testing.T, args ...string) []string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot(streams{out: &out, err: &bytes.Buffer{}})
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs(append([]string{"__complete"}, args...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out.String())
}

// apiServer lists names of objects by path, and returns a kubeconfig whose context is in namespace team-a.
func apiServer(t *testing.T, lists map[string][]string) (config string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		names, may := lists[r.URL.Path]
		if !may {
			w.WriteHeader(http.StatusForbidden)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden})
			return
		}
		all := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		for _, name := range names {
			one := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}}
			one.Namespace, one.Name, _ = strings.Cut(name, "/")
			if one.Name == "" {
				one.Namespace, one.Name = "", name
			}
			all.Items = append(all.Items, one)
		}
		_ = json.NewEncoder(w).Encode(all)
	}))
	t.Cleanup(s.Close)
	config = filepath.Join(t.TempDir(), "config")
	body := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: %q}}]
users: [{name: ann, user: {}}]
contexts: [{name: a, context: {cluster: a, user: ann, namespace: team-a}}]
`, s.URL)
	if err := os.WriteFile(config, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

func TestShellsCompleteWhatAClusterHas(t *testing.T) {
	const group = "/apis/skep.dev/v1alpha1/"
	all := apiServer(t, map[string][]string{
		group + "bpfapplications": {"team-a/web", "team-b/dns"}, group + "namespaces/team-a/bpfapplications": {"team-a/web"},
		group + "clusterbpfapplications": {"audit"}, group + "bpfnodes": {"node-1", "node-2"}, "/api/v1/namespaces": {"team-a", "team-b"},
	})
	own := apiServer(t, map[string][]string{group + "namespaces/team-a/bpfapplications": {"team-a/web"}})
	nothing := apiServer(t, nil)
	for sentence, c := range map[string]struct {
		args []string
		want string
	}{
		"explain":                        {[]string{"explain", "--kubeconfig", all, ""}, "team-a/web team-b/dns audit :4"},
		"explain takes one":              {[]string{"explain", "--kubeconfig", all, "audit", ""}, ":4"},
		"status takes many, each once":   {[]string{"status", "--kubeconfig", all, "audit", ""}, "team-a/web team-b/dns :4"},
		"history":                        {[]string{"history", "--kubeconfig", all, ""}, "team-a/web team-b/dns audit :4"},
		"reconcile, in a namespace":      {[]string{"reconcile", "--kubeconfig", all, "-n", "team-a", ""}, "team-a/web :4"},
		"history, in all namespaces":     {[]string{"history", "--kubeconfig", all, "-n", "team-a", "-A", ""}, "team-a/web team-b/dns audit :4"},
		"top":                            {[]string{"top", "--kubeconfig", all, ""}, "team-a/web team-b/dns audit :4"},
		"rollout status":                 {[]string{"rollout", "status", "--kubeconfig", all, ""}, "bpfapp/web cbpfapp/audit :4"},
		"rollout undo":                   {[]string{"rollout", "undo", "--kubeconfig", all, ""}, "bpfapp/web cbpfapp/audit :4"},
		"a node":                         {[]string{"chain", "--kubeconfig", all, "--node", ""}, "node-1 node-2 :4"},
		"maps of a node":                 {[]string{"map", "dump", "--kubeconfig", all, "--node", "node-1", ""}, "team-a/web team-b/dns audit :4"},
		"a node with maps":               {[]string{"map", "get", "--kubeconfig", all, "--node", ""}, "node-1 node-2 :4"},
		"a namespace":                    {[]string{"status", "--kubeconfig", all, "-n", ""}, "team-a team-b :4"},
		"what a tenant may list":         {[]string{"explain", "--kubeconfig", own, ""}, "team-a/web :4"},
		"a profile, or a folder":         {[]string{"vet", "--policy", ""}, "baseline restricted :0"},
		"what a policy may replace":      {[]string{"run", "--replaces", ""}, "baseline :4"},
		"an interface is no file":        {[]string{"chain", "--kubeconfig", all, "--node", "node-1", ""}, ":4"},
		"a caller who may list nothing":  {[]string{"explain", "--kubeconfig", nothing, ""}, ":4"},
		"no rights to nodes":             {[]string{"explain", "--kubeconfig", own, "--node", ""}, ":1"},
		"no kubeconfig":                  {[]string{"explain", "--kubeconfig", "nowhere", ""}, ":4"},
		"a host and a cluster at a time": {[]string{"explain", "--host", "--kubeconfig", all, ""}, ":4"},
	} {
		t.Run(sentence, func(t *testing.T) {
			if got := strings.Join(completed(t, c.args...), " "); got != c.want {
				t.Errorf("a shell is given %q, want %q", got, c.want)
			}
		})
	}
}

// TestAPluginForCredentialsHoldsNoShell: kubectl's plug-ins know no deadline.
func TestAPluginForCredentialsHoldsNoShell(t *testing.T) {
	config := apiServer(t, nil)
	body, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	// It ends when its file is gone, and gets no credentials.
	file := filepath.Join(t.TempDir(), "hangs")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	plugin := fmt.Sprintf("user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: [-c, %q]}}",
		"while [ -e "+file+" ]; do sleep 0.1; done")
	text := strings.NewReplacer("user: {}", plugin, "http://", "https://").Replace(string(body))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"explain", "--kubeconfig", config, ""}, {"chain", "--kubeconfig", config, "--node", ""}} {
		got := make(chan []string, 1)
		go func() { got <- completed(t, args...) }()
		// A completion takes three seconds at most, and this waits for a machine that is slow.
		select {
		case names := <-got:
			if len(names) != 1 {
				t.Errorf("%q: a shell is given %q", args, names)
			}
		case <-time.After(time.Minute):
			t.Errorf("%q: a shell waits for the plug-in", args)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func TestShellsCompleteWhatAHostRuns(t *testing.T) {
	state := t.TempDir()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(state, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/node" {
			_ = json.NewEncoder(w).Encode(view.NodeView{Interfaces: []view.Interface{
				{Target: view.Target{Interface: "eth0"}, Hook: "xdp"}, {Target: view.Target{Interface: "eth0"}, Hook: "tcx/ingress"},
				{Target: view.Target{Interface: "lo"}}}})
			return
		}
		_ = json.NewEncoder(w).Encode(nodemode.Status{Applications: []nodemode.Application{
			{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "web"}, {Kind: v1alpha1.KindClusterBpfApplication, Name: "audit"}}})
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	for _, command := range []string{"status", "explain", "history", "reconcile", "top"} {
		if got := completed(t, command, "--state", state, ""); !slices.Equal(got, []string{"team-a/web", "audit", ":4"}) {
			t.Errorf("%s: a shell is given %q", command, got)
		}
		if got := completed(t, command, "--state", t.TempDir(), ""); !slices.Equal(got, []string{":4"}) {
			t.Errorf("%s where no skep run is: a shell is given %q", command, got)
		}
	}
	if got := completed(t, "chain", "--state", state, ""); !slices.Equal(got, []string{"eth0", "lo", ":4"}) {
		t.Errorf("chain: a shell is given %q", got)
	}
}
