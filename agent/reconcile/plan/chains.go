package plan

import "slices"

// Chains are the XDP chains that are wanted. They follow changes of what is wanted: a change of an
// application costs what it has in chains, and not what all have.
type Chains struct {
	// want has Left, Out and Interim, as they are when Of is called.
	want   *Want
	labels map[Device]string
	// found are the chains that were found.
	found map[Device]*Chain
	// members are those that applications ask for and those of frozen ones, and of are the devices by uid where
	// there are any. given are the devices by uid of what found chains were given.
	members   map[Device][]Member
	of, given map[string][]Device
}

// NewChains returns the chains that are wanted.
func NewChains(want *Want, have State) *Chains {
	c := &Chains{want: want, labels: labelsOf(have.Interfaces), found: make(map[Device]*Chain, len(have.Chains)),
		members: make(map[Device][]Member, len(have.Interfaces)), of: map[string][]Device{}, given: map[string][]Device{}}
	for i := range have.Chains {
		chain := &have.Chains[i]
		c.found[chain.Device] = chain
		for _, m := range chain.given() {
			if on := c.given[m.UID]; len(on) == 0 || on[len(on)-1] != chain.Device {
				c.given[m.UID] = append(on, chain.Device)
			}
		}
	}
	for uid := range set(want.Frozen) {
		c.freeze(uid)
	}
	for i := range want.Applications {
		c.ask(&want.Applications[i])
	}
	return c
}

// Follow takes over that an application is wanted otherwise: app is nil where it is not to run. It
// returns the devices whose chains that may change.
func (c *Chains) Follow(uid string, app *Application, isFrozen bool) []Device {
	devices := c.of[uid]
	for _, d := range devices {
		c.remove(d, uid)
	}
	delete(c.of, uid)
	if app != nil {
		c.ask(app)
	}
	if isFrozen {
		c.freeze(uid)
	}
	return append(devices, c.of[uid]...)
}

// ask adds the members that an application asks for.
func (c *Chains) ask(app *Application) {
	c.of[app.UID] = slices.Grow(c.of[app.UID], len(app.Attachments))
	for i := range app.Attachments {
		if a := &app.Attachments[i]; a.Hook == XDP {
			c.add(a.Target.Device(), Member{
				UID: app.UID, Identity: app.Identity, Revision: app.Revision,
				Program: a.Program, Priority: a.Priority, AfterNamespaces: a.AfterNamespaces, ProceedOn: a.ProceedOn, Taken: app.Taken, Mode: a.XDPMode,
			})
		}
	}
}

// freeze adds the members of an application as they are found, but for those that are switched off: they may
// not run.
func (c *Chains) freeze(uid string) {
	for _, d := range c.given[uid] {
		for _, m := range c.found[d].given() {
			if m.UID == uid && !slices.Contains(c.found[d].Off, m) {
				c.add(d, m)
			}
		}
	}
}

func (c *Chains) add(d Device, m Member) {
	c.members[d], c.of[m.UID] = append(c.members[d], m), append(c.of[m.UID], d)
}

// remove takes the members of an application out of a chain; those that are last take their places.
func (c *Chains) remove(d Device, uid string) {
	all := c.members[d]
	for i := 0; i < len(all); {
		if all[i].UID != uid {
			i++
			continue
		}
		last := len(all) - 1
		all[i] = all[last]
		all = all[:last]
	}
	c.members[d] = all
}

// Devices are those that have a chain or are to have one, in order.
func (c *Chains) Devices() []Device {
	all := make([]Device, 0, len(c.members)+len(c.found))
	for d := range c.members {
		all = append(all, d)
	}
	for d := range c.found {
		if _, known := c.members[d]; !known {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, Device.Compare)
	return all
}

// Of returns the chain of a device with its members in the order in which they are to run; none where the
// device is not there. A chain that is left stays whole; one in the interim is as it is given.
func (c *Chains) Of(d Device) Chain {
	label, ok := c.labels[d]
	if !ok {
		return Chain{Device: d, Interface: Interface{Device: d}.Label()}
	}
	members, found := c.members[d], c.found[d]
	interim, isInterim := c.want.Interim[d]
	isLeft := found != nil && c.want.Left[d]
	switch {
	case isLeft:
		members = found.given()
	case isInterim:
		members = interim
	}
	members = slices.Clone(members)
	if !isLeft && len(c.want.Out[d]) > 0 {
		out := set(c.want.Out[d])
		members = slices.DeleteFunc(members, func(m Member) bool { return out[m.UID] })
	}
	if !isLeft {
		slices.SortFunc(members, func(a, b Member) int { return a.turn().Compare(b.turn()) })
	}
	return Chain{Device: d, Interface: label, Members: members}
}

// WantedChains returns, for each interface that has a chain or is to have one,
// the members in the order in which they are to run.
func WantedChains(want Want, have State) []Chain {
	chains := NewChains(&want, have)
	devices := chains.Devices()
	all := make([]Chain, 0, len(devices))
	for _, d := range devices {
		all = append(all, chains.Of(d))
	}
	return all
}

// Asked returns the members of chains that applications ask for, by device.
func Asked(want Want) map[Device][]Member {
	return NewChains(&Want{Applications: want.Applications}, State{}).members
}
