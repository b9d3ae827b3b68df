package nodes

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/text"
)

// PrintHistory is a table with a line for each version of an application, the newest first; wide shortens nothing.
func PrintHistory(w io.Writer, wide bool, all []v1alpha1.ApplicationVersion) error {
	header := []string{"VERSION", "AGO", "RESULT", "DIGEST", "SIGNERS", "CHANGES"}
	if wide {
		header = append(header, "TIME", "GENERATION", "POLICIES", "IMAGE")
	}
	var rows [][]string
	for _, v := range all {
		changes := display.List(v.Changes)
		switch {
		case v.RolledBackTo > 0:
			changes = fmt.Sprintf("version %d is back", v.RolledBackTo)
		case v.Message != "":
			changes = v.Message
		}
		digest := v.Digest
		if display.Terminal(w) && !wide {
			digest = display.Short(digest)
		}
		row := []string{fmt.Sprint(v.Version), duration.HumanDuration(time.Since(v.Time.Time)), string(v.Result), cmp.Or(digest, "-"), cmp.Or(v.SignedBy, "-"),
			cmp.Or(text.Line(changes), "-")}
		if wide {
			which := cmp.Or(v.Revision, "-")
			if v.Generation > 0 {
				which = fmt.Sprint(v.Generation)
			}
			row = append(row, v.Time.UTC().Format(time.RFC3339), which, cmp.Or(v.Policies, "-"), text.Line(cmp.Or(v.Image, "-")))
		}
		rows = append(rows, row)
	}
	return display.Table(w, header, rows)
}
