package volumes

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/readers/grants"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/intent"
)

// application is one of the node, as of a reconcile. It is not changed.
type application struct {
	payload intent.Payload
	// loaded is what is in the kernel of it; nil is nothing, and why says why.
	loaded *loaded
	why    string
}

// loaded are the maps of a revision that an intent exports. The keeper has a share of each, and so has what uses them.
type loaded struct {
	revision *loader.Revision // the loop's, to compare
	serial   int64
	// runs is the version's own intent; of one that is not known, nothing is granted.
	runs  intent.Payload
	maps  map[string]*serve.Map
	taken map[string]bool
	// ids are those of all maps of the revision.
	ids map[ebpf.MapID]bool
	// err is why there are none.
	err error
	// facts are nil until the keeper has read the object.
	facts atomic.Pointer[facts]
}

// close closes a share of each map.
func (l *loaded) close() {
	for _, m := range l.maps {
		_ = m.Close()
	}
}

// snapshot is what the loop has published: the applications of the node by name.
type snapshot map[v1alpha1.Identity]*application

// newest are the newest intents by the application. They are compared by pointers.
type newest struct {
	of map[v1alpha1.Identity]intent.Payload
}

// published is what the loop leaves for the keeper, which takes it. The loop waits for nothing.
type published struct {
	// next is nil where nothing is new, and retired are maps that no later snapshot has.
	next    snapshot
	retired []*loaded
	// newest is set where nothing was published yet.
	newest *newest
	// changed is closed when there is something to take.
	changed chan struct{}
}

// loop is what the agent's loop keeps for itself.
type loop struct {
	// made are the applications by UID.
	made map[string]*application
	// serials are those of newest intents before the first look.
	serials map[string]int64
}

// Withdraw has volumes lose what the newest intents do not grant any more. gone are the applications that are to leave nothing behind.
// The loop calls it, and Publish.
func (k *Keeper) Withdraw(apps []*accepted.Application, gone []string) {
	if k.loop.made == nil {
		k.withdrawUnseen(apps, gone)
		return
	}
	there, changed := map[string]bool{}, false
	for _, app := range apps {
		payload := app.Newest.Payload()
		there[payload.UID] = !slices.Contains(gone, payload.UID)
		if was := k.loop.made[payload.UID]; was != nil && there[payload.UID] && was.payload.Serial != payload.Serial {
			k.loop.made[payload.UID] = &application{payload: payload, loaded: was.loaded, why: was.why}
			changed = true
		}
	}
	var retired []*loaded
	for uid, was := range k.loop.made {
		if !there[uid] {
			delete(k.loop.made, uid)
			retired, changed = append(retired, was.loaded), true
		}
	}
	if changed {
		k.publish(retired)
	}
}

// withdrawUnseen is Withdraw before the first look at the kernel: sockets answer for nothing yet, and pins lose what is not granted.
func (k *Keeper) withdrawUnseen(apps []*accepted.Application, gone []string) {
	serials, now := map[string]int64{}, &newest{map[v1alpha1.Identity]intent.Payload{}}
	for _, app := range apps {
		payload := app.Newest.Payload()
		if slices.Contains(gone, payload.UID) {
			continue
		}
		serials[payload.UID] = payload.Serial
		if other, is := now.of[payload.Application]; !is || other.Serial < payload.Serial {
			now.of[payload.Application] = payload
		}
	}
	if k.loop.serials != nil && maps.Equal(serials, k.loop.serials) {
		return
	}
	k.loop.serials = serials
	k.handed.Lock()
	defer k.handed.Unlock()
	k.published.newest = now
	k.published.wake()
}

// Publish has volumes have what the newest intents and what is loaded come to. The loop never waits for it.
func (k *Keeper) Publish(apps []*accepted.Application, look *live.Look, gone func(uid string) bool) (waits bool) {
	there, changed := map[string]bool{}, k.loop.made == nil
	if changed {
		k.loop.made = map[string]*application{}
	}
	var retired []*loaded
	for _, app := range apps {
		payload := app.Newest.Payload()
		if gone(payload.UID) {
			continue
		}
		there[payload.UID] = true
		was := k.loop.made[payload.UID]
		now := next(was, app, look)
		if now == was {
			continue
		}
		changed = true
		k.loop.made[payload.UID] = now
		if was != nil && was.loaded != now.loaded {
			retired = append(retired, was.loaded)
		}
	}
	for uid, was := range k.loop.made {
		if !there[uid] {
			delete(k.loop.made, uid)
			retired, changed = append(retired, was.loaded), true
		}
	}
	if changed {
		k.publish(retired)
	}
	return false
}

// next is an application as it is now: the former one where nothing of it changed.
func next(was *application, app *accepted.Application, look *live.Look) *application {
	now := &application{payload: app.Newest.Payload()}
	var runs *loader.Revision
	if app.Exports {
		runs = look.BaseRevision(now.payload.UID)
	}
	switch {
	case runs == nil:
		now.why = whyNot(app)
	case was != nil && was.loaded != nil && was.loaded.revision == runs && was.loaded.serial == now.payload.Serial && was.loaded.err == nil:
		now.loaded = was.loaded
	default:
		now.loaded = open(now.payload, runs)
		if running := app.Intent(runs.Name); running != nil {
			now.loaded.runs = running.Payload()
		}
	}
	if was != nil && was.payload.Serial == now.payload.Serial && was.loaded == now.loaded && was.why == now.why {
		return was
	}
	return now
}

// whyNot is why nothing of an application is loaded, as its status has it.
func whyNot(app *accepted.Application) string {
	if c := meta.FindStatusCondition(app.Status.Conditions, v1alpha1.ConditionDeployed); c != nil {
		return cmp.Or(c.Message, c.Reason)
	}
	return "the agent has not come to it yet"
}

// open opens the maps that an intent exports, of what is loaded.
func open(payload intent.Payload, runs *loader.Revision) *loaded {
	l := &loaded{revision: runs, serial: payload.Serial, maps: map[string]*serve.Map{}, taken: map[string]bool{}, ids: map[ebpf.MapID]bool{}}
	for name := range runs.Maps {
		l.ids[runs.MapID(name)] = true
	}
	for name, m := range payload.Maps {
		in := runs.Maps[name]
		if len(m.Export) == 0 || in == nil {
			continue
		}
		own, err := share(in)
		if err != nil {
			l.err = errors.Join(l.err, err)
			continue
		}
		l.maps[name], l.taken[name] = own, runs.Notes[name].From != ""
	}
	return l
}

// share makes a map of the keeper's own of one of the loop's.
func share(of *ebpf.Map) (*serve.Map, error) {
	clone, err := plain.Of(of.Clone())
	if err != nil {
		return nil, err
	}
	own, err := serve.NewMap(clone)
	if err != nil {
		return nil, errors.Join(err, clone.Close())
	}
	return own, nil
}

// publish leaves what is made for the keeper.
func (k *Keeper) publish(retired []*loaded) {
	all := snapshot{}
	for _, app := range k.loop.made {
		// One that was made again under its name is the newer one.
		if other := all[app.payload.Application]; other == nil || other.payload.Serial < app.payload.Serial {
			all[app.payload.Application] = app
		}
	}
	k.handed.Lock()
	defer k.handed.Unlock()
	k.published.next = all
	k.published.retired = append(k.published.retired, slices.DeleteFunc(retired, func(l *loaded) bool { return l == nil })...)
	k.published.wake()
}

// signal has what waits for changes look again.
func (k *Keeper) signal() {
	k.handed.Lock()
	defer k.handed.Unlock()
	k.published.wake()
}

// wake closes changed. The caller holds handed.
func (p *published) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// changed is closed when the loop has published something since now.
func (k *Keeper) changed() <-chan struct{} {
	k.handed.Lock()
	defer k.handed.Unlock()
	return k.published.changed
}

// take takes what the loop has left, and has sockets answer for nothing that is not granted any more: they wait for no mounter, and for no
// object. What an object forbids besides ends when it is read. The caller holds mu.
func (k *Keeper) take() {
	k.handed.Lock()
	next, retired := k.published.next, k.published.retired
	k.published.next, k.published.retired = nil, nil
	k.newest = k.published.newest
	k.handed.Unlock()
	if next != nil {
		k.snapshot = next
		all := once()
		for _, v := range k.volumes {
			if app := next[v.Application]; v.socket != nil && v.app != app {
				v.keep(v.rights(app, all))
			}
		}
	}
	for _, l := range retired {
		l.close()
	}
}

// once returns a function that asks the kernel once for what applies of an application, however many volumes are of it.
func once() func(*application) []grants.Map {
	known := map[*application][]grants.Map{}
	return func(app *application) []grants.Map {
		if _, is := known[app]; !is {
			known[app], _ = app.loaded.grants(app.payload)
		}
		return known[app]
	}
}

// isLoaded reports whether a map is one of an application that is loaded.
func (k *Keeper) isLoaded(id ebpf.MapID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, app := range k.snapshot {
		if app.loaded != nil && app.loaded.ids[id] {
			return true
		}
	}
	return false
}

// grants applies the grants of a newest intent to what is loaded.
func (l *loaded) grants(payload intent.Payload) ([]grants.Map, []grants.Refused) {
	var all []grants.Loaded
	for _, name := range slices.Sorted(maps.Keys(l.maps)) {
		info, err := plain.Of(l.maps[name].Info())
		if err != nil {
			continue // no reader has it
		}
		all = append(all, grants.Loaded{Name: name, Type: info.Type, Flags: info.Flags | l.facts.Load().of(name).Flags,
			IsFrozen: info.Frozen(), IsTaken: l.taken[name]})
	}
	return grants.Of(payload, l.runs, all)
}
