package report

import (
	"slices"

	"github.com/skep-dev/skep/intent"
)

// State is what a reconcile decided for an application: one of Running, FallingBack, Staying and Unloading.
//
//sumtype:decl
type State interface{ decided() }

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

func (Running) decided()     {}
func (FallingBack) decided() {}
func (Staying) decided()     {}
func (Unloading) decided()   {}

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
//
//sumtype:decl
type Left interface{ left() }

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

func (Retry) left()  {}
func (Turn) left()   {}
func (Answer) left() {}
func (Ending) left() {}
func (Behind) left() {}

// Version is the one that is to run; nil where none is.
func (o *Outcome) Version() *intent.Opened {
	switch s := o.State.(type) {
	case Running:
		return s.Version
	case FallingBack:
		return s.To
	case Staying, Unloading:
	}
	return nil
}

// Hindrance is what the State waits for, or why it is no other; nil where there is nothing.
func (o *Outcome) Hindrance() Hindrance {
	switch s := o.State.(type) {
	case Running:
		return s.Awaits
	case FallingBack:
		return s.Why
	case Staying:
		return s.Why
	case Unloading:
		return s.Why
	}
	return nil
}

// Await has the State wait for what is pending, whatever hindered it before. Before there is one, nothing does.
func (o *Outcome) Await(p Pending) { o.hinder(p) }

// Refuse has the State wait for nothing, since what it waited for cannot be had.
func (o *Outcome) Refuse(err error) {
	o.Errs = append(o.Errs, err)
	o.left = slices.DeleteFunc(o.left, func(l Left) bool { return l == Answer{} })
	o.hinder(Refused{})
}

// hinder has why be what the State waits for, or why it is no other. The newest version that runs can only wait.
func (o *Outcome) hinder(why Hindrance) {
	switch s := o.State.(type) {
	case Running:
		pending, _ := why.(Pending)
		o.State = Running{s.Version, pending}
	case FallingBack:
		o.State = FallingBack{s.To, why}
	case Staying:
		o.State = Staying{why}
	case Unloading:
		o.State = Unloading{why}
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
	return !o.IsPending() && !slices.ContainsFunc(o.left, func(l Left) bool {
		switch l.(type) {
		case Answer, Ending:
			return true
		case Retry, Turn, Behind:
		}
		return false
	})
}

// IsDone reports whether nothing is left to do for an application before something changes.
func (o *Outcome) IsDone() bool {
	return (o.Hindrance() == nil || o.AwaitsMap()) && len(o.Errs) == 0 && !slices.ContainsFunc(o.left, func(l Left) bool {
		switch l.(type) {
		case Retry, Answer:
			return true
		case Turn, Ending, Behind:
		}
		return false
	})
}

// IsComing reports whether something is on its way that the next reconciles attach, or can.
func (o *Outcome) IsComing() bool {
	return o.Version() == nil && o.IsPending() || slices.ContainsFunc(o.left, func(l Left) bool {
		switch l.(type) {
		case Turn, Answer:
			return true
		case Retry, Ending, Behind:
		}
		return false
	})
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
