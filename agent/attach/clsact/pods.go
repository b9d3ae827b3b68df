package clsact

import (
	"fmt"
	"maps"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/text"
)

// The bounds of what is read in network namespaces of pods, whose processes may make any number of
// filters and devices.
const (
	// maxFilters is how many a side of an interface may have, and maxDevices and maxQdiscs a namespace.
	maxFilters, maxDevices, maxQdiscs = 2048, 1024, 4096
	// podBudget is how long one look works in a namespace, and podsBudget in all together: in time of
	// the processor.
	podBudget, podsBudget = 100 * time.Millisecond, 500 * time.Millisecond
	// patience is how long a list of the agent's own namespace may take.
	patience = time.Minute
)

// rereading is when a namespace is read again that was not read whole, or that took too long.
var rereading = retry.BackOff{First: time.Second, Most: 30 * time.Second}

// PartialError is the error of a pod whose filters were not all read, so that one of Skep's may be among
// the others.
type PartialError struct {
	// What was read, such as "ingress filters of eth0", is In a pod, such as "pod team-a/web". Fix is the command that lists them.
	What, In, Fix string
	// Limit is how many were read; 0 where the time was over.
	Limit int
}

// Error implements error.
func (e *PartialError) Error() string {
	if e.Limit == 0 {
		return fmt.Sprintf("read %s in %s: its network has taken its share of the agent's time; it is read again", e.What, e.In)
	}
	return fmt.Sprintf("read %s in %s: there are more than %d, which is the limit of what is read; delete those that the pod does not need: %#q lists them",
		e.What, e.In, e.Limit, e.Fix)
}

// partial is the error of what was read of a device, by a thread in its network namespace. fix is as for command.
func (t *Table) partial(d plan.Device, what, fix string, limit int) *PartialError {
	one, _ := t.Namespaces.Lookup(d.NetnsID)
	name := nameHere(d)
	return &PartialError{What: what + " of " + name, In: one.In, Fix: t.Namespaces.Command(d.NetnsID, fmt.Sprintf(fix, text.Word(name))), Limit: limit}
}

// nameHere is the name of a device, of a thread in its network namespace.
func nameHere(d plan.Device) string {
	if l, err := netlink.LinkByIndex(d.Index); err == nil {
		return l.Attrs().Name
	}
	return fmt.Sprint("#", d.Index)
}

// command is one that a person runs on the node for a device, whose name takes the place of %s.
func (t *Table) command(d plan.Device, command string) string {
	var name string
	if err := t.within(d, func() error { name = nameHere(d); return nil }); err != nil {
		name = fmt.Sprint("#", d.Index)
	}
	return t.Namespaces.Command(d.NetnsID, fmt.Sprintf(command, text.Word(name)))
}

// partialSide is the error of a list of filters.
func (t *Table) partialSide(s Side, limit int) *PartialError {
	return t.partial(s.Device, s.String()+" filters", "tc filter show dev %s "+s.String(), limit)
}

// pod is the share of one network namespace in the time of the loop.
type pod struct {
	// left is how long this look may yet work in it.
	left time.Duration
	// isCut: a list was not read whole in this look. isLate: its time was over. isSearching: a search
	// went on, which has an end.
	isCut, isLate, isSearching bool
	// hasTurn: lists are read in this look. After failures in a row, the next turn is at again.
	hasTurn  bool
	failures int
	again    time.Time
	// isSlow: until then nothing is looked up, either.
	isSlow bool
}

// renew begins a look. It reports whether there is nothing to remember.
func (p *pod) renew(now time.Time) bool {
	switch {
	case p.isCut || p.isLate || p.isSearching:
		if !p.isSearching {
			p.failures++
		}
		p.again, p.hasTurn, p.isSlow = now.Add(rereading.After(max(p.failures, 1))), false, p.isLate
	case now.Before(p.again):
	case p.hasTurn:
		return true
	default:
		p.hasTurn, p.isSlow = true, false
	}
	p.left, p.isCut, p.isLate, p.isSearching = podBudget, false, false, false
	return false
}

// pod returns the share of a network namespace that is not the agent's own.
func (t *Table) pod(id uint64) *pod {
	if t.pods[id] == nil {
		if t.pods == nil {
			t.pods = map[uint64]*pod{}
		}
		t.pods[id] = &pod{left: podBudget, hasTurn: true}
	}
	return t.pods[id]
}

// isBounded reports whether what is read of a device is bounded.
func (t *Table) isBounded(d plan.Device) bool { return d.NetnsID != 0 && !t.Unhurried }

// timeLeft returns how long this look may yet work in a network namespace. A pod whose time is over for
// now gives others theirs.
func (t *Table) timeLeft(d plan.Device) time.Duration {
	if !t.isBounded(d) {
		return patience
	}
	if p := t.pod(d.NetnsID); !p.isSlow {
		return max(min(p.left, t.left), 0)
	}
	return 0
}

// hasTurn reports whether lists of a device's network namespace are read in this look.
func (t *Table) hasTurn(d plan.Device) bool {
	return !t.isBounded(d) || t.timeLeft(d) > 0 && t.pod(d.NetnsID).hasTurn
}

// within calls do where the interface is, and counts the time of the processor: what a busy machine
// adds is not the pod's doing.
func (t *Table) within(d plan.Device, do func() error) error {
	if !t.isBounded(d) {
		return t.Namespaces.Do(d.NetnsID, do)
	}
	var took time.Duration
	err := t.Namespaces.Do(d.NetnsID, func() error {
		began := processorTime()
		defer func() { took = processorTime() - began }()
		return do()
	})
	p := t.pod(d.NetnsID)
	p.left, t.left = p.left-took, t.left-took
	p.isLate = p.isLate || p.left <= 0
	return err
}

// processorTime is what the thread has had of a processor, the kernel's work for it included.
func processorTime() time.Duration {
	var ts unix.Timespec
	// The clock is there on every kernel.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// limits returns those of a list of a device's network namespace. They bound its entries, which the kernel
// gives at a few microseconds each, and how long a busy machine may take for it. It is not ok where the
// namespace has no turn.
func (t *Table) limits(d plan.Device, most int) (rtnl.Limits, bool) {
	left := t.timeLeft(d)
	if !t.isBounded(d) {
		return rtnl.Limits{Until: time.Now().Add(left)}, true
	}
	return rtnl.Limits{Entries: most, Until: time.Now().Add(2 * left)}, t.hasTurn(d)
}

// Look begins a look at the filters: each that is needed is asked for again, once.
func (t *Table) Look() {
	t.looks, t.left = t.looks+1, podsBudget
	now := t.Clock()
	maps.DeleteFunc(t.sides, func(_ Side, is *side) bool { return now.Sub(is.usedAt) > forgetAfter })
	maps.DeleteFunc(t.pods, func(_ uint64, p *pod) bool { return p.renew(now) })
}
