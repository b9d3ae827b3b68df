package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/reconcile/others"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/harness/recommended"
	"github.com/skep-dev/skep/test/harness/terminal"
)

// answering is a skep run that answers with a status and interfaces, and returns its state folder.
func answering(t *testing.T, status *atomic.Pointer[nodemode.Status], interfaces ...view.Interface) (state string) {
	t.Helper()
	state = t.TempDir()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "unix", filepath.Join(state, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status.Load()) })
	mux.HandleFunc("/v1/node", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(view.NodeView{Interfaces: interfaces})
	})
	mux.HandleFunc("POST /v1/confirm", func(w http.ResponseWriter, r *http.Request) {
		if is := status.Load().UnloadProtection; is != nil && is.Revision == r.FormValue("revision") {
			_ = json.NewEncoder(w).Encode(is)
			return
		}
		http.Error(w, "unload protection does not hold that revision", http.StatusConflict)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return state
}

// running is a status with applications of the cluster and of namespaces, and one whose definition
// cannot be read.
func running() nodemode.Status {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Succeeded"}
	app := func(name string) nodemode.Application {
		return nodemode.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: name, Image: "r.example.com/" + name + ":v1",
			Digest: "sha256:" + strings.Repeat("ab", 32), Signers: []string{"release-of-the-team", "security"}, Conditions: []metav1.Condition{ready}}
	}
	in := func(namespace, name string) nodemode.Application {
		a := app(name)
		a.Kind, a.Namespace = v1alpha1.KindBpfApplication, namespace
		return a
	}
	return nodemode.Status{
		Source:       nodemode.SourceStatus{Address: "./defs", Revision: strings.Repeat("cd", 20)},
		Applications: []nodemode.Application{app("one"), app("two"), in("team-a", "five"), in("team-a", "six"), in("team-b", "six")},
		Problems: []schemas.Problem{{Source: schemas.Position{File: "three.yaml", Line: 4}, Message: "it is wrong",
			Definition: &v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "three"}}},
		Synced: time.Now(),
	}
}

// ask runs a command and returns what it printed.
func ask(ctx context.Context, out *locked, args ...string) error {
	root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(NewStatus(), NewExplain(), NewChain(), NewConfirm())
	root.SetOut(out)
	root.SetErr(out)
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// locked is a buffer that is written and read at once.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestHostIsAskedInEveryFormat(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(running()))
	state := answering(t, &status)
	for _, test := range []struct {
		args       []string
		has, lacks []string
	}{
		{
			[]string{"status"}, []string{"source  ./defs " + strings.Repeat("cd", 20), "sha256:abab", "release-of-the-team, security", "three.yaml:4"},
			[]string{"IMAGE"},
		},
		{[]string{"status", "two"}, []string{"two "}, []string{"one ", "three"}},
		{[]string{"status", "three"}, []string{"three.yaml:4"}, []string{"one "}},
		{[]string{"status", "-o", "wide"}, []string{"IMAGE", "r.example.com/one:v1"}, nil},
		{[]string{"status", "-o", "json"}, []string{`"name": "one"`}, nil},
		{[]string{"status", "-o", "yaml"}, []string{"  name: one\n"}, nil},
		{[]string{"explain", "one"}, []string{"ClusterBpfApplication one\n"}, nil},
		{[]string{"explain", "one", "-o", "json"}, []string{`"name": "one"`, `"image": "r.example.com/one:v1"`}, []string{"two"}},
		{[]string{"explain", "one", "-o", "yaml"}, []string{"\nname: one\n"}, []string{"two"}},
		{[]string{"explain", "five"}, []string{"BpfApplication team-a/five\n"}, nil},
		{[]string{"explain", "team-b/six"}, []string{"BpfApplication team-b/six\n"}, nil},
		{[]string{"explain", "three"}, []string{"its definition cannot be read", "it is wrong"}, nil},
		{[]string{"explain", "three", "-o", "json"}, []string{`"name": "three"`, `"message": "it is wrong"`, `"conditions": []`}, nil},
	} {
		var out locked
		if err := ask(t.Context(), &out, append(test.args, "--state", state)...); err != nil {
			t.Errorf("%v: %v", test.args, err)
		}
		for _, want := range test.has {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v says %q, want %q in it", test.args, out.String(), want)
			}
		}
		for _, not := range test.lacks {
			if strings.Contains(out.String(), not) {
				t.Errorf("%v says %q, want no %q in it", test.args, out.String(), not)
			}
		}
	}
}

func TestWhatDoesNotExistIsSaidWithExitCode1(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(running()))
	state := answering(t, &status)
	for _, args := range [][]string{{"status", "nothing"}, {"explain", "nothing"}, {"chain", "nothing"}} {
		var out locked
		code, line := exit.Of(ask(t.Context(), &out, append(args, "--state", state)...), 0)
		if code != exit.Denied || !strings.Contains(line, "nothing: ") || strings.Contains(out.String(), "one") {
			t.Errorf("%v: exit code %d, it says %q and %q; want 1 and what does not exist", args, code, line, out.String())
		}
	}
}

// TestUnloadProtectionIsConfirmedByTheCommandThatStatusPrints runs what it printed.
func TestUnloadProtectionIsConfirmedByTheCommandThatStatusPrints(t *testing.T) {
	var is atomic.Pointer[nodemode.Status]
	held := running()
	held.UnloadProtection = &nodemode.UnloadProtection{Revision: "source:12", Reason: "the source was a, and is b", Applications: []string{"one"}}
	is.Store(&held)
	state, out := answering(t, &is), new(locked)
	if err := ask(t.Context(), out, "status", "--state", state); err != nil {
		t.Fatal(err)
	}
	_, command, found := strings.Cut(out.String(), "to unload: skep ")
	if !found {
		t.Fatalf("status names no command: %s", out)
	}
	command, _, _ = strings.Cut(command, "\n")
	for _, part := range []string{"skep confirm", "skep confirm --state"} {
		if !recommended.Has("skep "+command, part) {
			t.Errorf("%s is no %s", command, part)
		}
	}
	if err := ask(t.Context(), out, strings.Fields(command)...); err != nil || !strings.Contains(out.String(), "confirmed: the source was a") {
		t.Errorf("skep %s: %v, %s", command, err, out)
	}
}

func TestANameOfSeveralNamespacesIsAskedBack(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(running()))
	state := answering(t, &status)
	for name, want := range map[string]string{
		"six":  "several applications have this name; choose one as NAMESPACE/NAME: team-a/six, team-b/six",
		"none": "there is no such application; skep status lists all, those of namespaces as NAMESPACE/NAME",
	} {
		if err := ask(t.Context(), new(locked), "explain", name, "--state", state); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

func TestChainsAreAskedForAsTheyArePrinted(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(nodemode.Status{}))
	runs := uint64(9)
	first := view.Member{Application: &v1alpha1.Identity{Name: "guard"}, Program: "drop_some", Runs: &runs, Verdicts: map[string]uint64{"Drop": 2, "Pass": 7},
		SwitchedOff: true}
	on := func(text string, members ...view.Member) view.Interface {
		return view.Interface{Target: view.Target{Text: text, Interface: "eth0"}, Hook: "xdp", Members: members}
	}
	state := answering(t, &status, on("eth0", first), on("eth0 in pod team-a/web"), on("eth0 in net:[8]"))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"eth0", "eth0 in pod team-a/web", "eth0 in net:[8]"}},
		{[]string{"eth0"}, []string{"eth0", "eth0 in pod team-a/web", "eth0 in net:[8]"}},
		{[]string{"eth0 in pod team-a/web"}, []string{"eth0 in pod team-a/web"}},
		{[]string{"eth0", "in", "pod", "team-a/web"}, []string{"eth0 in pod team-a/web"}},
		{[]string{"eth0 in net:[8]"}, []string{"eth0 in net:[8]"}},
	} {
		var out locked
		if err := ask(t.Context(), &out, append(append([]string{"chain"}, c.args...), "--state", state)...); err != nil {
			t.Fatalf("%q: %v", c.args, err)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			if on, _, ok := strings.Cut(line, "  program "); ok {
				got = append(got, on)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%q shows %q, want %q", c.args, got, c.want)
		}
	}
	for format, want := range map[string]string{"text": "9 (off)  Drop 2, Pass 7", "json": `"Drop": 2`, "yaml": "      Drop: 2\n"} {
		var out locked
		if err := ask(t.Context(), &out, "chain", "eth0", "-o", format, "--state", state); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v, %s; want %q in it", format, err, out.String(), want)
		}
	}
}

// TestNoChainIsSaid: beside the answer, which is empty.
func TestNoChainIsSaid(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(nodemode.Status{}))
	state := answering(t, &status)
	root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(NewChain())
	for format, want := range map[string]string{"text": "", "json": "[]\n"} {
		var out, aside bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&aside)
		root.SetArgs([]string{"chain", "-o", format, "--state", state})
		if err := root.ExecuteContext(t.Context()); err != nil || out.String() != want {
			t.Errorf("%s: %v, %q; want %q", format, err, &out, want)
		}
		if said := strings.Contains(aside.String(), "\nNo chains found"); said != (format == "text") {
			t.Errorf("%s: it says %q beside", format, &aside)
		}
	}
}

func TestStatusIsWatched(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(running()))
	state := answering(t, &status)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out locked
	done := make(chan error, 1)
	go func() { done <- ask(ctx, &out, "status", "-w", "--state", state) }()
	until := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), what); <-time.After(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("it says %q, want %q in it", out.String(), what)
			}
		}
	}
	until("two ")
	// A later look at the same is no news.
	later := running()
	status.Store(&later)
	<-time.After(2 * watchInterval)
	if n := strings.Count(out.String(), "APPLICATION"); n != 1 {
		t.Errorf("it printed %d times: %q", n, out.String())
	}
	changed := running()
	changed.Applications[1].Name = "four"
	status.Store(&changed)
	until("four ")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	if n := strings.Count(out.String(), "APPLICATION"); n != 2 {
		t.Errorf("it printed %d times: %q", n, out.String())
	}
}

// TestProgramsOfOthersAreShownInTheirOrder also those whose names are no names.
func TestProgramsOfOthersAreShownInTheirOrder(t *testing.T) {
	var status atomic.Pointer[nodemode.Status]
	status.Store(new(nodemode.Status{}))
	notes := agent.LinkStatus{Hook: "tcx/ingress", Target: "eth0", State: agent.Attached,
		Behind: []others.Program{{ID: 41, Name: "cil_from_netdev"}, {ID: 42}}}.Notes()
	on := func(hook, fault string, members ...view.Member) view.Interface {
		return view.Interface{Target: view.Target{Text: "eth0", Interface: "eth0"}, Hook: hook, Error: fault, Members: members}
	}
	state := answering(t, &status,
		on("xdp", "", view.Member{Program: "cil_xdp_entry", ProgramID: 40}),
		on("tcx/ingress", "", view.Member{Program: "cil_from_netdev", ProgramID: 41}, view.Member{ProgramID: 42},
			view.Member{Application: &v1alpha1.Identity{Namespace: "net", Name: "count"}, Program: "count", Priority: 500, ProgramID: 50, Notes: notes}),
		on("tc/egress", "the list is cut", view.Member{Preference: 1},
			view.Member{Application: &v1alpha1.Identity{Name: "shape"}, Program: "shape", Priority: 1, ProgramID: 51, Preference: 2030}))
	var out locked
	if err := ask(t.Context(), &out, "chain", "--state", state); err != nil {
		t.Fatal(err)
	}
	want := thisHost() + `
eth0  xdp
#  PRIORITY  APPLICATION  PROGRAM        ID
1  -         unmanaged    cil_xdp_entry  40
eth0  tcx/ingress
#  PRIORITY  APPLICATION  PROGRAM          ID
1  -         unmanaged    cil_from_netdev  41
2  -         unmanaged    -                42
3  500       net/count    count            50
net/count count: behind cil_from_netdev (id 41) and a program (id 42), each of which can end the chain
eth0  tc/egress
#  PRIORITY  APPLICATION  PROGRAM  ID  PREF
1  -         unmanaged    -        0   1
2  1         shape        shape    51  2030
not all is known: the list is cut
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
}

// TestAClusterIsAskedLessOftenThanAHost: each look lists all applications.
func TestAClusterIsAskedLessOftenThanAHost(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(`{clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}],
		current-context: c}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]time.Duration{"--host": watchInterval, "--kubeconfig=" + config: clusterInterval} {
		var f where.Flags
		cmd := &cobra.Command{}
		f.Register(cmd)
		if err := cmd.ParseFlags([]string{flag}); err != nil {
			t.Fatal(err)
		}
		if from, err := askStatus(cmd, &f, "text", nil); err != nil || from.every != want || watchInterval >= clusterInterval {
			t.Errorf("%s: every %s, %v", flag, from.every, err)
		}
	}
}

// TestATerminalIsRedrawn between two answers for people; elsewhere and for programs one follows the other.
func TestATerminalIsRedrawn(t *testing.T) {
	screen := terminal.New(t, 80, 3)
	for first, want := range map[bool]string{true: "\n\n\n\x1b[H\x1b[Jwatched since ", false: "\x1b[H\x1b[Jlast change "} {
		if got := between(screen.File, "text", first); !strings.HasPrefix(got, want) {
			t.Errorf("a terminal gets %q, want %q", got, want)
		}
		if got := between(screen.File, "json", first); got != "" {
			t.Errorf("JSON on a terminal gets %q", got)
		}
	}
	for output, want := range map[string]string{"text": "\n", "wide": "\n", "yaml": "---\n", "json": ""} {
		if got := between(new(bytes.Buffer), output, false); got != want {
			t.Errorf("-o %s in a pipe gets %q between two, want %q", output, got, want)
		}
	}
}
