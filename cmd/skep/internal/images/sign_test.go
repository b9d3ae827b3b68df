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
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain makes the test binary the child processes of the command too.
func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	workers.Use()
	os.Exit(m.Run())
}

// TestCommandsThatAskRegistriesEnd has a registry that answers nothing, and one that sends
// a byte now and then, for ever.
func TestCommandsThatAskRegistriesEnd(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	trickling := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for r.Method == http.MethodGet && r.Context().Err() == nil {
			_, _ = w.Write([]byte(" "))
			_ = http.NewResponseController(w).Flush()
			<-tick.C
		}
	}))
	defer trickling.Close()
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
	object := filepath.Join(dir, "counter.o")
	if err := os.WriteFile(object, programs.Object("xdp_count"), 0o600); err != nil {
		t.Fatal(err)
	}
	silentRef := strings.TrimPrefix(silent.URL, "http://") + "/bpf/counter:v2"
	for name, registry := range map[string]*httptest.Server{"silent": silent, "trickling": trickling} {
		ref := strings.TrimPrefix(registry.URL, "http://") + "/bpf/counter:v1"
		for what, c := range map[string]struct {
			make func() *cobra.Command
			args []string
		}{
			"signing " + ref:          {NewSign, []string{"--key", key, ref}},
			"verifying " + ref:        {NewVerify, []string{"--signers", signer, ref}},
			"reading " + ref:          {NewImage, []string{"inspect", ref}},
			"copying " + ref:          {NewImage, []string{"pull", ref, "oci:" + filepath.Join(dir, name)}},
			"pushing to " + silentRef: {NewImage, []string{"build", "-f", object, silentRef}},
		} {
			cmd := c.make()
			cmd.SetArgs(append(c.args, "--cache", t.TempDir(), "--timeout", "100ms"))
			cmd.SetOut(&bytes.Buffer{})
			cmd.SetErr(&bytes.Buffer{})
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), what+" took longer than 100ms") {
				t.Errorf("%s registry, %s: %v", name, what, err)
			}
		}
	}
}
