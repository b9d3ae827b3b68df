package agent

import (
	"time"

	"github.com/skep-dev/skep/agent/reconcile/act"
	"github.com/skep-dev/skep/agent/reconcile/build"
)

// Observer counts what an agent does to its kernel. It is called from one
// goroutine at a time.
type Observer interface {
	// Loaded is told how long it took to load something, and what came of it.
	Loaded(what Loadable, took time.Duration, err error)
	// Attached is told how long it took to attach a program to a hook of the
	// table, or to swap it in place, and what came of it.
	Attached(hook string, took time.Duration, err error)
	// Healed is told that something was put back that somebody else changed.
	Healed(what Drift)
}

// Loadable is what is loaded into the kernel at once.
type Loadable = build.Loadable

// What is loaded: the programs and maps of an application, or one program out
// of several applications' for one interface.
const (
	LoadRevision = build.RevisionLoad
	LoadChain    = build.ChainLoad
)

// Loadables are all of them.
func Loadables() []Loadable { return []Loadable{LoadRevision, LoadChain} }

// Drift says how the kernel differs from what was made of it.
type Drift = act.Drift

// The kinds of drift: a pin is gone, a link was severed, or another program
// runs under it.
const (
	Unpinned = act.Unpinned
	Detached = act.Detached
	Replaced = act.Replaced
)

// Drifts are all of them.
func Drifts() []Drift { return []Drift{Unpinned, Detached, Replaced} }

// nop counts nothing.
type nop struct{}

// Loaded implements Observer.
func (nop) Loaded(Loadable, time.Duration, error) {}

// Attached implements Observer.
func (nop) Attached(string, time.Duration, error) {}

// Healed implements Observer.
func (nop) Healed(Drift) {}
