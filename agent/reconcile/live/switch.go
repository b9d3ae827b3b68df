package live

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/program/chain"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/pins"
)

// SwitchOff has nothing run of the applications that are gone, where that takes no more than writes
// of maps: their programs behind a guard, whose scopes it empties, and their members of chains,
// of which all others go on as they do. What it can do it does, whatever fails, and returns the
// errors by UID. The links stay: to close them, and to load a chain without the members, may take long.
func (s *Set) SwitchOff(gone []string) map[string]error {
	failed := s.switchMembers(func(_ plan.Device, m plan.Member, now bool) bool { return now || slices.Contains(gone, m.UID) })
	for _, uid := range gone {
		if err := s.emptyScopes(uid); err != nil {
			failed[uid] = errors.Join(failed[uid], err)
		}
	}
	return failed
}

// severFor is how long Sever takes at most. To detach a program from TCX takes the kernel 10 ms.
const severFor = 50 * time.Millisecond

// Sever has the kernel run nothing more of the applications that are gone, where one call ends a link: in a bounded time, of those
// with the fewest links first. The pins are left to Detach, and so are links that end with their last descriptor.
func (s *Set) Sever(gone []string) {
	began := time.Now()
	fewest := slices.SortedStableFunc(slices.Values(gone), func(a, b string) int { return cmp.Compare(len(s.links[a]), len(s.links[b])) })
	for _, uid := range fewest {
		for l := range s.LinksOf(uid) {
			if time.Since(began) >= severFor {
				return
			}
			if _, isFilter := l.Link.(*clsact.Filter); !isFilter {
				pins.Sever(l.Link)
			}
		}
	}
}

// SwitchOffMembers has the chains of devices run without some of their members. It returns the errors by UID.
func (s *Set) SwitchOffMembers(leaving map[plan.Device][]plan.Member) map[string]error {
	return s.switchMembers(func(d plan.Device, m plan.Member, now bool) bool { return now || slices.Contains(leaving[d], m) })
}

// SwitchOn has the members of chains run again that were switched off, where exactly these are asked for. It returns
// the errors by UID.
func (s *Set) SwitchOn(asked map[plan.Device][]plan.Member) map[string]error {
	return s.switchMembers(func(d plan.Device, m plan.Member, now bool) bool { return now && !slices.Contains(asked[d], m) })
}

func (s *Set) switchMembers(isOff func(d plan.Device, m plan.Member, now bool) bool) (failed map[string]error) {
	failed = map[string]error{}
	for _, device := range slices.SortedFunc(maps.Keys(s.chains), plan.Device.Compare) {
		v := s.chains[device].Version
		if v == nil {
			continue
		}
		err := v.Switch(func(m plan.Member, now bool) bool { return isOff(device, m, now) })
		// One of before the switches is left by a load alone.
		if err == nil || errors.Is(err, chain.ErrNoSwitch) {
			continue
		}
		// One write is for all members.
		missed := slices.DeleteFunc(slices.Clone(v.Members), func(m plan.Member) bool { return isOff(device, m, v.IsOff(m)) == v.IsOff(m) })
		for _, uid := range plan.UIDsOf(missed) {
			failed[uid] = errors.Join(failed[uid], fmt.Errorf("interface %s: %w", device, err))
		}
	}
	return failed
}

// emptyScopes has the guarded programs of an application run for no task.
func (s *Set) emptyScopes(uid string) error {
	var errs []error
	for _, r := range s.revisions[uid] {
		for name, scope := range r.Scopes() {
			if err := scope.Set(nil); err != nil {
				errs = append(errs, fmt.Errorf("empty scope %s of application %s: %w", name, uid, err))
			}
		}
	}
	return errors.Join(errs...)
}
