// Package host asks the skep run of this host, and prints what it answers. If none runs, it shows what the last one left, as far
// as the kernel still has it. It changes nothing itself.
package host

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// DefaultMapsDir is where members of groups find the maps that these were granted.
const DefaultMapsDir = "/run/skep/maps"

// ConfirmHere is how a change is confirmed that unload protection holds, where skep run answers
// with the state folder. The revision follows.
func ConfirmHere(state string) string {
	if state == where.DefaultState {
		return "skep confirm"
	}
	return "skep confirm --state " + state
}

// ConfirmLater is the same where skep run ended.
func ConfirmLater(state string) string {
	return "start skep run without --once, and run: " + ConfirmHere(state)
}

// Named returns the one application of a name as skep status prints it or, where no
// application of the cluster has it, of a name in a namespace. verb begins errors.
func Named(s nodemode.Status, verb, name string) (nodemode.Application, error) {
	if a, known := find(s, name); known {
		return a, nil
	}
	var all []string
	for _, id := range identities(s) {
		if id.Name == name && !slices.Contains(all, id.String()) {
			all = append(all, id.String())
		}
	}
	switch len(all) {
	case 0:
		return nodemode.Application{}, noApplication(verb, name)
	case 1:
		a, _ := find(s, all[0])
		return a, nil
	}
	return nodemode.Application{}, exit.Absent("%s %s: several applications have this name; choose one as NAMESPACE/NAME: %s", verb, name, display.List(all))
}

// identities lists applications and what is defined and cannot be read.
func identities(s nodemode.Status) []v1alpha1.Identity {
	var all []v1alpha1.Identity
	for _, a := range s.Applications {
		all = append(all, a.Identity())
	}
	for _, p := range s.Problems {
		if p.Definition != nil {
			all = append(all, *p.Definition)
		}
	}
	return all
}

// noApplication says that there is no application of a name.
func noApplication(verb, name string) error {
	return exit.Absent("%s %s: there is no such application; skep status lists all, those of namespaces as NAMESPACE/NAME", verb, name)
}

// find returns an application by its name as skep status prints it. One that does not run
// and whose definition cannot be read has its problems alone.
func find(s nodemode.Status, name string) (a nodemode.Application, known bool) {
	if i := slices.IndexFunc(s.Applications, func(a nodemode.Application) bool { return a.Identity().String() == name }); i >= 0 {
		return s.Applications[i], true
	}
	a = nodemode.Application{Signers: []string{}, Reasons: []policies.Reason{}, Warnings: []policies.Reason{}, Audited: []policies.Reason{},
		Conditions: []metav1.Condition{}, Programs: []agent.ProgramStatus{}}
	for _, p := range s.Problems {
		if p.Definition != nil && p.Definition.String() == name {
			a.Kind, a.Namespace, a.Name = p.Definition.Kind, p.Definition.Namespace, p.Definition.Name
			a.Problems = append(a.Problems, p)
		}
	}
	return a, len(a.Problems) > 0
}

// PrintStatus says where definitions come from, what waits for a human and how it is
// confirmed, and how each application is doing.
func PrintStatus(w io.Writer, format, confirm string, s nodemode.Status) error {
	if display.IsData(format) {
		return display.Data(w, format, s)
	}
	whole := format == "wide" || !display.Terminal(w)
	revision := s.Source.Revision
	if !whole {
		revision = text.CutRunes(revision, 13)
	}
	fmt.Fprintln(w, strings.TrimRight("source  "+text.Line(s.Source.Address+" "+revision), " "))
	printFailure(w, s.Source.Error)
	if s.Settings.Error != "" {
		fmt.Fprintln(w, "settings")
		printFailure(w, s.Settings.Error)
	}
	for _, caution := range slices.Concat(s.Source.Cautions, s.Settings.Cautions) {
		fmt.Fprintf(w, "warning %s\n", text.Indented(caution))
	}
	for _, b := range []*nodemode.UnloadProtection{s.Source.UnloadProtection, s.UnloadProtection} {
		if b != nil {
			fmt.Fprintf(w, "%s %s\n        kept until it is confirmed: %s\n        to unload: %s %s\n",
				display.Paint(w, display.Red, "unload protection"), text.Indented(b.Reason), text.Line(display.List(b.Applications)), confirm,
				text.Line(b.Revision))
		}
	}
	for _, p := range s.Problems {
		fmt.Fprintf(w, "%s %s\n", display.Paint(w, display.Red, "problem"), text.Indented(p.Error()))
	}
	if len(s.Applications) == 0 {
		_, err := fmt.Fprintln(w, "no application")
		return err
	}
	fmt.Fprintln(w)
	if err := printApplications(w, format == "wide", whole, s.Applications); err != nil {
		return err
	}
	for _, a := range s.Applications {
		printWhy(w, a)
	}
	return printShares(w, s.Applications)
}

// printShares is a table with a line for each namespace that has anything at targets that tasks of others run, too.
func printShares(w io.Writer, all []nodemode.Application) error {
	var rows [][]string
	listed := map[string]bool{}
	for _, a := range all {
		if a.Agent == nil || a.Agent.SharedTargets == nil || listed[a.Namespace] {
			continue
		}
		listed[a.Namespace] = true
		share := a.Agent.SharedTargets
		rows = append(rows, []string{share.Namespace, fmt.Sprintf("%d of %d", share.Programs, share.ProgramsLimit),
			fmt.Sprintf("%d of %d", share.TextPages, share.TextPagesLimit), fmt.Sprint(share.LeftOut)})
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return display.Table(w, []string{"NAMESPACE", "PROGRAMS AT ONE TARGET", "PAGES OF ONE FILE", "LEFT OUT"}, rows)
}

// printFailure says why what the line before names could not be read, where it could not.
func printFailure(w io.Writer, failure string) {
	if failure != "" {
		fmt.Fprintf(w, "        %s\n", display.Paint(w, display.Red, strings.ReplaceAll(text.Printable(failure), "\n", "\n        ")))
	}
}

// printWhy says why an application is not as it is defined: the reasons of a
// denial with what is known of its signatures, else what its condition says. What
// is only warned of follows.
func printWhy(w io.Writer, a nodemode.Application) {
	ready := a.Condition(v1alpha1.ConditionReady)
	skipped, unreached, notes := a.Skipped(), reachesNothing(a), notesOf(a)
	if len(a.Reasons)+len(a.Warnings)+len(a.Audited)+len(skipped)+len(notes) == 0 && unreached == "" && runs(ready) {
		return
	}
	fmt.Fprintf(w, "\n%s%s\n", text.Line(a.Identity().String()), notRunningSince(ready))
	if twoVersions(a) {
		printVersions(w, a)
	}
	if len(a.Reasons) == 0 && !runs(ready) {
		fmt.Fprintf(w, "  %s\n", text.Indented(ready.Message))
	}
	if unreached != "" {
		fmt.Fprintf(w, "  %s\n", unreached)
	}
	for _, p := range skipped {
		fmt.Fprintf(w, "  skipped   %s: %s\n", text.Indented(p.Name), text.Indented(p.Links[0].Error))
	}
	for _, note := range notes {
		fmt.Fprintf(w, "  %s\n", note)
	}
	printUnloaded(w, a)
	for _, r := range a.Reasons {
		display.Reason(w, display.Paint(w, display.Red, "denied"), r, "")
	}
	if v := a.Condition(v1alpha1.ConditionVerified); len(a.Reasons) > 0 && v.Status == metav1.ConditionFalse {
		fmt.Fprintf(w, "  verified  %s\n", text.Indented(v.Message))
	}
	printAside(w, a.Warnings, a.Audited)
}

// notRunningSince says since when an application does not run as it is defined.
func notRunningSince(ready metav1.Condition) string {
	if runs(ready) {
		return ""
	}
	return display.ForSince(ready)
}

// notesOf says what has to be known of the attachments of an application that run.
func notesOf(a nodemode.Application) (all []string) {
	for _, p := range a.Programs {
		for _, l := range p.Links {
			for _, note := range l.Notes() {
				label := "order"
				if note == l.Warning() {
					label = "warning"
				}
				all = append(all, text.Line(fmt.Sprintf("%-9s %s on %s: %s", label, l.Hook, l.Target, note)))
			}
		}
	}
	if a.Agent != nil {
		for _, why := range a.Agent.UnpublishedMaps {
			all = append(all, text.Line(fmt.Sprintf("%-9s %s", "warning", why)))
		}
	}
	return all
}

// printUnloaded says why an application that is defined does not run any more.
func printUnloaded(w io.Writer, a nodemode.Application) {
	if a.Unloaded != "" {
		fmt.Fprintf(w, "  %s %s\n", display.Paint(w, display.Red, "unloaded"), text.Indented(a.Unloaded))
	}
}

// twoVersions reports whether another version runs than the definition asks for.
func twoVersions(a nodemode.Application) bool { return a.RunningImage != "" || earlierRuns(a) }

// earlierRuns reports whether the agent was told of a newer version than it runs.
func earlierRuns(a nodemode.Application) bool {
	return a.Agent != nil && a.Agent.Revision != "" && a.Agent.Wanted != "" && a.Agent.Revision != a.Agent.Wanted
}

// printVersions says which image is wanted and which one runs, where those are
// two.
func printVersions(w io.Writer, a nodemode.Application) {
	line := func(what, image, digest string) {
		fmt.Fprintf(w, "  %-8s %s\n", what, text.Line(strings.TrimSpace(image+" "+digest)))
	}
	switch {
	case a.RunningImage != "" && a.Image != "":
		line("wanted", a.Image, a.WantedDigest)
		line("runs", a.RunningImage, a.Digest)
	case a.RunningImage != "":
		line("runs", a.RunningImage, a.Digest)
	case earlierRuns(a):
		line("wanted", a.Image, a.Digest)
		line("runs", "an earlier version, revision "+a.Agent.Revision, "")
	default:
		line("image", cmp.Or(a.Image, "-"), "")
		line("digest", cmp.Or(a.Digest, "-"), "")
	}
}

// printApplications is a table with a line for each application; wide has its image too.
// Lists and digests are shortened where it is not whole.
func printApplications(w io.Writer, wide, whole bool, all []nodemode.Application) error {
	header := []string{"APPLICATION", "READY", "DIGEST", "SIGNERS", "PROGRAMS", "REASON"}
	if wide {
		header = append(header, "IMAGE")
	}
	var rows [][]string
	for _, a := range all {
		row := statusRow(a, whole)
		if wide {
			row[len(row)-1] = cmp.Or(row[len(row)-1], "-")
			row = append(row, cmp.Or(a.Image, "-"))
		}
		rows = append(rows, row)
	}
	return display.Table(w, header, rows)
}

// runs reports whether an application that is ready runs here: one whose node selector does not
// match this node is ready too.
func runs(ready metav1.Condition) bool {
	return ready.Status == metav1.ConditionTrue && ready.Reason == nodemode.ReasonSucceeded
}

// reachesNothing says why nothing of an application that is loaded runs anywhere: the pods that it
// selects are not on this host. Empty where something does, or waits to.
func reachesNothing(a nodemode.Application) string {
	nowhere := false
	for _, p := range a.Programs {
		for _, l := range p.Links {
			if l.State != agent.NoPods && l.State != agent.Skipped {
				return ""
			}
			nowhere = nowhere || l.State == agent.NoPods
		}
	}
	if !nowhere {
		return ""
	}
	return "it is loaded and runs nowhere: this host has no pod that it selects"
}

// statusRow is an application on one line.
func statusRow(a nodemode.Application, whole bool) []string {
	ready := a.Condition(v1alpha1.ConditionReady)
	var programs []string
	for _, p := range a.Programs {
		for _, l := range p.Links {
			switch {
			case l.State == agent.Ran, l.State == agent.Attached && !hasTarget(l):
				programs = append(programs, l.Hook)
			case l.State == agent.Attached:
				programs = append(programs, fmt.Sprintf("%s@%s", l.Hook, l.Target))
			case l.State == agent.SwitchedOff:
				programs = append(programs, fmt.Sprintf("%s@%s (off)", l.Hook, l.Target))
			}
		}
	}
	why := ""
	switch {
	case !runs(ready):
		why = ready.Reason
	case reachesNothing(a) != "":
		why = string(agent.NoPods)
	}
	digest, signers, places := a.Digest, display.List(a.Signers), display.List(programs)
	if !whole {
		digest, signers, places = display.Short(digest), display.Fit(a.Signers, 14), display.Fit(programs, 24)
	}
	return []string{a.Identity().String(), string(ready.Status), cmp.Or(digest, "-"), cmp.Or(signers, "-"), cmp.Or(places, "-"), why}
}

// Explain prints all about one application.
func Explain(w io.Writer, format string, a nodemode.Application) error {
	switch {
	case format != "text":
		return display.Data(w, format, a)
	case len(a.Conditions) > 0:
		explain(w, a)
		return nil
	}
	fmt.Fprintf(w, "%s\n  it does not run, and its definition cannot be read\n", heading(a))
	for _, p := range a.Problems {
		printProblem(w, p)
	}
	return nil
}

// heading is kind and name.
func heading(a nodemode.Application) string { return text.Line(a.Kind + " " + a.Identity().String()) }

func explain(w io.Writer, a nodemode.Application) {
	fmt.Fprintf(w, "%s\n  source   %s\n", heading(a), text.Indented(cmp.Or(a.Source, "-")))
	printVersions(w, a)
	fmt.Fprintf(w, "  signers  %s\n", text.Line(cmp.Or(display.List(a.Signers), "none")))
	if a.Agent != nil && a.Agent.Pins != "" {
		fmt.Fprintf(w, "  pins     %s\n", text.Indented(a.Agent.Pins))
	}
	if a.Agent != nil && a.Agent.ReadersFolder != "" {
		fmt.Fprintf(w, "  readers  %s\n", text.Indented(a.Agent.ReadersFolder))
	}
	if a.Agent != nil {
		for _, why := range a.Agent.UnpublishedMaps {
			fmt.Fprintf(w, "  warning  %s\n", text.Line(why))
		}
	}
	printUnloaded(w, a)
	for _, p := range a.Problems {
		printProblem(w, p)
	}
	said := display.Once{}
	for _, c := range a.Conditions {
		fmt.Fprintf(w, "  %-10s %-8s %s\n", text.Line(c.Type), text.Line(string(c.Status)), text.Indented(said.Message(c.Type, withoutSkipped(a, c.Message))))
	}
	for _, r := range a.Reasons {
		display.Reason(w, display.Paint(w, display.Red, "denied"), r, "")
	}
	printAside(w, a.Warnings, a.Audited)
	left := printAlternatives(w, a)
	for _, p := range a.Programs {
		if left[p.Name] {
			continue
		}
		printProgram(w, p)
	}
	if a.Agent != nil {
		explainAgent(w, a)
	}
}

// printProgram is a line for a program and one for each of its links.
func printProgram(w io.Writer, p agent.ProgramStatus) {
	line := "  program " + text.Line(p.Name)
	if p.ID != 0 {
		line += fmt.Sprintf(" id %d tag %s", p.ID, text.Line(p.Tag))
	}
	fmt.Fprintln(w, line)
	for _, l := range p.Links {
		where := l.Hook
		if hasTarget(l) {
			where += " on " + l.Target
		}
		line := fmt.Sprintf("    %-10s %s %s", text.Line(string(l.State)), text.Line(where),
			text.Indented(cmp.Or(l.Error, l.Filter, describeOff(l), describeMode(l), describeIterator(l))))
		fmt.Fprintln(w, strings.TrimRight(line, " "))
		for _, note := range l.Notes() {
			fmt.Fprintf(w, "               %s\n", text.Line(note))
		}
	}
}

// describeOff says that a link runs without the program; empty where it does not.
func describeOff(l agent.LinkStatus) string {
	if l.State != agent.SwitchedOff {
		return ""
	}
	return "the chain runs without it, and it leaves with the next one"
}

// iterator is the hook whose programs run when their pin is read.
const iterator = "iter"

// hasTarget reports whether an attachment is to something: an iterator is not, and what ran once.
func hasTarget(l agent.LinkStatus) bool { return l.Hook != iterator && l.State != agent.Ran }

// describeIterator says how an iterator is run; empty of other links.
func describeIterator(l agent.LinkStatus) string {
	if l.Hook != iterator || l.Pin == "" {
		return ""
	}
	return "read " + l.Pin
}

// withoutSkipped is the message of a condition without what the lines below it say of
// alternatives and of what is optional.
func withoutSkipped(a nodemode.Application, message string) string {
	if a.Agent == nil || a.Agent.Skipped == "" {
		return message
	}
	return strings.ReplaceAll(message, ": "+a.Agent.Skipped, ", see below")
}

// printAlternatives says of each set of an alternative whether it runs, and why not. It
// returns the programs of those that do not.
func printAlternatives(w io.Writer, a nodemode.Application) (left map[string]bool) {
	left = map[string]bool{}
	if a.Agent == nil {
		return left
	}
	for _, alternative := range a.Agent.Alternatives {
		fmt.Fprintf(w, "  alternative %s\n", text.Indented(alternative.Name))
		for _, set := range alternative.Sets {
			state := "Runs"
			if set.Error != "" {
				state = string(agent.Skipped)
				for _, name := range set.Programs {
					left[name] = true
				}
			}
			line := fmt.Sprintf("    %-10s %s %s", state, text.Indented(display.List(set.Programs)), text.Indented(set.Error))
			fmt.Fprintln(w, strings.TrimRight(line, " "))
		}
	}
	return left
}

// explainAgent says what the agent knows beside programs and links.
func explainAgent(w io.Writer, a nodemode.Application) {
	for _, m := range a.Agent.Maps {
		what := "contents kept"
		switch {
		case !m.Kept && len(m.Carried) > 0:
			what = "variables carried over: " + display.List(m.Carried) + "; the rest started anew: " + m.Reason
		case !m.Kept:
			what = "started anew: " + m.Reason
		case m.Reason != "":
			what += ": " + m.Reason
		}
		fmt.Fprintf(w, "  map %s\n", text.Line(m.Map+" "+what))
	}
	for _, m := range a.Agent.TakenMaps {
		what := fmt.Sprintf("is map %s of application %s", m.OwnersMap, m.Owner.Name)
		if m.Message != "" {
			what += ", or was: " + m.Message
		}
		fmt.Fprintf(w, "  map %s\n", text.Line(m.Map+" "+what))
	}
	isSaid := slices.ContainsFunc(a.Conditions, func(c metav1.Condition) bool { return c.Message == a.Agent.Error })
	if a.Agent.Error != "" && !isSaid {
		fmt.Fprintf(w, "  %s %s\n", display.Paint(w, display.Red, "error"), text.Indented(a.Agent.Error))
	}
	if a.Agent.VerifierLog != "" {
		fmt.Fprintf(w, "\nverifier log:\n%s\n", text.Printable(a.Agent.VerifierLog))
	}
}

// printProblem says place, message and fix as printReason does.
func printProblem(w io.Writer, p schemas.Problem) {
	display.Reason(w, display.Paint(w, display.Red, "problem"), policies.Reason{Rule: p.Source.String(), Path: p.Path, Message: p.Message, Fix: p.Fix}, "")
}

// printAside says what denies nothing: warnings, and what policies in Audit mode would
// deny.
func printAside(w io.Writer, warnings, audited []policies.Reason) {
	for _, r := range warnings {
		display.Reason(w, "warning", r, "")
	}
	for _, r := range audited {
		display.Reason(w, "audit", r, "")
	}
}

// describeMode says how an interface runs an XDP program; empty of other links.
func describeMode(l agent.LinkStatus) string {
	switch {
	case l.XDPReason != "":
		return fmt.Sprintf("in mode %s: %s", l.XDPMode, l.XDPReason)
	case l.XDPMode != "":
		return fmt.Sprintf("in mode %s", l.XDPMode)
	}
	return ""
}
