package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/schemas"
)

// answering is a skep run that answers with a status, and returns its state folder.
func answering(t *testing.T, status *atomic.Pointer[nodemode.Status]) (state string) {
	t.Helper()
	state = t.TempDir()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "unix", filepath.Join(state, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/status", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status.Load()) })
	mux.HandleFunc("/v1/chains", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode([]agent.ChainStatus{}) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return state
}

// running is a status with two applications, and a third whose definition cannot be read.
func running() nodemode.Status {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Succeeded"}
	app := func(name string) nodemode.Application {
		return nodemode.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: name, Image: "r.example.com/" + name + ":v1",
			Digest: "sha256:" + strings.Repeat("ab", 32), Signers: []string{"release-of-the-team", "security"}, Conditions: []metav1.Condition{ready}}
	}
	return nodemode.Status{
		Source:       nodemode.SourceStatus{Address: "./defs", Revision: strings.Repeat("cd", 20)},
		Applications: []nodemode.Application{app("one"), app("two")},
		Problems: []schemas.Problem{{Source: schemas.Position{File: "three.yaml", Line: 4}, Message: "it is wrong",
			Definition: &v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "three"}}},
		Synced: time.Now(),
	}
}

// ask runs a command and returns what it printed.
func ask(ctx context.Context, out *locked, args ...string) error {
	root := &cobra.Command{SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(NewStatus(), NewExplain(), NewChain())
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
		{[]string{"status"}, []string{"source  ./defs " + strings.Repeat("cd", 20), "sha256:abab", "release-of-the-team, security", "three.yaml:4"}, []string{"IMAGE"}},
		{[]string{"status", "two"}, []string{"two "}, []string{"one ", "three"}},
		{[]string{"status", "three"}, []string{"three.yaml:4"}, []string{"one "}},
		{[]string{"status", "-o", "wide"}, []string{"IMAGE", "r.example.com/one:v1"}, nil},
		{[]string{"status", "-o", "json"}, []string{`"name": "one"`}, nil},
		{[]string{"status", "-o", "yaml"}, []string{"  name: one\n"}, nil},
		{[]string{"explain", "one"}, []string{"ClusterBpfApplication one\n"}, nil},
		{[]string{"explain", "one", "-o", "json"}, []string{`"name": "one"`, `"image": "r.example.com/one:v1"`}, []string{"two"}},
		{[]string{"explain", "one", "-o", "yaml"}, []string{"\nname: one\n"}, []string{"two"}},
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
		if code != exit.Denied || !strings.Contains(line, "nothing: ") || out.String() != "" {
			t.Errorf("%v: exit code %d, it says %q and %q; want 1 and what does not exist", args, code, line, out.String())
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

func TestNoCellIsCutInsideAWord(t *testing.T) {
	a := running().Applications[0]
	a.Name = strings.Repeat("n", 60)
	if row := statusRow(a, false); row[0] != a.Name || row[2] != "abababababab" || row[3] != "release-of-the-team, +1" {
		t.Errorf("on a terminal: %q", row)
	}
}
