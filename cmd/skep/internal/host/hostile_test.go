package host

import (
	"bytes"
	"io"
	"testing"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/test/harness/hostile"
)

// TestNoFieldOfWhatAHostAnswersReachesTheTerminalAsItIs: names are of definitions that may be invalid, and of objects.
func TestNoFieldOfWhatAHostAnswersReachesTheTerminalAsItIs(t *testing.T) {
	var s nodemode.Status
	hostile.Fill(&s)
	ended := s
	ended.Run.Ended = nil
	ended.UnloadProtection, ended.Source.UnloadProtection = nil, nil
	s.Applications[0].Conditions[0].Type = v1alpha1.ConditionReady
	one := s.Applications[0]
	broken := one
	broken.Conditions = nil
	off, kept, versions := one, one, one
	versions.RunningImage = ""
	var details agent.ApplicationStatus
	hostile.Fill(&details)
	// The lines of a log stand as the kernel wrote them, under a heading of their own.
	details.VerifierLog, s.Applications[0].Agent.VerifierLog = "\x1b[2J\u202e", "\x1b[2J\u202e"
	details.Maps[0].Kept, details.Alternatives[0].Sets[0].Error = false, ""
	kept.Agent = &details
	var program agent.ProgramStatus
	hostile.Fill(&program)
	program.Links[0].State, program.Links[0].Error = agent.SwitchedOff, ""
	off.Programs = []agent.ProgramStatus{program}
	s.Applications = append(s.Applications, off, kept, versions)
	for name, show := range map[string]func(w io.Writer) error{
		"status":         func(w io.Writer) error { return PrintStatus(w, "wide", "skep confirm", s) },
		"status, health": func(w io.Writer) error { PrintHealth(w, "text", s); PrintHealth(w, "text", ended); return nil },
		"explain":        func(w io.Writer) error { return Explain(w, "text", one) },
		"explain, off":   func(w io.Writer) error { return Explain(w, "text", off) },
		"explain, kept":  func(w io.Writer) error { return Explain(w, "text", kept) },
		"explain, image": func(w io.Writer) error { return Explain(w, "text", versions) },
		"explain broken": func(w io.Writer) error { return Explain(w, "text", broken) },
		"explain, JSON":  func(w io.Writer) error { return Explain(w, "json", one) },
	} {
		var out bytes.Buffer
		if err := show(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		hostile.Check(t, name, out.String())
	}
}
