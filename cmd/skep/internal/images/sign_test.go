package images

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing/sign"
)

// TestMain makes the test binary the child processes of the command too.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	os.Exit(m.Run())
}

// TestSigningAndVerifyingEnd has a registry that answers nothing.
func TestSigningAndVerifyingEnd(t *testing.T) {
	registry := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer registry.Close()
	private, public, err := sign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := display.YAML(Signer("alice", string(public)))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	key, signer := filepath.Join(dir, "skep.key"), filepath.Join(dir, "skep.signer.yaml")
	for name, data := range map[string][]byte{key: private, signer: doc} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ref := strings.TrimPrefix(registry.URL, "http://") + "/bpf/counter:v1"
	for what, c := range map[string]struct {
		make func(time.Duration) *cobra.Command
		args []string
	}{
		"signing":   {NewSign, []string{"--key", key}},
		"verifying": {NewVerify, []string{"--signers", signer}},
	} {
		cmd := c.make(100 * time.Millisecond)
		cmd.SetArgs(append(c.args, "--cache", t.TempDir(), ref))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), what+" "+ref+" took longer than 100ms") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
