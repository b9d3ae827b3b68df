package plan

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Interface is a network device that exists on the node.
type Interface struct {
	Device Device
	Name   string
	// In says whose the network namespace is, where it is not the agent's own.
	In string
	// Primary devices carry a default route.
	Primary bool
	// Kind is the link type of ip-link(8); empty where the device has none, as most of its own
	// have. Physical devices are on a bus.
	Kind     string
	Physical bool
	// Master is the name of the bond, bridge or the like that the device is a member of.
	Master string
	// MTU is in bytes.
	MTU int
	// XDPMode is how the device runs an XDP program, whosever; empty where it runs none.
	XDPMode v1alpha1.XDPMode
}

// Label names the interface for people and in what a node remembers; one without a name by its
// index.
func (i Interface) Label() string {
	return Label(cmp.Or(i.Name, fmt.Sprintf("#%d", i.Device.Index)), i.Device.NetnsID, i.In)
}

// InterfacesIn returns the interfaces of one network namespace.
func InterfacesIn(netnsID uint64, all []Interface) []Interface {
	var those []Interface
	for _, i := range all {
		if i.Device.NetnsID == netnsID {
			those = append(those, i)
		}
	}
	return those
}

// Select returns the interfaces that a definition chooses, in the given order.
// A selection that chooses nothing by its wording, or whose pattern
// path.Match cannot read, is an error: it never means every interface.
func Select(s *v1alpha1.Interfaces, all []Interface) ([]Interface, error) {
	if s == nil || (len(s.Names) == 0 && !s.Primary) {
		return nil, errors.New("interfaces: neither names nor primary is given; name the interfaces, or set primary: true")
	}
	if err := checkPatterns("names", s.Names); err != nil {
		return nil, err
	}
	if err := checkPatterns("exclude", s.Exclude); err != nil {
		return nil, err
	}
	regex, err := s.Expression()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	var chosen []Interface
	for _, i := range all {
		in := s.Primary && i.Primary || matches(s.Names, i.Name)
		if in && !matches(s.Exclude, i.Name) && i.isOf(s) && (regex == nil || regex.MatchString(i.Name)) {
			chosen = append(chosen, i)
		}
	}
	return chosen, nil
}

// isOf reports whether the interface is of a kind that is kept, and a member of what is named.
func (i Interface) isOf(s *v1alpha1.Interfaces) bool {
	kept := len(s.Kinds) == 0 || i.Kind != "" && slices.Contains(s.Kinds, i.Kind) || i.Physical && slices.Contains(s.Kinds, v1alpha1.KindPhysical)
	return kept && (s.MemberOf == "" || i.Master == s.MemberOf)
}

func checkPatterns(field string, patterns []string) error {
	for _, p := range patterns {
		if p == "" {
			return fmt.Errorf("interfaces.%s: an empty name chooses nothing; take it away", field)
		}
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("interfaces.%s: %q is not a pattern: %w; close its bracket, or escape it with a backslash", field, p, err)
		}
	}
	return nil
}

// matches reports whether any pattern takes the name. The patterns were checked.
func matches(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok {
			return true
		}
	}
	return false
}
