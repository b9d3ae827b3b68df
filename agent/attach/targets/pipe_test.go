package targets_test

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestAPipeForATargetStopsNobodyElse: who opens a named pipe waits for a writer.
func TestAPipeForATargetStopsNobodyElse(t *testing.T) {
	need.Kernel(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for sentence, at := range map[string]v1alpha1.Attachment{
		"a binary":            {Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: pipe, Symbol: "main"}},
		"a network namespace": {Hook: "sk_lookup", NetworkNamespace: pipe},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := world.New(t)
			a, _ := w.Start()
			err := w.Accept(a, world.Version(w, "1", at), w.Intent("other", "raw_tp_count", world.RawProgram()))
			if err == nil || !strings.Contains(err.Error(), pipe) || !strings.Contains(err.Error(), "named pipe") || strings.Contains(err.Error(), "other:") {
				t.Errorf("Settled = %v", err)
			}
			if s := a.Status()[1]; s.Application.Name != "other" || s.Conditions[0].Status != "True" {
				t.Errorf("the other application: %+v", s)
			}
		})
	}
}
