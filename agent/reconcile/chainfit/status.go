package chainfit

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Status is the XDP chain of one interface, or what runs on another hook of one, as skep chain prints it.
type Status struct {
	Interface string `json:"interface"`
	// Hook is xdp, or one whose order the kernel keeps: tcx/*, netkit/*, or tc/* for filters of clsact.
	Hook    string `json:"hook"`
	Ifindex int    `json:"ifindex"`
	// NetnsID is the inode of the interface's network namespace, where it is not the agent's
	// own, and In says whose it is.
	NetnsID uint64 `json:"netnsId,omitempty"`
	In      string `json:"in,omitempty"`
	// XDPMode is how the interface runs the chain.
	XDPMode v1alpha1.XDPMode `json:"xdpMode,omitempty"`
	// XDPReason says why that is not the driver, where no program asks for a mode, and what brings the chain back.
	XDPReason string `json:"xdpReason,omitempty"`
	// LinkID and ProgramID are the kernel's; on other hooks than xdp, each member has its own.
	LinkID    uint32 `json:"linkId,omitempty"`
	ProgramID uint32 `json:"programId,omitempty"`
	// Severed chains run nothing until they are healed.
	Severed bool `json:"severed,omitempty"`
	// Members in the order in which they run.
	Members []MemberStatus `json:"members"`
	// Usage is what the chain takes of the kernel's limits, Room what is left; absent on other hooks.
	Usage chain.Usage `json:"usage,omitzero"`
	Room  chain.Room  `json:"room,omitzero"`
	// Error says why usage and room, or more of the chain, are not known.
	Error string `json:"error,omitempty"`
}

// Label names the chain's interface for people.
func (s Status) Label() string { return plan.Label(s.Interface, s.NetnsID, s.In) }

// MemberStatus is one program of a chain.
type MemberStatus struct {
	Application string `json:"application,omitempty"`
	// UID and Identity are those of the application; empty of an unmanaged one.
	UID      string            `json:"-"`
	Identity v1alpha1.Identity `json:"-"`
	// Program is the function, or what others call theirs.
	Program  string `json:"program"`
	Priority int32  `json:"priority"`
	// ProceedOn are the verdicts after which the next one runs; absent on other hooks than xdp.
	ProceedOn []string `json:"proceedOn,omitempty"`
	// Unmanaged programs are not Skep's, which did not attach them. Each can end the chain.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// ID is the kernel's id of the program, on other hooks than xdp or where it is unmanaged, and Pref that of a filter.
	ID   uint32 `json:"id,omitempty"`
	Pref uint16 `json:"pref,omitempty"`
	// Notes say what the user has to know of it, such as which programs of others run before it.
	Notes []string `json:"notes,omitempty"`
	// Runs counts since the chain was first made; absent where the program is
	// alone, since it is then attached as it is and nothing counts.
	Runs *uint64 `json:"runs,omitempty"`
	// Verdicts counts those that it returned, by name: Aborted, Drop, Pass, Tx, Redirect, or
	// Other. Runs of before an upgrade from a version without these counts are in none.
	Verdicts map[string]uint64 `json:"verdicts,omitempty"`
	// SwitchedOff: the chain runs without it, and the next one is loaded without it.
	SwitchedOff bool `json:"switchedOff,omitempty"`
}

// Seen is a chain as the loop has it, for a reader that describes it without the loop.
type Seen struct {
	Device  plan.Device
	Members []plan.Member
	// Target is the interface by the name that it had when the link was made.
	Target plan.Target

	mode     v1alpha1.XDPMode
	fallback string
	off      []plan.Member
	facts    pins.Facts
	counts   []chain.Counts
	err      error
}

// See returns a chain that has a version. Without time to ask the kernel, it has no link and no counts.
func See(c *pins.Chain, hasTime bool) *Seen {
	s := &Seen{Device: c.Device, Target: c.Target, Members: slices.Clone(c.Version.Members), mode: c.Mode, fallback: c.Fallback, off: c.Version.Off()}
	if !hasTime {
		s.err = errors.New("there was no time to read the chain's link and counts")
		return s
	}
	var err error
	if s.facts, err = pins.Inspect(c.Link); err != nil {
		s.err = fmt.Errorf("read the chain's link: %w", err)
	}
	if c.Version.Counters == nil {
		return s
	}
	if s.counts, err = chain.ReadCounts(c.Version.Counters, len(s.Members)); err != nil {
		s.err = fmt.Errorf("read what the chain counted: %w", err)
	}
	return s
}

// Status tells what the chain runs on an interface. notes are what the user has to know of a member.
func (s *Seen) Status(on plan.Target, notes func(plan.Member) []string) Status {
	all := Status{Interface: on.Interface, Hook: plan.XDP, Ifindex: s.Device.Index, NetnsID: s.Device.NetnsID, In: on.In, XDPMode: s.mode, XDPReason: s.fallback,
		LinkID: uint32(s.facts.ID), ProgramID: uint32(s.facts.Program), Severed: s.facts.Severed}
	if s.err != nil {
		all.Error = s.err.Error()
	}
	for i, m := range s.Members {
		one := MemberStatus{UID: m.UID, Identity: m.Identity, Application: m.Identity.String(), Program: m.Program, Priority: m.Priority,
			ProceedOn: chain.Verdicts(m.ProceedOn), SwitchedOff: slices.Contains(s.off, m), Notes: notes(m)}
		if i < len(s.counts) {
			runs := s.counts[i].Runs()
			one.Runs, one.Verdicts = &runs, s.counts[i].Verdicts()
		}
		all.Members = append(all.Members, one)
	}
	return all
}

// Measure fills in what the chain takes of the kernel's limits. Linking touches no kernel; it is asked here for its figures.
// intentOf finds the intent of a version.
func (s *Seen) Measure(to *Status, intentOf func(uid, revision string) *intent.Opened, files *objects.Cache) {
	if to.Error != "" {
		return
	}
	var parts []build.Part
	counts := map[string]chain.Counts{}
	for i, key := range build.MemberKeys(s.Members) {
		m := s.Members[i]
		o := intentOf(m.UID, m.Revision)
		if o == nil {
			to.Error = lostIntent(m).Error()
			return
		}
		parts = append(parts, build.Part{Key: key, Member: m, Intent: *o})
		if i < len(s.counts) {
			counts[key] = s.counts[i]
		}
	}
	linked, err := build.Link(parts, files, chain.Options{Counts: counts})
	if err != nil {
		to.Error = err.Error()
		return
	}
	to.Usage = linked.Usage
	to.Usage.Verified = verifiedInstructions(s.facts.Program)
	to.Room = to.Usage.Left()
}

// verifiedInstructions is how much of the verifier's budget a program took, or
// 0 where the kernel does not tell.
func verifiedInstructions(id ebpf.ProgramID) int {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return 0
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return 0
	}
	n, _ := info.VerifiedInstructions()
	return int(n)
}
