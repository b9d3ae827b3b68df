// Package inventory lists every BPF program, link and map in the kernel it runs
// on, Skep's or not: what it is, where it is attached, who holds it.
//
// It only looks. It loads, attaches, changes and evaluates nothing, and what it
// reports of a running system is best effort: objects come and go while it
// lists, and an object that went is left out. Looking objects up by id needs
// CAP_SYS_ADMIN.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/program/owner"
)

// Inventory is every BPF object on the host, each list in the order of ids.
type Inventory struct {
	Programs []Program `json:"programs"`
	Links    []Link    `json:"links"`
	Maps     []Map     `json:"maps"`
}

// Program is a loaded program.
type Program struct {
	// ID is the kernel's.
	ID uint32 `json:"id"`
	// Type is cilium/ebpf's name of the program type, such as XDP.
	Type string `json:"type"`
	// Name is the function's name where the kernel has type information, else
	// the name given on loading, cut to 15 bytes by the kernel.
	Name string `json:"name"`
	// Tag is the kernel's hash of the instructions, in hex.
	Tag string `json:"tag"`
	// Attached lists where it is attached; empty means nowhere this package can
	// see.
	Attached []Place `json:"attached"`
	// Holders are the processes with a descriptor of it; pinned and attached
	// programs live without any.
	Holders []Process `json:"holders"`
	// Pins are its paths in the BPF file system.
	Pins []string `json:"pins"`
	// Managed reports whether it is Skep's, by its pins.
	Managed bool `json:"managed"`
	// Owner is what is written in bpf_metadata_skep beside it, or nil. A process
	// that loads a program can write anything there: it is a label, not a proof.
	Owner *owner.Owner `json:"owner,omitempty"`
	// LoadedAt is when it was loaded, to the second.
	LoadedAt time.Time `json:"loadedAt"`
	// UID is the user who loaded it.
	UID uint32 `json:"uid"`
	// Maps are the ids of the maps it uses.
	Maps []uint32 `json:"maps"`
	// JitedBytes is the size of its machine code, 0 where it is interpreted.
	JitedBytes uint32 `json:"jitedBytes"`
	// MemlockBytes is what the kernel charges for it.
	MemlockBytes uint64 `json:"memlockBytes"`
	// VerifiedInstructions is how many the verifier walked; 0 before 5.16.
	VerifiedInstructions uint32 `json:"verifiedInstructions"`
	// Runs and RunTime count while the kernel's statistics are on
	// (kernel.bpf_stats_enabled), and not otherwise. RunTime is in nanoseconds.
	Runs    uint64        `json:"runs"`
	RunTime time.Duration `json:"runTimeNs"`
}

// Link ties a program to a place.
type Link struct {
	// ID is the kernel's.
	ID uint32 `json:"id"`
	// Type is the kernel's name, such as xdp, tcx or perf_event.
	Type string `json:"type"`
	// Program is the id of the program it runs.
	Program uint32 `json:"program"`
	// Place is where; its Hook is empty where the kernel does not tell.
	Place Place `json:"place"`
	// Holders, Pins and Managed are as for a Program.
	Holders []Process `json:"holders"`
	Pins    []string  `json:"pins"`
	Managed bool      `json:"managed"`
}

// Map is a map.
type Map struct {
	// ID is the kernel's.
	ID uint32 `json:"id"`
	// Type is cilium/ebpf's name of the map type, such as PerCPUArray.
	Type string `json:"type"`
	// Name is as given on creation, cut to 15 bytes by the kernel.
	Name string `json:"name"`
	// KeySize and ValueSize are in bytes, MaxEntries counts entries.
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	// Flags are the map_flags.
	Flags uint32 `json:"flags"`
	// Frozen maps can no longer be written from user space.
	Frozen bool `json:"frozen"`
	// MemlockBytes is what the kernel charges for it.
	MemlockBytes uint64 `json:"memlockBytes"`
	// Programs are the ids of the programs that use it.
	Programs []uint32 `json:"programs"`
	// Holders, Pins and Managed are as for a Program; a map of a managed program
	// is managed.
	Holders []Process `json:"holders"`
	Pins    []string  `json:"pins"`
	Managed bool      `json:"managed"`
}

// Place is where a program is attached.
type Place struct {
	// Hook is in the words of package hook where it has a row, else the kernel's.
	Hook string `json:"hook"`
	// Target is an interface, a path, a function or what else the hook has, as
	// text; empty where it has none or the kernel does not tell.
	Target string `json:"target"`
	// Link is the id of the link that attaches it; 0 where none does, as with
	// clsact filters and XDP programs of ip-link.
	Link uint32 `json:"link,omitempty"`
}

// Process is a running process.
type Process = holders.Process

// Options say where to look. The zero value looks at the host Skep runs on.
type Options struct {
	// BPFFS is the mount of the BPF file system whose pins are read; empty means
	// /sys/fs/bpf.
	BPFFS string
	// Managed is the directory below which Skep pins what it runs; empty means
	// skep below BPFFS.
	Managed string
	// Proc is where processes are read from; empty means /proc.
	Proc string
	// Cgroups is the mount of the cgroup2 hierarchy; empty means that it is
	// found among the mounts.
	Cgroups string
}

// Of are the options for an agent with its pins in a folder; empty is the default of Managed.
func Of(pins string) Options {
	o := Options{Managed: pins}
	if pins != "" && !strings.HasPrefix(pins, "/sys/fs/bpf/") {
		o.BPFFS = pins
	}
	return o
}

func (o Options) defaults() Options {
	o.BPFFS = cmp.Or(o.BPFFS, "/sys/fs/bpf")
	o.Managed = cmp.Or(o.Managed, o.BPFFS+"/skep")
	o.Proc = cmp.Or(o.Proc, "/proc")
	return o
}

// List reads the inventory. The error wraps os.ErrPermission where the process
// lacks CAP_SYS_ADMIN.
func List(ctx context.Context, opts Options) (Inventory, error) {
	opts = opts.defaults()
	programs, err := listPrograms(ctx)
	if err != nil {
		return Inventory{}, explain("programs", err)
	}
	maps, err := listMaps(ctx)
	if err != nil {
		return Inventory{}, explain("maps", err)
	}
	places := newPlaces(opts)
	links, err := listLinks(ctx, places)
	if err != nil {
		return Inventory{}, explain("links", err)
	}
	held, err := holders.Processes(ctx, opts.Proc)
	if err != nil {
		return Inventory{}, fmt.Errorf("list holders: %w", err)
	}
	pinned, err := holders.Pins(ctx, opts.BPFFS)
	if err != nil {
		return Inventory{}, fmt.Errorf("list pins: %w", err)
	}
	note(links, opts.Managed, pinned)
	inv := Inventory{Programs: programs, Links: links, Maps: maps}
	unlinked := places.unlinked(ctx, inv)
	noteFilters(opts.Managed, pinned, unlinked)
	inv.join(opts.Managed, held, pinned, unlinked)
	return inv, nil
}

// explain says what a rejection by the kernel asks for.
func explain(what string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("list BPF %s: %w: looking objects up by id needs CAP_SYS_ADMIN; run as root or grant it", what, err)
	}
	return fmt.Errorf("list BPF %s: %w", what, err)
}
