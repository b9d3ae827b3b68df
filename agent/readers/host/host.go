// Package host keeps the readers' folders of one host, in which members of the groups that definitions grant maps to find them. It must
// not decide who is granted what, which package grants does, and nothing that it does waits for anything slow.
package host

import (
	"errors"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"time"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/agent/reconcile/accepted"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// pinsFolder is where, below the folder of all applications, the BPF file system is mounted that has the pins: it is no name of an
// application.
const pinsFolder = ".bpf"

// retryAfter is how long it takes until what failed is tried again, where nothing changes.
const retryAfter = 20 * time.Second

// checkAfter is how long it takes until mounts are looked at again, while reconciles come one after the other.
const checkAfter = 5 * time.Second

// groupFile is where groups have their numbers. os/user reads it where there is no cgo.
const groupFile = "/etc/group"

// Options are those of a host. All are required but Dir and LookupGroup.
type Options struct {
	// Dir has a folder for each application, and the BPF file system of their pins. It is made when a map is granted. Empty: no
	// readers' folder can be had, which is reported of each application that grants maps.
	Dir   string
	Log   *slog.Logger
	Clock func() time.Time
	// Objects has what is loaded, whose types and flags of maps the kernel does not tell.
	Objects *objects.Cache
	// Wake has the loop look again, from any goroutine.
	Wake func()
	// LookupGroup finds a group by its name; default user.LookupGroup.
	LookupGroup func(name string) (*user.Group, error)
}

// Readers are the readers' folders of a host. Nil has none, and does nothing. The caller serializes all calls.
type Readers struct {
	Options
	queue *queue.Queue
	// folders are those that are there, or that a killed agent may have left.
	folders map[v1alpha1.Identity]*published
	// asked are the applications, by UID, that grant maps to groups.
	asked map[string]*request
	// exposed is why nothing may be published on this host, by checkMounts at checked; empty where all may.
	exposed string
	checked time.Time
}

// published is a folder, by whose intent it is: it grants no more than this one.
type published struct {
	uid    string
	serial int64
}

// of is what an application's folder is made from: an intent, what is loaded, which may be nil, the groups of the host, and why nothing may
// be published there. hasFolder: no other application has its place.
type of struct {
	serial    int64
	revision  *loader.Revision
	groups    fileStamp
	exposed   string
	hasFolder bool
}

// request is what an application's folder was made from, and what came of it.
type request struct {
	of
	object *object
	// problems say why something of it is not published, until retryAt. done: nothing is waited for.
	problems []string
	retryAt  time.Time
	done     bool
}

// New returns the readers' folders that are on the host.
func New(o Options) *Readers {
	if o.LookupGroup == nil {
		o.LookupGroup = user.LookupGroup
	}
	r := &Readers{Options: o, folders: map[v1alpha1.Identity]*published{}, asked: map[string]*request{}}
	r.queue = queue.New(queue.Options{Concurrent: 4, Log: o.Log, Wake: o.Wake})
	for _, id := range found(o.Dir) {
		r.folders[id] = &published{}
	}
	return r
}

// Close waits for the objects that are being read.
func (r *Readers) Close() {
	if r != nil {
		r.queue.Close()
		r.queue.Wait()
	}
}

// Withdraw removes what the newest intents do not grant any more. apps are all of the host: the folder of one that is not there goes. gone are
// the applications that are to leave nothing behind.
func (r *Readers) Withdraw(apps []*accepted.Application, gone []string) {
	if r == nil || len(r.folders) == 0 {
		return
	}
	granting := granting(apps, func(uid string) bool { return slices.Contains(gone, uid) })
	for id, p := range r.folders {
		if app := granting[id]; app == nil {
			r.remove(id)
		} else if payload := app.Newest.Payload(); p.uid != payload.UID || p.serial != payload.Serial {
			r.narrow(id, payload.UID, payload.Serial, payload.Maps)
		}
	}
}

// granting are the applications that grant maps to groups, by name. One of a namespace with the name of an application of the
// cluster that does so has no folder: it would be in that one's, where a map may have its name.
func granting(apps []*accepted.Application, gone func(uid string) bool) map[v1alpha1.Identity]*accepted.Application {
	all := map[v1alpha1.Identity]*accepted.Application{}
	for _, app := range apps {
		if !app.Exports {
			continue
		}
		payload := app.Newest.Payload()
		if !grantsGroups(payload.Maps) {
			continue
		}
		other := all[payload.Application]
		// One that was made again under its name is the newer one.
		if !gone(payload.UID) && (other == nil || other.Newest.Payload().Serial < payload.Serial) {
			all[payload.Application] = app
		}
	}
	for id := range all {
		if id.Namespace != "" && all[clusterWide(id.Namespace)] != nil {
			delete(all, id)
		}
	}
	return all
}

func clusterWide(name string) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}
}

// narrow removes the pins that an intent does not grant.
func (r *Readers) narrow(id v1alpha1.Identity, uid string, serial int64, maps map[string]v1alpha1.Map) {
	err := r.folder(id).Narrow(func(name, group string, wide bool) bool {
		return slices.ContainsFunc(maps[name].Export, func(e v1alpha1.MapExport) bool {
			return slices.Contains(e.Groups, group) && (!wide || e.Access != v1alpha1.MapRead)
		})
	})
	if err != nil {
		r.Log.Error("take maps back from readers", "application", id.String(), "error", err)
		return
	}
	*r.folders[id] = published{uid, serial}
}

// remove removes the folder of an application, and tries again in the next reconcile where that fails.
func (r *Readers) remove(id v1alpha1.Identity) {
	if err := r.folder(id).Remove(); err != nil {
		r.Log.Error("take maps back from readers", "application", id.String(), "error", err)
		return
	}
	if id.Namespace != "" {
		// Others of the namespace may be in it.
		_ = os.Remove(filepath.Join(r.Dir, id.Namespace))
	}
	delete(r.folders, id)
}

// Publish makes the folders what the newest intents and what is loaded come to, and writes into the status of applications where these
// are, and what of them is not there. It does nothing for an application of which none of this changed, and reports whether something waits
// to be read, after which the loop is woken.
func (r *Readers) Publish(apps []*accepted.Application, look *live.Look, gone func(uid string) bool) (waits bool) {
	if r == nil {
		return false
	}
	exports := func(app *accepted.Application) bool { return app.Exports }
	if len(r.asked) == 0 && !slices.ContainsFunc(apps, exports) {
		return false
	}
	r.lookAtMounts()
	all, groups, asked := granting(apps, gone), stampOf(groupFile), map[string]*request{}
	for _, app := range apps {
		if !app.Exports {
			continue
		}
		if payload := app.Newest.Payload(); !gone(payload.UID) && grantsGroups(payload.Maps) {
			one := r.publish(app, of{payload.Serial, look.BaseRevision(payload.UID), groups, r.exposed, all[payload.Application] == app})
			waits = waits || !one.done
			asked[payload.UID] = one
		}
	}
	r.asked = asked
	return waits
}

func grantsGroups(maps map[string]v1alpha1.Map) bool {
	for _, m := range maps {
		if slices.ContainsFunc(m.Export, func(e v1alpha1.MapExport) bool { return len(e.Groups) > 0 }) {
			return true
		}
	}
	return false
}

// publish is Publish of one application, whose folder is made from what is now.
func (r *Readers) publish(app *accepted.Application, now of) *request {
	payload := app.Newest.Payload()
	id, before := payload.Application, r.asked[payload.UID]
	if before == nil || before.of != now || len(before.problems) > 0 && !r.Clock().Before(before.retryAt) || !before.done && before.object.isRead() {
		again := &request{of: now}
		if before != nil {
			again.object = before.object
		}
		before = again
		r.make(app, again)
	}
	app.Status.UnpublishedMaps = before.problems
	if r.folders[id] != nil && r.folders[id].uid == payload.UID {
		app.Status.ReadersFolder = r.folder(id).Dir
	}
	return before
}

// make makes the folder of an application.
func (r *Readers) make(app *accepted.Application, q *request) {
	payload := app.Newest.Payload()
	id := payload.Application
	q.done = true
	if q.revision == nil {
		// Nothing of it is loaded. Readers hold what they opened.
		r.unpublish(id)
		return
	}
	if err := r.check(id, q.hasFolder); err != nil {
		r.fail(id, q, err)
		return
	}
	if q.exposed != "" {
		r.fail(id, q, errors.New(q.exposed))
		r.unpublish(id)
		return
	}
	// Of a version whose intent is not known, nothing is granted.
	var runs intent.Payload
	if running := app.Intent(q.revision.Name); running != nil {
		runs = running.Payload()
	}
	if q.object = r.read(q.object, payload, runs.ObjectDigest); !q.object.isRead() {
		q.done = false
		return
	}
	if err := q.object.err; err != nil {
		// It is read again at the next attempt. What is published was narrowed by the intent.
		q.object = nil
		r.fail(id, q, err)
		return
	}
	maps, refused := r.granted(payload, runs, q)
	for _, err := range refused {
		r.fail(id, q, err)
	}
	if len(maps) == 0 {
		r.unpublish(id)
		return
	}
	err := r.prepare()
	if err == nil {
		r.folders[id] = &published{payload.UID, payload.Serial}
		err = r.folder(id).Keep(folder.Application{Identity: id, Digest: runs.ObjectDigest, Maps: maps, Types: q.object.typesOf})
	}
	r.fail(id, q, err)
}

// fail notes why something is not published; nil is no failure.
func (r *Readers) fail(id v1alpha1.Identity, q *request, err error) {
	if err == nil {
		return
	}
	q.problems, q.retryAt = append(q.problems, err.Error()), r.Clock().Add(retryAfter)
	r.Log.Warn("a map is not published to readers", "application", id.String(), "error", err)
}

// unpublish removes a folder, if it is there.
func (r *Readers) unpublish(id v1alpha1.Identity) {
	if r.folders[id] != nil {
		r.remove(id)
	}
}
