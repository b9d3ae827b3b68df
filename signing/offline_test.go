package signing_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// withoutNetwork is set in the child of TestVerifyWithoutAnyNetwork.
const withoutNetwork = "SKEP_TEST_WITHOUT_NETWORK"

// TestVerifyWithoutAnyNetwork runs the tests of verification again in a network
// namespace where not even loopback is up, with an empty home: nothing is asked
// of anybody, no trusted root is fetched and none is kept.
func TestVerifyWithoutAnyNetwork(t *testing.T) {
	if os.Getenv(withoutNetwork) != "" {
		if _, err := net.Dial("tcp", "127.0.0.1:9"); !errors.Is(err, syscall.ENETUNREACH) {
			t.Fatalf("there is a network: %v", err)
		}
		return
	}
	home := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0],
		"-test.v", "-test.run=^(TestVerifyWithoutAnyNetwork|TestKeyless|TestKeySignatures|TestKeylessAnnotations)$")
	child.Env = []string{withoutNetwork + "=1", "HOME=" + home, "XDG_CACHE_HOME=" + home, "TMPDIR=" + t.TempDir()}
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if os.Geteuid() != 0 {
		child.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
	}
	out, err := child.CombinedOutput()
	// The second is what a limit of 0 says (user_namespaces(7)).
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("SKIPPED: needs a network namespace, and this machine forbids them: run the tests in a virtual machine or a privileged container")
	}
	if err != nil {
		t.Fatalf("without network: %v\n%s", err, out)
	}
	for _, name := range []string{"TestVerifyWithoutAnyNetwork", "TestKeyless", "TestKeySignatures", "TestKeylessAnnotations"} {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}
	left, err := os.ReadDir(home)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the home: %v: %v", left, err)
	}
}
