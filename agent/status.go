package agent

import (
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/reconcile/report"
)

// The status of an application, its programs and their links.
type (
	// ApplicationStatus is one application on this node, as skep status prints it.
	ApplicationStatus = report.ApplicationStatus
	// ProgramStatus is one function of an application.
	ProgramStatus = report.ProgramStatus
	// LinkStatus is one attachment.
	LinkStatus = report.LinkStatus
	// AlternativeStatus says which set of an alternative runs.
	AlternativeStatus = report.AlternativeStatus
	// SetStatus is one set of an alternative.
	SetStatus = report.SetStatus
	// LinkState says how one attachment is doing.
	LinkState = report.LinkState
)

// The states of an attachment.
const (
	Attached      = report.Attached
	Waiting       = report.Waiting
	Ran           = report.Ran
	Skipped       = report.Skipped
	NoPods        = report.NoPods
	Failed        = report.Failed
	SwitchedOff   = report.SwitchedOff
	DriftConflict = report.DriftConflict
)

// Status tells how every application is doing, ordered by name. Tombstones
// whose application has left nothing behind are not listed; what runs without
// an intent is.
func (a *Agent) Status() []ApplicationStatus {
	return slices.DeleteFunc(a.Report(), func(s ApplicationStatus) bool {
		return s.Tombstone && s.Revision == "" && !s.Unloading && s.Error == ""
	})
}

// Report is Status and every tombstone that was worked off.
func (a *Agent) Report() []ApplicationStatus {
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	all := append([]ApplicationStatus{}, a.accepted.orphans...)
	for _, app := range a.accepted.apps {
		if app.Status.UID != "" {
			all = append(all, app.Status)
		}
	}
	slices.SortFunc(all, func(x, y ApplicationStatus) int {
		return strings.Compare(x.Application.String()+"\x00"+x.UID, y.Application.String()+"\x00"+y.UID)
	})
	return all
}
