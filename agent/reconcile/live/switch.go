package live

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// SwitchOff has nothing run of the applications that are off, where that takes no more than writes
// of maps: their programs behind a guard, whose scopes it empties, and their members of chains,
// of which all others run. What it can do it does, whatever fails. The links stay: to close
// them, and to load a chain without the members, may take long.
func (s *Set) SwitchOff(isOff func(uid string) bool) error {
	var errs []error
	for uid, revisions := range s.Revisions {
		if !isOff(uid) {
			continue
		}
		for _, r := range revisions {
			for name, scope := range r.Scopes() {
				if err := scope.Set(nil); err != nil {
					errs = append(errs, fmt.Errorf("empty scope %s of application %s: %w", name, uid, err))
				}
			}
		}
	}
	for device, c := range s.Chains {
		if c.Version == nil {
			continue
		}
		// One of before the switches is left by a load alone.
		if err := c.Version.Switch(isOff); err != nil && !errors.Is(err, chain.ErrNoSwitch) {
			errs = append(errs, fmt.Errorf("interface %s: %w", device, err))
		}
	}
	return errors.Join(errs...)
}

// IsOff reports whether an interface's chain has the members of an application switched off.
func (s *Set) IsOff(d plan.Device, uid string) bool {
	c := s.Chains[d]
	return c != nil && c.Version != nil && c.Version.IsOff(uid)
}
