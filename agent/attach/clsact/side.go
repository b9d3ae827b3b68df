package clsact

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach/rtnl"
	"github.com/skep-dev/skep/agent/pods/netns"
)

// place is where a side has a filter. The kernel finds it there without a list, whatever number of
// others there is.
type place struct {
	pref   uint16
	handle uint32
	chain  uint32
}

// side is what is remembered of a side, so that it need not be listed to see what Skep's filters run.
type side struct {
	// places are those where filters of Skep's were put or seen.
	places map[place]bool
	// isWhole: none of Skep's is elsewhere, since a list was read whole, or each pref of the bands was asked for.
	isWhole bool
	// likely are the prefs that filters of Skep's ask for by their priority, which were asked for in the
	// look likelyIn. searched is the last pref that was asked for, one after the other.
	likely   map[uint16]bool
	likelyIn int
	searched uint16
	// found are the filters of Skep's that the kernel told of last, in the look foundIn; isFresh, while no change was asked for.
	found   []entry
	foundIn int
	isFresh bool
	// cut is why its list was not read whole; nil where it was. listedIn is the look of that list.
	cut      *PartialError
	listedIn int
	// others are the filters of others as of othersAt.
	others   []Other
	othersAt time.Time
	// usedAt is when it was asked for last.
	usedAt time.Time
}

// forgetAfter is how long a side is remembered that is not asked for.
const forgetAfter = 10 * time.Minute

// side returns what is remembered of a side.
func (t *Table) side(s Side) *side {
	if t.sides[s] == nil {
		if t.sides == nil {
			t.sides = map[Side]*side{}
		}
		t.sides[s] = &side{places: map[place]bool{}, likely: map[uint16]bool{}}
	}
	t.sides[s].usedAt = t.Clock()
	return t.sides[s]
}

// ours returns the filters of Skep's on a side in the order in which they run, as the kernel told in this
// look. Where more of them may be there, it fails with *PartialError beside those that were found. While
// there is no time for a pod, what was seen last counts.
func (t *Table) ours(s Side) ([]entry, error) {
	is := t.side(s)
	switch hasTime := t.timeLeft(s.Device) > 0; {
	case !is.isFresh:
	case is.isWhole && (is.foundIn == t.looks || !hasTime):
		return is.found, nil
	case !hasTime && is.cut != nil:
		return is.found, is.cut
	}
	return t.oursNow(s)
}

// oursNow is ours, asked for anew.
func (t *Table) oursNow(s Side) ([]entry, error) {
	is := t.side(s)
	var cut error
	if !is.isWhole {
		if cut = t.locate(s); cut != nil && !errors.As(cut, new(*PartialError)) {
			return nil, cut
		}
	}
	before := len(is.places)
	found, err := t.lookUp(s, slices.Collect(maps.Keys(is.places)))
	if errors.Is(err, netns.ErrGone) {
		delete(t.sides, s)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	clear(is.places)
	for _, e := range found {
		is.places[e.place] = true
	}
	is.found, is.foundIn, is.isFresh = found, t.looks, true
	if len(found) < before && is.isWhole && is.cut == nil && is.listedIn != t.looks {
		// One is not where it was. A list says whether it is elsewhere, unless that is not whole.
		if _, err := t.list(s); !errors.As(err, new(*PartialError)) {
			if err != nil {
				return nil, err
			}
			return t.oursNow(s)
		}
	}
	return found, cut
}

// locate looks for filters of Skep's by a list and, where that is not read whole, pref by pref.
func (t *Table) locate(s Side) (err error) {
	is := t.side(s)
	if is.searched == 0 {
		if _, err = t.list(s); !errors.As(err, new(*PartialError)) {
			return err
		}
	}
	if err := t.search(s); err != nil || is.isWhole {
		return err
	}
	return is.cut
}

// list reads the filters of a side, and remembers where those of Skep's are.
func (t *Table) list(s Side) ([]entry, error) {
	all, err := t.read(s)
	if errors.Is(err, netns.ErrGone) {
		delete(t.sides, s)
		return nil, nil
	}
	cut := new(PartialError)
	if err != nil && !errors.As(err, &cut) {
		return nil, err
	}
	is := t.side(s)
	if is.cut = nil; err != nil {
		is.cut = cut
	} else {
		is.isWhole = true
	}
	for _, e := range all {
		if _, ours := t.Owner(e.program); ours {
			is.places[e.place] = true
		}
	}
	return all, err
}

// Other is a filter that is not Skep's. Of those of one pref that are alike, the first stands for all.
type Other struct {
	// Program is 0 of a filter of another kind.
	Program ebpf.ProgramID
	Pref    uint16
}

// othersFor is how long a list of the filters of others counts.
const othersFor = 10 * time.Second

// Others returns the filters of others on a side that every packet meets, in the order in which they run, as far as
// they could be read in the last ten seconds.
func (t *Table) Others(s Side) []Other {
	if is := t.side(s); !is.othersAt.IsZero() && t.Clock().Sub(is.othersAt) < othersFor {
		return is.others
	}
	all, _ := t.list(s)
	var others []Other
	for _, e := range all {
		if _, ours := t.Owner(e.program); !ours && e.chain == 0 && e.handle != 0 {
			others = append(others, Other{e.program, e.pref})
		}
	}
	slices.SortStableFunc(others, func(a, b Other) int { return cmp.Compare(a.Pref, b.Pref) })
	is := t.side(s)
	is.others, is.othersAt = slices.Compact(others), t.Clock()
	return is.others
}

// nearby is how many prefs are asked for on either side of one where a filter is likely: neighbours in the order
// are next to each other, whatever prefs follow from their priorities.
const nearby = 64

// search asks for filters of Skep's at the prefs around those where one is likely and, where the pod has its
// turn, at those of all bands, from where it ended before. It leaves a quarter of the time to others.
func (t *Table) search(s Side) error {
	left := t.timeLeft(s.Device)
	if !t.isBounded(s.Device) || left == 0 {
		return nil
	}
	is, until := t.side(s), time.Now().Add(left*3/4)
	return t.asking(s, func(ask func(place) (entry, bool, error)) error {
		try := func(pref uint16) error {
			e, ok, err := ask(place{pref: pref, handle: handle})
			if _, ours := t.Owner(e.program); ok && ours {
				is.places[e.place] = true
			}
			return err
		}
		if is.likelyIn != t.looks {
			if err := is.tryLikely(until, try); err != nil {
				return err
			}
		}
		is.likelyIn = t.looks
		p := t.pod(s.Device.NetnsID)
		for p.hasTurn && is.searched < forTC.last && time.Now().Before(until) {
			if err := try(is.searched + 1); err != nil {
				return err
			}
			is.searched++
			p.isSearching = true
		}
		is.isWhole = is.searched == forTC.last
		return nil
	})
}

// tryLikely tries the prefs around those where a filter is likely, at first that and those behind it.
func (is *side) tryLikely(until time.Time, try func(pref uint16) error) error {
	for at := range is.likely {
		first := max(at, nearby+1)
		for _, from := range []uint16{at, first - nearby} {
			for pref := from; pref < min(from+nearby, forTC.last) && time.Now().Before(until); pref++ {
				if err := try(pref); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lookUp returns the filters at some places, in the order in which they run, that are of Skep's.
func (t *Table) lookUp(s Side, places []place) (all []entry, err error) {
	if len(places) == 0 {
		return nil, nil
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.pref, b.pref), cmp.Compare(a.chain, b.chain), cmp.Compare(a.handle, b.handle))
	})
	err = t.asking(s, func(ask func(place) (entry, bool, error)) error {
		for _, at := range places {
			e, ok, err := ask(at)
			if err != nil {
				return err
			}
			if _, ours := t.Owner(e.program); ok && ours {
				all = append(all, e)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look up %s filters of interface %s: %w", s, s.Device, err)
	}
	return all, nil
}

// asking calls do with what looks a filter of a side up by its place; not ok where there is none.
func (t *Table) asking(s Side, do func(ask func(place) (entry, bool, error)) error) error {
	return t.within(s.Device, func() error {
		c, err := rtnl.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		return do(func(at place) (entry, bool, error) {
			e, ok, err := get(c, s, at)
			if _, ours := t.Owner(e.program); ok && ours && s.Egress {
				ok, err = isOn(s, at.pref)
			}
			return e, ok, err
		})
	})
}

// isOn reports whether the filters at a pref are on the side: a qdisc of the kind ingress has the same
// filters on either (ingress_tcf_block of net/sched/sch_ingress.c), and a list alone tells which.
func isOn(s Side, pref uint16) (bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, unix.NLM_F_DUMP)
	request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.Device.Index), Parent: s.parent(), Info: uint32(pref) << 16})
	var found, is bool
	err := rtnl.List(request, unix.RTM_NEWTFILTER, rtnl.Limits{Entries: 1, Until: time.Now().Add(patience)}, func(message []byte) error {
		_, parent, err := parse(message)
		found, is = err == nil, parent == s.parent()
		return err
	})
	if found {
		return is, nil
	}
	return false, err
}

// get asks for one filter, in the network namespace of the connection.
func get(c *rtnl.Conn, s Side, at place) (entry, bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETTFILTER, 0)
	request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(s.Device.Index), Parent: s.parent(), Handle: at.handle,
		Info: netlink.MakeHandle(at.pref, nl.Swap16(unix.ETH_P_ALL))})
	request.AddData(nl.NewRtAttr(nl.TCA_CHAIN, nl.Uint32Attr(at.chain)))
	message, err := c.Ask(request, unix.RTM_NEWTFILTER)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP):
		// There is no such filter, no such chain or qdisc, no such device; or others share the
		// block, which takes no filter of Skep's (tc_get_tfilter of net/sched/cls_api.c).
		return entry{}, false, nil
	case err != nil:
		return entry{}, false, err
	}
	e, _, err := parse(message)
	e.place = at
	return e, err == nil, err
}
