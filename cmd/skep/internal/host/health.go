package host

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/text"
)

// Place names the host for people, and says what answers.
func Place(r nodemode.RunStatus) string {
	place := "host " + cmp.Or(r.Host, "unknown")
	if r.Ended != nil {
		return fmt.Sprintf("%s: skep run is not running; this is what it left at %s, as far as the kernel still has it", place,
			r.Ended.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s, skep run %s", place, r.Version)
}

// PrintHealth says how skep run itself does, for people.
func PrintHealth(w io.Writer, format string, s nodemode.Status) {
	if display.IsData(format) {
		return
	}
	since := ""
	if s.Run.Ended == nil && !s.Run.Since.IsZero() {
		since = fmt.Sprintf(", for %s, since %s", duration.HumanDuration(time.Since(s.Run.Since)), s.Run.Since.UTC().Format(time.RFC3339))
	}
	kernel := cmp.Or(s.Run.Kernel, "unknown") + " without BTF"
	if s.Run.BTF {
		kernel = s.Run.Kernel + " with BTF"
	}
	if len(s.Run.Lacks) > 0 {
		kernel += "; skep run lacks " + display.List(s.Run.Lacks)
	}
	policy := cmp.Or(display.List(s.Settings.Policies), "none")
	if revision := s.Settings.PolicyRevision; revision != "" {
		policy += ", revision " + revision[:min(12, len(revision))]
	}
	fmt.Fprintln(w, text.Line(Place(s.Run)+since))
	fmt.Fprintf(w, "kernel  %s\n", text.Line(kernel))
	fmt.Fprintf(w, "signers %s\n", text.Line(cmp.Or(display.List(s.Settings.Signers), "none")))
	fmt.Fprintf(w, "policy  %s\n", text.Line(policy))
	if s.UnloadProtection == nil && s.Source.UnloadProtection == nil {
		fmt.Fprintln(w, "unload protection holds nothing back")
	}
}
