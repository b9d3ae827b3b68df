package agent

import (
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/chainfit"
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

// JointLog begins a verifier's log that is of programs of others, too.
const JointLog = report.JointLog

// NeverRanNote begins the note of a program that never ran. It names nothing of others.
const NeverRanNote = report.NeverRan

// The status of a chain and of its members.
type (
	// ChainStatus is the XDP chain of one interface, as skep chain prints it.
	ChainStatus = chainfit.Status
	// MemberStatus is one program of a chain.
	MemberStatus = chainfit.MemberStatus
)
