package agent

import (
	"slices"

	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
)

// AcceptError says which application's intent was not accepted, or not kept.
type AcceptError = accepted.Error

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

// The status of a chain and of its members.
type (
	// ChainStatus is the XDP chain of one interface, as skep chain prints it.
	ChainStatus = chainfit.Status
	// MemberStatus is one program of a chain.
	MemberStatus = chainfit.MemberStatus
)

// Chains tells what runs on each interface with programs of Skep's that run in an order, by index and in the
// order in which a packet meets the hooks.
func (a *Agent) Chains() ([]ChainStatus, error) {
	a.work.Lock()
	defer a.work.Unlock()
	rec := a.newReconcile(!a.loop.node.HasPods())
	defer a.loop.namespaces.Close()
	interfaces, err := rec.seen.Interfaces(rec.lookupRound)
	if err != nil {
		return nil, err
	}
	rec.look.Saw(plan.State{Interfaces: interfaces}, a.loop.namespaces)
	all := []ChainStatus{}
	for _, c := range a.loop.live.Chains() {
		if c.Version == nil {
			continue
		}
		all = append(all, rec.chains.Status(c, rec.decisions.Now))
	}
	all = append(all, chainfit.Sequences(rec.look, rec.decisions.Now)...)
	slices.SortFunc(all, ChainStatus.Compare)
	return all, nil
}
