package images

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/test/harness/hostile"
)

// TestNoFieldOfAnImageReachesTheTerminalAsItIs: the author of an image wrote its license, names, labels and certificates.
func TestNoFieldOfAnImageReachesTheTerminalAsItIs(t *testing.T) {
	var (
		out      bytes.Buffer
		got      inspection
		evidence signing.Evidence
		pushed   Pushed
	)
	for _, v := range []any{&got, &evidence, &pushed} {
		hostile.Fill(v)
	}
	if err := printInspection(&out, got); err != nil {
		t.Error(err)
	}
	hostile.Check(t, "image inspect", out.String())
	out.Reset()
	cmd := &cobra.Command{}
	cmd.SetOut(&out)
	printEvidence(cmd, evidence)
	evidence.Signatures = nil
	printEvidence(cmd, evidence)
	hostile.Check(t, "verify", out.String())
	out.Reset()
	for _, format := range []string{"json", "yaml"} {
		if err := pushed.Print(&out, format); err != nil {
			t.Error(err)
		}
	}
	hostile.Check(t, "render --push", out.String())
}
