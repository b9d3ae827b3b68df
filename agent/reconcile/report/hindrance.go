package report

// Hindrance is what keeps the newest version of an application from running on a node: one of Refused,
// AwaitingMap, Fetching, Loading and Queued. Where there is none, that version runs, or its application goes.
type Hindrance interface{ hinders() }

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

// IsPending reports whether the newest version is on its way, or waits for what is.
func (o *Outcome) IsPending() bool {
	switch o.Hindrance.(type) {
	case Fetching, Loading, Queued:
		return true
	}
	return false
}

// AwaitsMap reports whether the newest version waits for another application's map. That comes with a load,
// or with an intent.
func (o *Outcome) AwaitsMap() bool {
	_, is := o.Hindrance.(AwaitingMap)
	return is
}

// IsSettled reports whether nothing of an application is on its way: neither a version nor an end.
func (o *Outcome) IsSettled() bool { return !o.IsPending() && !o.Unsettled && o.Closing == "" }

// IsDone reports whether nothing is left to do for an application before something changes.
func (o *Outcome) IsDone() bool {
	return (o.Hindrance == nil || o.AwaitsMap()) && len(o.Errs) == 0 && !o.Tried && !o.Unsettled
}
