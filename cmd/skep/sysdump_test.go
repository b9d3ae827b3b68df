package main

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/need"
)

// The definitions of a host, with values that are to be in no archive: 4711471147, 1717171717 and what has SECRET in it.
const (
	guarded = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: kept-app, annotations: {example.com/a: SECRET-annotation}}
spec:
  bytecode: {image: "oci:img:v1"}
  variables: {only_pid: 1717171717}
  programs: [{name: tracepoint_count}]
`
	misfit = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: kept-misfit}
spec:
  bytecode: {image: "oci:img:v1"}
  variables: {only_pid: "SECRET-variable"}
  maps: {counts: {contents: [{key: "SECRET-key", value: 4711471147}]}}
  programs: [{name: tracepoint_count}]
`
	invalid = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: kept-invalid}
spec:
  bytecode: {image: "https://user:SECRET-image@127.0.0.1:1/x:v1"}
  variables: "SECRET-variables"
  maps: {counts: "SECRET-map", other: {contents: "SECRET-contents"}}
  programs: [{name: tracepoint_count}]
`
	broken = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: kept-broken}
spec: {variables: {only_pid: SECRET-broken}
`
)

// TestAnArchiveOfAHostHasNoSecrets while skep run runs, and after it ended.
func TestAnArchiveOfAHostHasNoSecrets(t *testing.T) {
	need.Kernel(t)
	dir := t.TempDir()
	pins := "/sys/fs/bpf/skep-dump-" + strings.ToLower(rand.Text())
	t.Cleanup(func() { _ = os.RemoveAll(pins) })
	skep := func(args ...string) string {
		t.Helper()
		cmd, stderr := skepProcess(t, dir, args...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("skep %q: %v: %s", args, err, stderr)
		}
		return string(out)
	}
	for name, body := range map[string]string{"defs/a.yaml": guarded, "defs/b.yaml": misfit, "defs/c.yaml": invalid, "defs/d.yaml": broken,
		"o.o": string(programs.Object("tracepoint_count"))} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("COSIGN_PASSWORD", "")
	skep("image", "build", "-f", "o.o", "oci:img:v1")
	skep("key", "generate", "--output-key-prefix", "team")
	skep("sign", "--key", "team.key", "oci:img:v1")
	run, stderr := skepProcess(t, dir, "run", "--source", "defs", "--signers", "team.signer.yaml", "--state", "state", "--bpffs", pins)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "skep run reads its definitions", time.Minute, func() bool {
		cmd, _ := skepProcess(t, dir, "status", "--state", "state")
		out, err := cmd.Output()
		return err == nil && strings.Contains(string(out), "kept-app  ") && strings.Contains(string(out), "kept-misfit")
	})
	dump := func(name string) (whole string) {
		t.Helper()
		skep("sysdump", "--state", "state", "-o", name)
		if out, err := exec.CommandContext(t.Context(), "tar", "xzf", filepath.Join(dir, name), "-C", dir, "--one-top-level="+name+".d", "--strip-components=1").
			CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, file := range []string{"README.txt", "MANIFEST.txt", "versions.json", "status.json", "node.json",
			"inventory.json", "kernel.json", "mounts.json", "process.json"} {
			body, err := os.ReadFile(filepath.Join(dir, name+".d", file))
			if err != nil && file != "process.json" {
				t.Error(err)
			}
			whole += string(body)
		}
		for _, secret := range []string{"SECRET", "4711471147", "1717171717"} {
			if at := strings.Index(whole, secret); at >= 0 {
				t.Errorf("%s has %s: …%s…", name, secret, whole[max(0, at-200):at+40])
			}
		}
		for _, want := range []string{"kept-app", "kept-misfit", "kept-invalid", "/proc/sys/net/core/bpf_jit_limit",
			`"type": "bpf"`, "variables.only_pid", "tracepoint_count"} {
			if !strings.Contains(whole, want) {
				t.Errorf("%s lacks %q:\n%.3000s", name, want, whole)
			}
		}
		return whole
	}
	if whole := dump("live"); !strings.Contains(whole, "CapEff") || strings.Contains(whole, "NOT READ") {
		t.Errorf("it lacks the capabilities of skep run, or something was not read:\n%s", whole[:2000])
	}
	if err := run.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, run.Wait()); code != 0 {
		t.Fatalf("skep run: exit code %d: %s", code, stderr)
	}
	left := filepath.Join(dir, "state", nodemode.LeftName)
	body, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	quoting := strings.Replace(string(body), `"source":{`, `"source":{"error":"the verifier says R1=1717171717 and R2=0x6659f605",`, 1)
	if err := os.WriteFile(left, []byte(quoting), 0o600); err != nil {
		t.Fatal(err)
	}
	if whole := dump("left"); !strings.Contains(whole, "the verifier says R1=(left out) and R2=(left out)") ||
		!strings.Contains(whole, "process.json  NOT READ: find the process of skep run: ") ||
		!strings.Contains(whole, nodemode.ReasonSucceeded) {
		t.Errorf("it lacks what skep run left:\n%s", whole)
	}
}
