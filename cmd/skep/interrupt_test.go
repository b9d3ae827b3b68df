package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/harness/need"
)

// skepProcess is this binary as the command skep, in a folder of its own.
func skepProcess(t *testing.T, dir string, args ...string) (cmd *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cmd = exec.CommandContext(ctx, self, args...)
	cmd.Args[0], cmd.Dir, cmd.Env = "skep", dir, append(os.Environ(), "HOME="+dir)
	stderr = &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// exitCode is how a process ended.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit == nil {
		return 0
	}
	return exit.ExitCode()
}

// hangingRegistry never answers; asked gets a value for each request.
func hangingRegistry(t *testing.T) (host string, asked chan struct{}) {
	t.Helper()
	asked = make(chan struct{}, 64)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), asked
}

func TestInterruptIsOneLineAndExitCode130(t *testing.T) {
	host, asked := hangingRegistry(t)
	app := "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: app}\n" +
		"spec: {bytecode: {image: \"" + host + "/x:v1\"}, programs: [{name: f}]}\n"
	_, public, err := sign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signers, err := display.YAML(images.Signer("s", string(public)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "defs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"defs/app.yaml": []byte(app), "s.yaml": signers} {
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"vet", "defs", "--cache", "cache"},
		{"verify", "--signers", "s.yaml", host + "/x:v1", "--cache", "cache"},
		{"policy", "input", "defs", "--cache", "cache"},
		{"run", "--source", "defs", "--state", "state", "--dry-run", "--allowed-registry", host},
	} {
		t.Run(args[0], func(t *testing.T) {
			cmd, stderr := skepProcess(t, dir, args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-asked:
			case <-time.After(30 * time.Second):
				t.Errorf("it did not ask the registry")
			}
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
			code := exitCode(t, cmd.Wait())
			lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; code != 130 || last != "skep: interrupted" || len(lines) > 1 && args[0] != "run" {
				t.Errorf("exit code %d, it says %q; want 130 and one line", code, stderr)
			}
		})
	}
}

// TestInterruptEndsReadingStandardInput: a read from a terminal has no end of its own.
func TestInterruptEndsReadingStandardInput(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = from.Close(); _ = to.Close() })
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := (&interruptible{ctx: ctx, from: from}).Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read: %v, want the context's end", err)
	}
}

// TestRunSaysWhatStaysLoaded: whoever stops it may take its programs for gone.
func TestRunSaysWhatStaysLoaded(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	pins := "/sys/fs/bpf/skep-stop-" + strings.ToLower(rand.Text())
	t.Cleanup(func() { _ = os.RemoveAll(pins) })
	if err := os.Mkdir(filepath.Join(dir, "defs"), 0o700); err != nil {
		t.Fatal(err)
	}
	for by, want := range map[syscall.Signal]struct {
		code int
		line string
	}{
		syscall.SIGINT:  {130, "skep: interrupted; no program is loaded"},
		syscall.SIGTERM: {0, "skep: stopped; no program is loaded"},
	} {
		cmd, stderr := skepProcess(t, dir, "run", "--source", "defs", "--state", "state", "--bpffs", pins)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			if _, err := os.Stat(filepath.Join(dir, "state", nodemode.SocketName)); err == nil {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
		if err := cmd.Process.Signal(by); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(t, cmd.Wait()); code != want.code || !strings.HasSuffix(stderr.String(), "\n"+want.line+"\n") {
			t.Errorf("%v: exit code %d, it says %q; want %d and %q", by, code, stderr, want.code, want.line)
		}
	}
}

func TestLeavesCountsWhatIsLoaded(t *testing.T) {
	s := nodemode.Status{Applications: []nodemode.Application{
		{Programs: []agent.ProgramStatus{{ID: 3}, {ID: 4}}},
		{Programs: []agent.ProgramStatus{{ID: 0}}},
	}}
	if got, want := leaves(s).Error(), "2 programs of 1 application stay loaded and attached"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
