package act

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// chainSetter gives interfaces their chains.
type chainSetter struct{ *Options }

// setChain gives an interface's link the program of the members.
func (cs *chainSetter) setChain(a plan.Action) error {
	c := cs.Look.Chain(a.Device)
	if len(a.Members) == 0 {
		return cs.Look.Set.RemoveChain(c)
	}
	v, err := cs.versionOf(a, c)
	if err != nil {
		return err
	}
	if err := cs.runVersion(a, v, c); err != nil {
		if c = cs.Look.Chain(a.Device); c == nil || c.Version != v {
			cs.Look.Set.Unused.PutChain("chain that was not attached", v)
		}
		return err
	}
	// Who waited for this one is next.
	cs.Decisions.Again = cs.Decisions.Again || cs.Chains.Waiting.On(a.Device)
	return cs.dropFormer(cs.Look.Chain(a.Device))
}

// runVersion pins a version and has the interface's link run it.
func (cs *chainSetter) runVersion(a plan.Action, v *pins.ChainVersion, c *pins.Chain) error {
	if err := cs.Pins.PinChainVersion(a.Device, v); err != nil {
		return err
	}
	if c == nil {
		return cs.attachChain(a, v, nil)
	}
	if mode := plan.ModeOf(a.Members); mode != "" && c.Mode != "" && mode != c.Mode {
		return cs.changeMode(a, v, c)
	}
	err := swap(c.Link, v.Program)
	switch {
	case err == nil:
		cs.takeVersion(c, v)
		cs.Look.Changed(cs.Pins.ChainPath(a.Device))
		return nil
	case isUnusable(err):
		return cs.attachChain(a, v, c)
	case c.Mode == v1alpha1.XDPNative && attach.DriverRefuses(err):
		return cs.goWithoutDriver(a, v, c, err)
	}
	return fmt.Errorf("update chain of %s: %w", a.Interface, err)
}

// goWithoutDriver has an interface run a version generically that its driver does not take, as it took the former one. Where a
// member asks for the driver, the former version stays: the next reconcile leaves out who joined.
func (cs *chainSetter) goWithoutDriver(a plan.Action, v *pins.ChainVersion, c *pins.Chain, err error) error {
	if plan.ModeOf(a.Members) == "" {
		return cs.changeMode(a, v, c)
	}
	cs.Decisions.Again = true
	return fmt.Errorf("update chain of %s: %w", a.Interface,
		attach.NewDriverError(cs.targetOf(a), cs.Look.Interface(a.Device).MTU, cs.LookupRound.Host(), err))
}

// dropFormer removes the pins of the versions that an interface's link does not
// run any more.
func (cs *chainSetter) dropFormer(c *pins.Chain) error {
	if err := cs.Pins.DropChainVersions(c); err != nil {
		return err
	}
	c.Former = nil
	return nil
}

// versionOf returns the chain that was loaded for the action, or the one that
// runs, where only its link is to be made anew.
func (cs *chainSetter) versionOf(a plan.Action, c *pins.Chain) (*pins.ChainVersion, error) {
	if v := cs.Chains.Take(a.Device, a.Members); v != nil {
		return v, nil
	}
	if c != nil && c.Version != nil && slices.Equal(c.Version.Members, a.Members) {
		return c.Version, nil
	}
	return cs.Chains.Load(a.Device, a.Members)
}

func (cs *chainSetter) takeVersion(c *pins.Chain, v *pins.ChainVersion) {
	if c.Version != nil && c.Version != v {
		c.Former = append(c.Former, c.Version.Members...)
		cs.Look.Set.Unused.PutChain("replaced chain", c.Version)
	}
	c.Version = v
}

// changeMode has an interface run a version in another mode. The kernel runs XDP in one mode at a
// time, so that packets pass unseen for a moment. Where the new mode cannot be had, the former
// version comes back.
func (cs *chainSetter) changeMode(a plan.Action, v *pins.ChainVersion, c *pins.Chain) error {
	former, mode := c.Version, c.Mode
	pins.Sever(c.Link)
	err := cs.attachChain(a, v, c)
	if err == nil || former == nil {
		return err
	}
	back := plan.Action{Verb: plan.SetChain, Device: a.Device, Interface: a.Interface, Members: former.Members}
	err = errors.Join(err, cs.attachChainAs(mode, back, former, c))
	// What was pinned of the new version is removed with former ones.
	c = cs.Look.Chain(a.Device)
	c.Former = append(c.Former, v.Members...)
	return err
}

func (cs *chainSetter) attachChain(a plan.Action, v *pins.ChainVersion, old *pins.Chain) error {
	return cs.attachChainAs(plan.ModeOf(a.Members), a, v, old)
}

// attachChainAs attaches a version in a mode, and pins the link in the place of the old one.
func (cs *chainSetter) attachChainAs(mode v1alpha1.XDPMode, a plan.Action, v *pins.ChainVersion, old *pins.Chain) error {
	on, fallback := cs.targetOf(a), ""
	l, err := attach.To(attach.Request{Program: v.Program, Host: cs.LookupRound.Host(),
		Attachment: plan.Attachment{Program: describeMembers(a.Members), Hook: plan.XDP, XDPMode: mode, Target: on},
		Fallback: func(driver *attach.DriverError) {
			fallback = stayGeneric(driver)
			cs.NoDriver(a.Device, driver)
		}})
	if driver := new(attach.DriverError); errors.As(err, &driver) {
		// The next reconcile goes on without those that need the driver or, where the first programs of an interface come
		// together, without those that the driver may not take.
		if old != nil || len(plan.UIDsOf(a.Members)) == 1 {
			cs.NoDriver(a.Device, driver)
		}
		cs.Decisions.Again = true
	}
	if err != nil {
		return err
	}
	if err := cs.Pins.PinChainLink(on, fallback, l); err != nil {
		return errors.Join(err, l.Close())
	}
	c := &pins.Chain{Device: a.Device, Target: on, Link: l, Version: v, Fallback: fallback}
	if c.Mode, err = attach.XDPModeOf(a.Device, cs.LookupRound.Host().Namespaces); err != nil {
		cs.Log.Warn("look how an interface runs XDP", "interface", a.Interface, "error", err)
	}
	if old != nil {
		c.Former, c.Version = old.Former, old.Version
		cs.takeVersion(c, v)
		cs.Look.Set.Release("severed link of chain", old.Link)
	}
	cs.Look.Set.PutChain(c)
	cs.Look.Changed(cs.Pins.ChainPath(a.Device))
	return nil
}

// stayGeneric says why a chain that leaves its mode open does not run in the driver and, where that may change, what brings it
// back: the kernel takes no native program beside a generic one, so that each attempt lets packets pass.
func stayGeneric(driver *attach.DriverError) string {
	if driver.IsWithoutXDP() {
		return driver.Error()
	}
	return fmt.Sprintf("the driver did not take the chain when it was made, at MTU %d (%v); it does not return there by itself, since packets pass without XDP "+
		"meanwhile: when the MTU is lower, or all its programs are built as SEC(\"xdp.frags\"), set xdpMode: Native for one of its programs", driver.MTU, driver.Err)
}

// targetOf is the interface of an action on a chain.
func (cs *chainSetter) targetOf(a plan.Action) plan.Target {
	i := cs.Look.Interface(a.Device)
	return plan.Target{Ifindex: i.Device.Index, Interface: i.Name, NetnsID: i.Device.NetnsID, In: i.In}
}

func describeMembers(members []plan.Member) string {
	if len(members) == 1 {
		return members[0].Program
	}
	return fmt.Sprintf("a chain of %d programs", len(members))
}
