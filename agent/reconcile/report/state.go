package report

import (
	"slices"

	"github.com/skep-dev/skep/intent"
)

// State is what a reconcile decided for an application: one of Running, FallingBack, Staying and Unloading.
//
//sumtype:decl
type State interface {
	// decided returns the version that is to run, and what keeps the newest one or a part of it from that; nil where there is none.
	decided() (*intent.Opened, Hindrance)
	// hindered is the State that has why in the place of what hindered it before. The newest version that runs can only wait.
	hindered(why Hindrance) State
}

// Running has the newest version run. Awaits is what a part of it waits for; nil where nothing does.
type Running struct {
	Version *intent.Opened
	Awaits  Pending
}

// FallingBack has another version run in the place of the newest, and Why is what keeps that from running.
type FallingBack struct {
	To  *intent.Opened
	Why Hindrance
}

// Staying leaves what runs as it is, and Why is what keeps the newest version from running.
type Staying struct{ Why Hindrance }

// Unloading has nothing run. Why is what keeps the newest version from running, or what its end waits for; nil where
// there is neither.
type Unloading struct{ Why Hindrance }

func (s Running) decided() (*intent.Opened, Hindrance)     { return s.Version, s.Awaits }
func (s FallingBack) decided() (*intent.Opened, Hindrance) { return s.To, s.Why }
func (s Staying) decided() (*intent.Opened, Hindrance)     { return nil, s.Why }
func (s Unloading) decided() (*intent.Opened, Hindrance)   { return nil, s.Why }

func (s Running) hindered(why Hindrance) State {
	s.Awaits, _ = why.(Pending)
	return s
}
func (s FallingBack) hindered(why Hindrance) State { return FallingBack{s.To, why} }
func (Staying) hindered(why Hindrance) State       { return Staying{why} }
func (Unloading) hindered(why Hindrance) State     { return Unloading{why} }

// Hindrance is what keeps a version from running: one of Refused and AwaitingMap, or Pending.
//
//sumtype:decl
type Hindrance interface{ hinders() }

// Pending is a version that is on its way, or waits for what is: one of Fetching, Loading and Queued.
type Pending interface {
	Hindrance
	ends()
}

// Refused cannot be had here, as the errors of the outcome say; where there are none, what the last status
// says holds on.
type Refused struct{}

// AwaitingMap is without the map of another application that it takes, as Why says.
type AwaitingMap struct{ Why string }

// Fetching is without its object, which is on its way.
type Fetching struct{}

// Loading is with the kernel's verifier.
type Loading struct{}

// Queued waits until something else is done, as Why says.
type Queued struct{ Why string }

func (Refused) hinders()     {}
func (AwaitingMap) hinders() {}
func (Fetching) hinders()    {}
func (Loading) hinders()     {}
func (Queued) hinders()      {}

func (Fetching) ends() {}
func (Loading) ends()  {}
func (Queued) ends()   {}

// Left is what is left to do for an application, whatever its State is: one of Retry, Turn, Answer, Ending and Behind.
type Left interface{ keeps() keeps }

// keeps is what something that is left keeps from others.
type keeps struct {
	// unsettled: who waits in Settled waits for it. undone: the loop does not rest. coming: a container that is about to start
	// waits, since the next reconciles attach something.
	unsettled, undone, coming bool
}

// Retry is what was tried in this reconcile, and failed.
type Retry struct{}

// Turn is an action that waits for the next reconcile.
type Turn struct{}

// Answer is on its way: that of a look-up, of the kernel on the end of a link, or a version beside the newest.
type Answer struct{}

// Ending is what the kernel ends next to the loop, which that end wakes. Why says what that is.
type Ending struct{ Why string }

// Behind is the chain of others that it waits for, which could not be changed, or is being tried again.
type Behind struct{}

func (Retry) keeps() keeps  { return keeps{undone: true} }
func (Turn) keeps() keeps   { return keeps{coming: true} }
func (Answer) keeps() keeps { return keeps{unsettled: true, undone: true, coming: true} }
func (Ending) keeps() keeps { return keeps{unsettled: true} }
func (Behind) keeps() keeps { return keeps{} }

// decided is that of the State.
func (o *Outcome) decided() (*intent.Opened, Hindrance) {
	if o.State == nil {
		return nil, nil
	}
	return o.State.decided()
}

// Version is the one that is to run; nil where none is.
func (o *Outcome) Version() *intent.Opened {
	runs, _ := o.decided()
	return runs
}

// Hindrance is what the State waits for, or why it is no other; nil where there is nothing.
func (o *Outcome) Hindrance() Hindrance {
	_, why := o.decided()
	return why
}

// Await has the State wait for what is pending.
func (o *Outcome) Await(p Pending) { o.hinder(p) }

// Refuse has the State wait for nothing, since what it waited for cannot be had.
func (o *Outcome) Refuse(err error) {
	o.Errs = append(o.Errs, err)
	o.left = slices.DeleteFunc(o.left, func(l Left) bool { return l == Answer{} })
	o.hinder(Refused{})
}

// hinder has another thing hinder the State. Before there is one, nothing does.
func (o *Outcome) hinder(why Hindrance) {
	if o.State != nil {
		o.State = o.State.hindered(why)
	}
}

// Leave notes that something is left to do.
func (o *Outcome) Leave(l Left) {
	if !o.HasLeft(l) {
		o.left = append(o.left, l)
	}
}

// HasLeft reports whether that is left to do.
func (o *Outcome) HasLeft(l Left) bool { return slices.Contains(o.left, l) }

// IsPending reports whether the newest version is on its way, or waits for what is.
func (o *Outcome) IsPending() bool {
	_, is := o.Hindrance().(Pending)
	return is
}

// AwaitsMap reports whether the newest version waits for another application's map. That comes with a load,
// or with an intent.
func (o *Outcome) AwaitsMap() bool {
	_, is := o.Hindrance().(AwaitingMap)
	return is
}

// IsWhole reports whether the State is what the newest intent asks for, and nothing is wrong with it.
func (o *Outcome) IsWhole() bool { return o.Hindrance() == nil && len(o.Errs) == 0 }

// IsSettled reports whether nothing of an application is on its way: neither a version nor an end.
func (o *Outcome) IsSettled() bool {
	return !o.IsPending() && !o.leaves(func(k keeps) bool { return k.unsettled })
}

// IsDone reports whether nothing is left to do for an application before something changes.
func (o *Outcome) IsDone() bool {
	return (o.Hindrance() == nil || o.AwaitsMap()) && len(o.Errs) == 0 && !o.leaves(func(k keeps) bool { return k.undone })
}

// IsComing reports whether something is on its way that the next reconciles attach, or can.
func (o *Outcome) IsComing() bool {
	return o.Version() == nil && o.IsPending() || o.leaves(func(k keeps) bool { return k.coming })
}

// leaves reports whether something is left that keeps such a thing from others.
func (o *Outcome) leaves(such func(keeps) bool) bool {
	return slices.ContainsFunc(o.left, func(l Left) bool { return such(l.keeps()) })
}

// WhatEnds says what the kernel is ending; empty where it ends nothing.
func (o *Outcome) WhatEnds() string {
	for _, l := range o.left {
		if one, is := l.(Ending); is {
			return one.Why
		}
	}
	return ""
}
