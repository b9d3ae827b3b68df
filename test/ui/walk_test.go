package ui_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/browser"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/need"
)

// fiveLines are README's, which sign an example, allow it and attach it to lo.
func fiveLines(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile(filepath.Join(module.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "Five lines as root")
	_, block, _ = strings.Cut(block, "\n\n")
	block, _, _ = strings.Cut(block, "\n\n")
	var lines []string
	for line := range strings.Lines(block) {
		lines = append(lines, strings.TrimSpace(line))
	}
	if len(lines) != 5 || !strings.HasPrefix(lines[4], "skep run --once") {
		t.Fatalf("README's five lines are %q", lines)
	}
	return lines
}

// TestANewUserSeesPacketsCounted types README's five lines and the two of docs/ui.md, and looks at the page.
func TestANewUserSeesPacketsCounted(t *testing.T) {
	need.Kernel(t)
	need.Program(t, "chromium", "chromium")
	home, bin, state := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "state")
	if err := command.Place(t.Context(), bin, "./cmd/skep"); err != nil {
		t.Fatal(err)
	}
	// Copies, since the user's folders are the machine's.
	if err := os.CopyFS(filepath.Join(home, "examples/xdp-counter"), os.DirFS(filepath.Join(module.Root(), "examples/xdp-counter"))); err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("/srv/bpf", filepath.Join(home, "bpf"), "skep run ", "skep run --maps-dir '' --state "+state+" ")
	definition := filepath.Join(home, "examples/xdp-counter/app.cue")
	body, err := os.ReadFile(definition)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(definition, []byte(here.Replace(string(body))), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "HOME="+home, "PATH="+bin+":"+os.Getenv("PATH"), "COSIGN_PASSWORD=", "XDG_CACHE_HOME=")
	lines := fiveLines(t)
	shell := exec.Command("bash", "-ec", here.Replace(strings.Join(lines, "\n")))
	shell.Dir, shell.Env = home, env
	var said bytes.Buffer
	shell.Stdout, shell.Stderr = &said, &said
	if err := child.Run(shell); err != nil {
		t.Fatalf("README's five lines: %v\n%s", err, said.String())
	}
	// The last line again, without --once.
	run := exec.Command("bash", "-ec", "exec "+here.Replace(strings.Replace(lines[4], "--once ", "", 1)))
	run.Dir, run.Env = filepath.Join(home, "examples/xdp-counter"), env
	var log bytes.Buffer
	run.Stdout, run.Stderr = &log, &log
	if err := child.Start(run); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = run.Process.Signal(syscall.SIGTERM)
		_ = run.Wait()
		unload := exec.Command(filepath.Join(bin, "skep"), "unload", "--all", "--state", state)
		unload.Env = env
		if out, err := unload.CombinedOutput(); err != nil {
			t.Errorf("unload: %v: %s\n%s", err, out, log.String())
		}
	})
	await.True(t, "skep run answers", browser.Patience, func() bool {
		_, err := os.Stat(filepath.Join(state, nodemode.SocketName))
		return err == nil
	})
	p := browser.Open(browser.Start(t), t, browser.UI(t, "--state", state))
	p.Shows(".detail h1", "xdp-counter")
	p.Shows(".pipeline", "by author")
	p.Shot("walk-application")
	p.View("#/nodes")
	p.Shows("li.member", "count_packets")
	// The page's own requests are packets of lo.
	p.Holds("packets are counted", `/[1-9].*run/.test(document.querySelector('li.member .runs')?.textContent || '')`)
	p.Shot("walk-node")
	p.View("#/cost")
	p.Shows("table", "count_packets")
	p.Shot("walk-cost")
}
