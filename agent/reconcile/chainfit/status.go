package chainfit

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
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

// Status tells what a chain runs and what it takes.
func (r *Round) Status(c *pins.Chain, now time.Time) Status {
	on := r.look.Interface(c.Device)
	s := Status{Interface: on.Name, Hook: plan.XDP, Ifindex: c.Device.Index, NetnsID: c.Device.NetnsID, In: on.In, XDPMode: c.Mode, XDPReason: c.Fallback}
	facts, err := pins.Inspect(c.Link)
	if err != nil {
		s.Error = fmt.Sprintf("read the chain's link: %v", err)
	}
	s.LinkID, s.ProgramID, s.Severed = uint32(facts.ID), uint32(facts.Program), facts.Severed
	var counts []chain.Counts
	if c.Version.Counters != nil {
		if counts, err = chain.ReadCounts(c.Version.Counters, len(c.Version.Members)); err != nil {
			s.Error = fmt.Sprintf("read what the chain counted: %v", err)
		}
	}
	for i, m := range c.Version.Members {
		one := MemberStatus{Application: m.Identity.String(), Program: m.Program, Priority: m.Priority, ProceedOn: chain.Verdicts(m.ProceedOn),
			SwitchedOff: c.Version.IsOff(m), Notes: report.LinkStatus{Hook: plan.XDP, NeverRan: report.MemberNeverRan(r.look, c, m, now)}.Notes()}
		if i < len(counts) {
			runs := counts[i].Runs()
			one.Runs, one.Verdicts = &runs, counts[i].Verdicts()
		}
		s.Members = append(s.Members, one)
	}
	if s.Error == "" {
		r.measure(&s, c)
	}
	return s
}

// measure fills in what the chain takes of the kernel's limits. Linking touches
// no kernel; it is asked here for its figures.
func (r *Round) measure(s *Status, c *pins.Chain) {
	parts, err := r.parts(c.Version.Members, "")
	if err != nil {
		s.Error = err.Error()
		return
	}
	linked, err := build.Link(parts, r.objectRound.Cache, chain.Options{Counts: r.countsOf(c.Device)})
	if err != nil {
		s.Error = err.Error()
		return
	}
	s.Usage = linked.Usage
	s.Usage.Verified = verifiedInstructions(c.Version.Program)
	s.Room = s.Usage.Left()
}

// verifiedInstructions is how much of the verifier's budget a program took, or
// 0 where the kernel does not tell.
func verifiedInstructions(p *ebpf.Program) int {
	info, err := p.Info()
	if err != nil {
		return 0
	}
	n, _ := info.VerifiedInstructions()
	return int(n)
}
