package prepare

import (
	"errors"
	"fmt"
	"time"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// followAgain is how long it takes before a version is tried once more with maps of other
// applications that it could not be loaded with.
const followAgain = 5 * time.Minute

// lentTo returns the maps that other applications share with a version, by the name of the
// map whose place they have. It fails with a *sharing.WaitError or a *sharing.DeniedError
// where one cannot be had.
func (v *Versions) lentTo(p intent.Payload) (map[string]loader.Lent, error) {
	lent := map[string]loader.Lent{}
	for _, name := range sharing.Taken(p) {
		one, err := v.lend(p, name)
		if err != nil {
			return nil, err
		}
		lent[name] = one
	}
	return lent, nil
}

// lend finds one map. It is the one that the owner's programs use now: a version of the owner
// that is being loaded has it once its programs run.
func (v *Versions) lend(p intent.Payload, name string) (loader.Lent, error) {
	owner, err := v.Sharing.Owner(p, name)
	if err != nil {
		return loader.Lent{}, err
	}
	from, uid := *p.Maps[name].From, owner.Newest.Payload().UID
	isLoaded := func(uid string) bool { return v.Look.BaseRevision(uid) != nil }
	wait := &sharing.WaitError{Application: from.Application, Map: from.Map}
	runs := v.Look.BaseRevision(uid)
	if runs == nil {
		if err := v.Sharing.Cycle(p, isLoaded); err != nil {
			return loader.Lent{}, err
		}
		wait.Why = "it is not loaded on this node yet"
		return loader.Lent{}, wait
	}
	by := owner.Intent(runs.Name)
	if by == nil || runs.Maps[from.Map] == nil || by.Payload().Maps[from.Map].From != nil {
		wait.Why = "the version of it that runs on this node has no such map of its own"
		return loader.Lent{}, wait
	}
	return loader.Lent{Owner: *by, Name: from.Map, Map: runs.Maps[from.Map], ID: runs.MapID(from.Map)}, nil
}

// followOwners has a version that runs use the maps that other applications have now. It is
// loaded once more for that, with all maps of its own. Where it cannot be, and where an owner
// is gone or shares no more, it goes on with the maps that it has, and the outcome says so.
func (v *Versions) followOwners(app *decide.Application, o intent.Opened, loaded *loader.Revision, out *report.Outcome) {
	p := o.Payload()
	loaded.MarkTaken(p.Application, p.Maps)
	lent, messages, changed := map[string]loader.Lent{}, map[string]string{}, ""
	for _, name := range sharing.Taken(p) {
		one, err := v.lend(p, name)
		if err != nil {
			messages[name] = sharing.Keeps(*p.Maps[name].From, err)
			one = loader.Lent{Name: name, Map: loaded.Maps[name], ID: loaded.MapID(name), IsKept: true}
		}
		if lent[name] = one; one.ID != loaded.MapID(name) {
			changed = name
		}
	}
	if changed != "" {
		if err := v.follow(app, o, loaded, lent, out); err != nil {
			messages[changed] = err.Error()
		}
	}
	v.noteTaken(p, messages, out)
	for name, message := range messages {
		if !isNoted(app.Status.TakenMaps, name, message) {
			v.Log.Warn("a map of another application is not the one that it has now", "application", p.Application.String(), "map", name, "reason", message)
		}
	}
}

// follow loads a version that runs once more, and says why that cannot be. Until it is loaded,
// the version goes on as it is.
func (v *Versions) follow(app *decide.Application, o intent.Opened, loaded *loader.Revision, lent map[string]loader.Lent, out *report.Outcome) error {
	key := build.From{Old: loaded, Lent: lent}.Key()
	err := app.NotFollowed.Err
	if app.NotFollowed.Key != key || !v.Now.Before(app.NotFollowed.RetryAt) {
		noMemory := new(decide.NoMemoryError)
		err = v.load(app, o, lent)
		switch {
		case err == nil:
			return nil
		case decide.IsPending(err):
			out.Leave(report.Answer{})
			return nil
		case !errors.As(err, &noMemory):
			app.NotFollowed = decide.NotFollowed{Key: key, Err: err, RetryAt: v.Now.Add(followAgain)}
		}
	}
	return fmt.Errorf("the map is the one before, since this application cannot be loaded with the one that the other has now: %w", err)
}

// isOutdated reports whether a version was rejected for a map that another application has
// no more.
func (v *Versions) isOutdated(rejected error) bool {
	shape := new(loader.ShapeError)
	return errors.As(rejected, &shape) && v.Look.RevisionName(shape.OwnerUID) != shape.OwnerRevision
}

// noteTaken notes whose maps a version has, with messages by name.
func (v *Versions) noteTaken(p intent.Payload, messages map[string]string, out *report.Outcome) {
	for _, name := range sharing.Taken(p) {
		from := p.Maps[name].From
		out.TakenMaps = append(out.TakenMaps, report.TakenMap{Map: name, OwnersMap: from.Map, Message: messages[name],
			Owner: v1alpha1.Identity{Kind: p.Application.Kind, Namespace: p.Application.Namespace, Name: from.Application}})
	}
}

// isNoted reports whether the last status has the message.
func isNoted(before []report.TakenMap, name, message string) bool {
	for _, one := range before {
		if one.Map == name && one.Message == message {
			return true
		}
	}
	return false
}
