package live

import (
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/plan"
)

// Switch has nothing run of the applications that are gone, where that takes no more than writes
// of maps: their programs behind a guard, whose scopes it empties, and their members of chains,
// of which all others run, but for those of frozen applications, which stay as they are. What it can do it does, whatever
// fails. The links stay: to close them, and to load a chain without the members, may take long.
func (s *Set) Switch(gone, frozen []string) error {
	var errs []error
	is := map[string]bool{}
	for _, uid := range gone {
		is[uid] = true
	}
	for _, uid := range frozen {
		delete(is, uid)
	}
	for uid := range is {
		errs = append(errs, s.emptyScopes(uid))
	}
	for device, c := range s.Chains {
		if c.Version == nil {
			continue
		}
		// One of before the switches is left by a load alone.
		isOff := func(uid string, now bool) bool { return is[uid] || now && slices.Contains(frozen, uid) }
		if err := c.Version.Switch(isOff); err != nil && !errors.Is(err, chain.ErrNoSwitch) {
			errs = append(errs, fmt.Errorf("interface %s: %w", device, err))
		}
	}
	return errors.Join(errs...)
}

// emptyScopes has the guarded programs of an application run for no task.
func (s *Set) emptyScopes(uid string) error {
	var errs []error
	for _, r := range s.Revisions[uid] {
		for name, scope := range r.Scopes() {
			if err := scope.Set(nil); err != nil {
				errs = append(errs, fmt.Errorf("empty scope %s of application %s: %w", name, uid, err))
			}
		}
	}
	return errors.Join(errs...)
}

// IsOff reports whether an interface's chain has the members of an application switched off.
func (s *Set) IsOff(d plan.Device, uid string) bool {
	c := s.Chains[d]
	return c != nil && c.Version != nil && c.Version.IsOff(uid)
}
