package targets

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/state/retry"
	"github.com/skep-dev/skep/api/v1alpha1"
)

// Namespaces are the network namespaces beside the agent's own, as they are known when a
// reconcile begins. The zero value has none.
type Namespaces struct {
	// All are all that exist on the node. What runs in a namespace that is not one of them
	// is forgotten.
	All []netns.Namespace
	// Choose returns the inodes of those that an attachment is for; not ok where it is for
	// the agent's own. Where it fails, it may be for others beside these. Nil has every attachment be for the
	// agent's own. It must not block.
	Choose func(application v1alpha1.Identity, at v1alpha1.Attachment) (ids []uint64, ok bool, err error)
	// Err says why they are not known now, as before the container runtime has answered. What
	// runs in a namespace is left as it is then, and nothing is attached in another.
	Err error
}

// chosen returns the namespaces of an attachment, each once; not ok where it is for the
// agent's own.
func (n Namespaces) chosen(application v1alpha1.Identity, at v1alpha1.Attachment) (ids []uint64, ok bool, err error) {
	if n.Choose == nil {
		return nil, false, nil
	}
	ids, ok, err = n.Choose(application, at)
	ids = slices.Sorted(slices.Values(ids))
	if n.Err != nil {
		return nil, ok, n.Err
	}
	return slices.Compact(ids), ok, err
}

// Asked is one attachment of an application's definition.
type Asked struct {
	Application v1alpha1.Identity
	At          v1alpha1.Attachment
}

// Look reads the network devices of the agent's own network namespace and of those others that
// attachments choose or that programs of Skep's run in. Which of them are primary is looked up
// only for withPrimary. The rest of the reconcile goes by what it read.
func (r *Round) Look(known Namespaces, attachments []Asked, withPrimary bool, now Running) ([]plan.Interface, error) {
	r.namespaces, r.running = known, now
	r.there, r.unread = map[uint64]bool{}, map[uint64]error{}
	r.host.Namespaces.Renew(known.All, known.Err)
	all, err := devicesOf(netns.Namespace{}).list(sought{primary: withPrimary}, now)
	if err != nil {
		return nil, err
	}
	wanted := known.sought(attachments, withPrimary, now)
	for _, id := range known.chosenBy(r.pods.isNew, attachments) {
		if last := r.seen[id]; last != nil {
			last.due = true
		}
	}
	began, ids := time.Now(), r.inTurn(slices.Sorted(maps.Keys(wanted)))
	for i, id := range ids {
		over := i > 0 && time.Since(began) > podsBudget
		all = append(all, r.lookInto(id, over, wanted[id], now)...)
		if !over {
			r.lastRead = id
		}
	}
	maps.DeleteFunc(r.seen, func(id uint64, _ *reading) bool { _, is := wanted[id]; return !is })
	r.interfaces = all
	return all, nil
}

// chosenBy returns the namespaces that applications choose whose intents are new.
func (n Namespaces) chosenBy(isNew func(v1alpha1.Identity) bool, attachments []Asked) (all []uint64) {
	for _, one := range attachments {
		if isNew(one.Application) {
			ids, _, _ := n.chosen(one.Application, one.At)
			all = append(all, ids...)
		}
	}
	return all
}

// sought returns what attachments choose in other network namespaces, by their inodes, and those
// that something runs in.
func (n Namespaces) sought(attachments []Asked, withPrimary bool, now Running) map[uint64]sought {
	all := map[uint64]sought{}
	add := func(id uint64, names ...string) {
		if _, ok := all[id]; !ok {
			all[id] = sought{primary: withPrimary, names: map[string]bool{}}
		}
		for _, name := range names {
			all[id].names[name] = true
		}
	}
	for d := range now.UIDs {
		add(d.NetnsID)
	}
	for _, one := range attachments {
		ids, _, _ := n.chosen(one.Application, one.At)
		for _, id := range ids {
			add(id, inFull(one.At.Interfaces)...)
		}
	}
	delete(all, 0)
	return all
}

// inTurn has namespaces follow the one that the last reconcile read last.
func (r *Round) inTurn(ids []uint64) []uint64 {
	next, _ := slices.BinarySearch(ids, r.lastRead+1)
	return slices.Concat(ids[next:], ids[:next])
}

// errLater is the error of a network namespace whose turn is in the next reconcile.
var errLater = errors.New("those of other pods are read first")

// reading is how another network namespace was read last.
type reading struct {
	// devices are those that were read.
	devices []plan.Interface
	// due: it is to be read, since it is new or changed, or an intent of it is.
	due bool
	// full is Lookups.full as it was read.
	full uint64
	// err says why it could not be read, failures times in a row; nil where it could. The next
	// attempt is at again.
	err      error
	failures int
	again    time.Time
}

// rereading is when a network namespace is read again that could not be read.
var rereading = retry.BackOff{First: time.Second, Most: 30 * time.Second}

func (l *reading) fail(now time.Time, full uint64, err error) {
	l.due, l.full, l.err, l.failures = false, full, err, l.failures+1
	l.again = now.Add(rereading.After(l.failures))
}

// isInUse reports whether something runs on a device that was read.
func (l *reading) isInUse(now Running) bool {
	return slices.ContainsFunc(l.devices, func(i plan.Interface) bool { return len(now.UIDs[i.Device]) > 0 })
}

// lookInto reads the devices of another namespace, unless it is over with the time for that. Of
// one that cannot be read, those that were seen last count, and those on which something runs; one
// that is gone has none.
func (r *Round) lookInto(id uint64, over bool, want sought, now Running) (all []plan.Interface) {
	last := r.seen[id]
	if last == nil {
		last = &reading{due: true}
		r.seen[id] = last
	}
	last.due = last.due || !r.unchangedNetns[id]
	// What is due is read whatever that takes, and takes nothing of the time for what is stale.
	isStale, began := !last.due && last.err == nil && last.full < r.full, time.Now()
	if !last.due && last.err == nil && last.isInUse(now) && (!isStale || r.anew.leave(over || r.anew.isOver(r.anew.namespaces))) {
		r.there[id] = true
		return last.devices
	}
	if isStale {
		defer func() { r.anew.namespaces -= time.Since(began) }()
	}
	one, _ := r.host.Namespaces.Lookup(id)
	err := errLater
	if !over {
		all, err = r.read(id, last, want, now)
	}
	switch partial := new(PartialError); {
	case err == nil:
		r.there[id] = true
		return all
	case errors.Is(err, netns.ErrGone):
		delete(r.seen, id)
		return nil
	case errors.As(err, &partial) && all != nil:
		r.unread[id], r.there[id] = err, true
		return all
	case errors.Is(err, errLater):
		r.left = r.left || last.due
		r.anew.leave(isStale)
	}
	r.unread[id], r.there[id] = err, true
	return asSeen(id, one.In, last.devices, now)
}

// read reads the devices of another namespace. One that could not be read is tried again after a
// while, and has the same error meanwhile.
func (r *Round) read(id uint64, last *reading, want sought, now Running) (all []plan.Interface, err error) {
	one, _ := r.host.Namespaces.Lookup(id)
	partial := new(PartialError)
	waits := last.err != nil && r.now.Before(last.again)
	if waits && !errors.As(last.err, &partial) {
		return nil, last.err
	}
	err = r.host.Namespaces.Do(id, func() (err error) {
		if d := devicesOf(one); waits {
			all, err = d.few(want, now, last.err)
		} else {
			all, err = d.list(want, now)
		}
		return err
	})
	switch {
	case err == nil:
		*last = reading{devices: all, full: r.full}
	case !waits && !errors.Is(err, netns.ErrGone) && !errors.Is(err, netns.ErrUnknown):
		if last.fail(r.now, r.full, err); !errors.As(err, &partial) || last.failures == 1 {
			r.log.Warn("a network namespace cannot be read whole; what runs there is left as it is", "of", one.In, "next", last.again, "error", err)
		}
	}
	return all, err
}

// asSeen returns the devices of a namespace that were seen last, and those on which something runs.
func asSeen(id uint64, in string, seen []plan.Interface, now Running) []plan.Interface {
	all := slices.Clone(seen)
	for d := range now.UIDs {
		if d.NetnsID == id && !slices.ContainsFunc(all, func(i plan.Interface) bool { return i.Device == d }) {
			was := now.Targets[d]
			all = append(all, plan.Interface{Device: d, Name: cmp.Or(was.Interface, fmt.Sprintf("#%d", d.Index)), In: cmp.Or(in, was.In)})
		}
	}
	slices.SortFunc(all, func(a, b plan.Interface) int { return a.Device.Compare(b.Device) })
	return all
}

// IsLeft reports whether network namespaces are to be read by the next reconcile, incremental or not.
func (r *Round) IsLeft() bool { return r.left || r.anew.isLeft }

// IsDue reports whether a network namespace that could not be read is to be tried again.
func (l *Lookups) IsDue(now time.Time) bool {
	for _, one := range l.seen {
		if one.err != nil && !now.Before(one.again) {
			return true
		}
	}
	return false
}

// Present returns the inodes of the other network namespaces that Look read.
func (r *Round) Present() []uint64 {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.there)), func(id uint64) bool { return r.unread[id] != nil })
}

// ErrNotKnown is the error of an attachment whose network namespaces are not known now. What runs
// in others than those that are known to be chosen stays. It is an ErrWaiting.
var ErrNotKnown = fmt.Errorf("%w: it is not known which network namespaces are chosen", ErrWaiting)

// OnInterfaces returns one attachment for each interface that the definition selects, in each
// network namespace that it is for. Where it selects none of one, it fails with ErrWaiting, beside
// those in others; where not all namespaces are known, with ErrNotKnown beside those and what runs,
// of which some are the same.
func (r *Round) OnInterfaces(base plan.Attachment, asked v1alpha1.Attachment) ([]plan.Attachment, error) {
	ids, other, notKnown := r.namespaces.chosen(base.Application, asked)
	if !other {
		return on(base, asked, "this node", plan.InterfacesIn(0, r.interfaces))
	}
	var all []plan.Attachment
	var errs []error
	if notKnown != nil {
		all, errs = r.asItRuns(base), append(errs, fmt.Errorf("%w: %w", ErrNotKnown, notKnown))
	}
	for _, id := range ids {
		if !r.there[id] {
			// It is gone, or the agent's own.
			continue
		}
		one, _ := r.host.Namespaces.Lookup(id)
		found, err := on(base, asked, one.In, plan.InterfacesIn(id, r.interfaces))
		all, errs = append(all, found...), append(errs, explain(err, one.In, r.unread[id], asked))
	}
	return all, errors.Join(errs...)
}

// explain returns the error of what was chosen among the devices that were read of a namespace,
// where unread says why that are not all. Of one with too many there is none: see TooMany.
func explain(err error, in string, unread error, asked v1alpha1.Attachment) error {
	partial := new(PartialError)
	switch isPartial := errors.As(unread, &partial); {
	case isPartial && partial.isWhole(asked.Interfaces):
		return err
	case isPartial && partial.isLate():
		return partial
	case isPartial:
		return nil
	case err != nil && unread != nil:
		return fmt.Errorf("%w: look into the network namespace of %s: %w", ErrWaiting, in, unread)
	}
	return err
}

// TooMany returns an error for each network namespace that an attachment is for and that has more
// than is read of it, unless the attachment names all its interfaces in full.
func (r *Round) TooMany(application v1alpha1.Identity, asked v1alpha1.Attachment) (all []*PartialError) {
	if asked.Interfaces == nil {
		return nil
	}
	ids, _, _ := r.namespaces.chosen(application, asked)
	for _, id := range ids {
		if one := new(PartialError); errors.As(r.unread[id], &one) && !one.isLate() && !one.isWhole(asked.Interfaces) {
			all = append(all, one)
		}
	}
	return all
}

// asItRuns returns the attachments of a program in other network namespaces as they are.
func (r *Round) asItRuns(base plan.Attachment) []plan.Attachment {
	if r.running.On == nil {
		return nil
	}
	devices := r.running.On(base.Application, base.Program, base.Hook)
	var all []plan.Attachment
	for _, i := range r.interfaces {
		if slices.Contains(devices, i.Device) {
			all = append(all, onInterface(base, i))
		}
	}
	return all
}

// on returns one attachment for each interface that the definition selects among some. Where it
// selects none of them it fails with ErrWaiting.
func on(base plan.Attachment, asked v1alpha1.Attachment, of string, among []plan.Interface) ([]plan.Attachment, error) {
	chosen, err := plan.Select(asked.Interfaces, among)
	if err != nil {
		return nil, err
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: no interface of %s is chosen by %s", ErrWaiting, of, describeInterfaces(asked.Interfaces))
	}
	var all []plan.Attachment
	for _, i := range chosen {
		all = append(all, onInterface(base, i))
	}
	return all, nil
}

// onInterface is an attachment to an interface.
func onInterface(base plan.Attachment, i plan.Interface) plan.Attachment {
	base.Ifindex, base.Interface, base.NetnsID, base.In = i.Device.Index, i.Name, i.Device.NetnsID, i.In
	return base
}
