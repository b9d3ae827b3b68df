// Package unrun finds programs that are attached to network devices and have never run, while their devices counted packets.
//
// Runs are known of the members of a chain, which Skep counts, and of all programs while the kernel counts them
// (kernel.bpf_stats_enabled). It turns nothing on, and says nothing of what is not known.
package unrun

import (
	"maps"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/bytecode/plain"
)

// Key is one program of an application on a hook of a device. ID tells versions apart.
type Key struct {
	UID, Program, Hook string
	On                 plan.Device
	ID                 string
}

// Watch remembers, from one reconcile to the next, what did not run. The zero value is ready; the caller serializes all calls.
type Watch struct{ known map[Key]*watched }

// watched is a program since it was looked at first. Packets are counted by its device from then on: until the look before the last.
type watched struct {
	ran                  bool
	first, last, counted uint64
	at                   time.Time
}

// The bounds of a watch.
const (
	// settling is how long a packet may be on its way from the device's counter to the program.
	settling = time.Second
	// asking is how long one reconcile asks, in all: there may be thousands. Of the others it says what it said before.
	asking = 50 * time.Millisecond
	// forgetAfter is how long a program is remembered that is not asked for.
	forgetAfter = 10 * time.Minute
)

// Note notes how often a program ran, and how many packets its device counted before that was read. It returns how many the
// device counted since the first look, if the program has never run.
func (w *Watch) Note(k Key, runs, packets uint64, now time.Time) uint64 {
	is := w.known[k]
	if is == nil || packets < is.last {
		is = &watched{first: packets, last: packets, at: now}
		if w.known == nil {
			w.known = map[Key]*watched{}
		}
		w.known[k] = is
	}
	if is.ran = is.ran || runs > 0; is.ran {
		is.at = now
		return 0
	}
	if now.Sub(is.at) >= settling {
		is.counted, is.last, is.at = is.last-is.first, packets, now
	}
	return is.counted
}

// HasRun reports whether a program is known to have run, so that nothing need be asked.
func (w *Watch) HasRun(k Key, now time.Time) bool {
	is := w.known[k]
	if is == nil || !is.ran {
		return false
	}
	is.at = now
	return true
}

// Forget forgets a program whose runs are not counted now.
func (w *Watch) Forget(k Key) { delete(w.known, k) }

// Round is what one reconcile asks.
type Round struct {
	watch      *Watch
	namespaces *netns.Table
	// counts reports whether the kernel counts; nil until it was asked. packets are those of devices, received and sent.
	counts  *bool
	packets map[plan.Device][2]uint64
	// spent is how long it asked, and hasForgotten tells that what is asked for no more was forgotten.
	spent        time.Duration
	hasForgotten bool
}

// Begin begins to ask, in network namespaces.
func (w *Watch) Begin(namespaces *netns.Table) *Round {
	return &Round{watch: w, namespaces: namespaces, packets: map[plan.Device][2]uint64{}}
}

// Of returns how many packets the device of a program counted, in the direction of its hook, while the program has never run;
// 0 where it ran, and where that is not known. runs returns how often it ran; not ok where nothing counts.
func (r *Round) Of(k Key, now time.Time, runs func() (uint64, bool)) uint64 {
	direction, ok := directionOf(k.Hook)
	if !ok || k.On.Index == 0 || r.watch.HasRun(k, now) {
		return 0
	}
	if !r.hasForgotten {
		r.hasForgotten = true
		maps.DeleteFunc(r.watch.known, func(_ Key, is *watched) bool { return now.Sub(is.at) > forgetAfter })
	}
	var said uint64
	if is := r.watch.known[k]; is != nil {
		said = is.counted
		if now.Sub(is.at) < settling {
			return said
		}
	}
	if r.spent >= asking {
		return said
	}
	began := time.Now()
	defer func() { r.spent += time.Since(began) }()
	// In this order: what was counted before a program ran.
	packets, ok := r.packetsOf(k.On)
	if !ok {
		return 0
	}
	n, ok := runs()
	if !ok {
		r.watch.Forget(k)
		return 0
	}
	return r.watch.Note(k, n, packets[direction], now)
}

// directionOf is 0 of a hook on what a device receives, and 1 on what it sends. The peer of a netkit device, whose programs
// run where that sends, is in another network namespace.
func directionOf(hook string) (int, bool) {
	switch hook {
	case plan.XDP, "tcx/ingress", "tc/ingress":
		return 0, true
	case "tcx/egress", "tc/egress", "netkit/primary":
		return 1, true
	}
	return 0, false
}

// OfProgram is Of where the kernel alone counts how often a program ran. While it does not, no device is asked.
func (r *Round) OfProgram(k Key, now time.Time, id ebpf.ProgramID) uint64 {
	if !r.isCounting() {
		r.watch.Forget(k)
		return 0
	}
	return r.Of(k, now, func() (uint64, bool) { return counted(id) })
}

// packetsOf asks once for each device.
func (r *Round) packetsOf(d plan.Device) ([2]uint64, bool) {
	if known, ok := r.packets[d]; ok {
		return known, true
	}
	received, sent, err := attach.PacketsOf(d, r.namespaces)
	if err != nil {
		return [2]uint64{}, false
	}
	r.packets[d] = [2]uint64{received, sent}
	return r.packets[d], true
}

// statsFile says whether the kernel counts runs; see bpf_stats_handler of kernel/bpf/syscall.c.
const statsFile = "/proc/sys/kernel/bpf_stats_enabled"

// isCounting reports whether the kernel counts runs.
func (r *Round) isCounting() bool {
	if r.counts == nil {
		text, err := os.ReadFile(statsFile)
		counts := err == nil && strings.TrimSpace(string(text)) == "1"
		r.counts = &counts
	}
	return *r.counts
}

// counted returns how often the kernel says that a program ran; not ok where it does not tell.
func counted(id ebpf.ProgramID) (uint64, bool) {
	p, err := plain.Of(ebpf.NewProgramFromID(id))
	if err != nil {
		return 0, false
	}
	defer func() { _ = p.Close() }()
	stats, err := plain.Of(p.Stats())
	if err != nil {
		return 0, false
	}
	return stats.RunCount + stats.RecursionMisses, true
}
