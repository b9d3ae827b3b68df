package holders

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The bounds of a look at a whole machine, which an error alone asks for.
const (
	// lookingTime is how long each step takes at most: what was found by then counts.
	lookingTime = 200 * time.Millisecond
	// freshness is how long what was found answers further questions.
	freshness = 10 * time.Second
)

// Occupant is a program that has a place which takes one.
type Occupant struct {
	// Program is its id, and Name what its loader called it.
	Program uint32
	Name    string
	// Link is the id of the link that attaches it; 0 where none does, or there was no time to find it.
	Link uint32
	// Holders keep the link.
	Holders Holders
}

// String describes it, such as: program 7 ("pass"), attached by link 3, held by process 12 (loader).
func (o Occupant) String() string {
	text := fmt.Sprintf("program %d", o.Program)
	if o.Name != "" {
		text += fmt.Sprintf(" (%q)", o.Name)
	}
	if o.Link == 0 {
		if o.Holders.Cut {
			return text + ", whose link was not found in time"
		}
		return text + ", attached without a link"
	}
	return fmt.Sprintf("%s, attached by link %d, held by %s", text, o.Link, o.Holders)
}

// Holders are the processes and the pins that keep a link, as far as they can be seen.
type Holders struct {
	Processes []Process
	Pins      []string
	// Cut: there was no time to look at all of them.
	Cut bool
}

// String lists them.
func (h Holders) String() string {
	var by []string
	for _, p := range h.Processes[:min(len(h.Processes), maxNamed)] {
		by = append(by, fmt.Sprintf("process %d (%s)", p.PID, p.Name))
	}
	for _, pin := range h.Pins[:min(len(h.Pins), maxNamed)] {
		by = append(by, "the pin "+pin)
	}
	if left := len(h.Processes) + len(h.Pins) - len(by); left > 0 {
		by = append(by, fmt.Sprintf("%d more", left))
	}
	if len(by) == 0 && h.Cut {
		return fmt.Sprintf("none of the processes and pins that could be looked at within %s", lookingTime)
	}
	if h.Cut {
		by = append(by, "perhaps more")
	}
	if len(by) == 0 {
		return "no process or pin that this agent sees"
	}
	return strings.Join(by, " and ")
}

// maxNamed bounds the processes, and the pins, that a description names.
const maxNamed = 3

// Finder finds the occupants of places. The zero value is ready.
type Finder struct {
	mu sync.Mutex
	// at is when processes and pins were looked at, and newest the last link that there was.
	at     time.Time
	newest uint32
	held   map[Object][]Process
	pins   map[Object][]string
	cut    bool
}

// Find describes the program that has a place: an interface's, by its index, or a network
// namespace's, by its inode. Who holds the link is what could be seen in the last ten seconds.
func (f *Finder) Find(program ebpf.ProgramID, kind link.Type, place uint64) Occupant {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := Occupant{Program: uint32(program), Name: nameOf(program)}
	within(func(ctx context.Context) {
		o.Link = linkAt(ctx, program, kind, place)
		o.Holders.Cut = o.Link == 0 && ctx.Err() != nil
	})
	if o.Link != 0 {
		o.Holders = f.holders(o.Link)
	}
	return o
}

// Holders returns who holds a link, as Find does.
func (f *Finder) Holders(id link.ID) Holders {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holders(uint32(id))
}

// within calls a step of a look, with the time that it may take.
func within(step func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), lookingTime)
	defer cancel()
	step(ctx)
}

func (f *Finder) holders(id uint32) Holders {
	if now := time.Now(); now.Sub(f.at) > freshness || id > f.newest {
		// What was found before an error counts.
		var processes, pins error
		within(func(ctx context.Context) { f.held, processes = Processes(ctx, "/proc") })
		within(func(ctx context.Context) { f.pins, pins = Pins(ctx, "/sys/fs/bpf") })
		f.at, f.newest, f.cut = now, id, errors.Is(errors.Join(processes, pins), context.DeadlineExceeded)
	}
	return Holders{f.held[Link(id)], f.pins[Link(id)], f.cut}
}

// linkAt returns the id of the link that attaches a program to a place, 0 where none does.
func linkAt(ctx context.Context, program ebpf.ProgramID, kind link.Type, place uint64) uint32 {
	it := new(link.Iterator)
	defer it.Close()
	for ctx.Err() == nil && it.Next() {
		info, err := it.Link.Info()
		if err != nil || info.Program != program || info.Type != kind {
			continue
		}
		if x := info.XDP(); x != nil && uint64(x.Ifindex) == place {
			return uint32(info.ID)
		}
		if n := info.NetNs(); n != nil && uint64(n.NetnsInode) == place {
			return uint32(info.ID)
		}
	}
	return 0
}

// nameOf is the name of a program; empty where it is gone, or may not be seen.
func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer func() { _ = p.Close() }()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
