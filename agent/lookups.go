package agent

import (
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// The bounds of looking for targets in the file system. Who waits for a file system
// that does not answer cannot be stopped.
const (
	// lookupGrace is how long one pass waits for the look-ups of an application, and
	// lookupsGrace for those of all.
	lookupGrace, lookupsGrace = 50 * time.Millisecond, 250 * time.Millisecond
	// lookupDeadline is how long a look-up takes before the path is said not to answer.
	lookupDeadline = 2 * time.Second
	// mostLookups is how many look-ups of an application may wait at once, and allLookups
	// how many in all. Each holds a thread.
	mostLookups, allLookups = 4, 128
)

// unansweredError: the file system that a path lies on has not answered yet.
type unansweredError struct {
	path string
	// crowded: it was not asked, since too many others have not answered. late: it, or
	// all those others, were asked lookupDeadline ago.
	crowded, late bool
}

// Error implements error.
func (u *unansweredError) Error() string {
	if u.crowded {
		return fmt.Sprintf("look for %s: it waits for other paths, whose file systems do not answer; see the status of the applications that name them", u.path)
	}
	return fmt.Sprintf("look for %s: its file system does not answer; see what is mounted there on the node and whether its server runs (umount -l takes a mount away), or name another path", u.path)
}

// unsettle has Settled wait for a path that may answer still.
func (u *unansweredError) unsettle(out *outcome) { out.unsettled = out.unsettled || !u.late }

// Unwrap says that it is no failure.
func (u *unansweredError) Unwrap() error { return errWaiting }

// answer is what a look-up came to.
type answer struct {
	// target is what identifies the target, and found the target itself where it was to
	// be opened.
	target plan.Target
	found  *attach.Found
	err    error
}

// same reports whether two answers say the same.
func (a *answer) same(b *answer) bool {
	return a.target == b.target && (a.err == nil) == (b.err == nil) && (a.err == nil || a.err.Error() == b.err.Error())
}

// lookup is one look-up.
type lookup struct {
	application v1alpha1.Identity
	began       time.Time
	// before is what the look-up before it came to, which counts meanwhile; nil where
	// there was none.
	before *answer
	// left reports that nobody waits for it: it wakes the loop where it says something
	// new.
	left atomic.Bool
	slow bool
	// answer may be read when done is closed.
	answer answer
	done   chan struct{}
}

// lookups runs look-ups beside the loop, and keeps what they came to. It is guarded by
// Agent.work; a goroutine owns only its look-up.
type lookups map[string]*lookup

// crowd returns how many look-ups another one would have to wait for, if it has to, and
// whether all of these are late.
func (l lookups) crowd(application v1alpha1.Identity, now time.Time) (crowded, late bool) {
	all, own := 0, 0
	late = true
	for _, one := range l {
		if one.isDone() {
			continue
		}
		all++
		if one.application == application {
			own++
		}
		late = late && one.isLate(now)
	}
	return own >= mostLookups || all >= allLookups, late
}

func (l *lookup) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (l *lookup) isLate(now time.Time) bool { return now.Sub(l.began) > lookupDeadline }

// keep lets go what no pass asks for any more.
func (l lookups) keep(sought map[string]bool) {
	maps.DeleteFunc(l, func(key string, one *lookup) bool {
		if sought[key] || !one.isDone() {
			return false
		}
		if one.answer.found != nil {
			one.answer.found.Close()
		}
		return true
	})
}

// byPath reports whether the target of an attachment is found by a path that may lie on
// any file system.
func byPath(a plan.Attachment) bool {
	h, _ := hook.Lookup(a.Hook)
	return h.Shape == hook.UserBinary || h.Shape == hook.NetworkNamespace && a.NetworkNamespace != ""
}

// resolveTarget fills in what identifies the target of an attachment. Where the file
// system does not answer, that is what it said last, or what the application's link was
// made on: it stays as it is.
func (p *pass) resolveTarget(uid string, a plan.Attachment) (plan.Attachment, error) {
	host := p.opts.host()
	if !byPath(a) {
		return attach.Resolve(a, host)
	}
	key := fmt.Sprintf("resolve %s %s %#v", a.Application, a.Hook, a.Target)
	// What is looked for beside the loop is a copy of its own.
	sought := a
	one, err := p.lookUp(key, !p.sought[key], a, func() (got answer) {
		var is plan.Attachment
		is, got.err = attach.Resolve(sought, host)
		got.target = is.Target
		return got
	})
	if err != nil {
		if target, ok := p.madeOn(uid, a); ok {
			a.Target = target
			return a, nil
		}
		return a, err
	}
	if one.err == nil {
		a.Target = one.target
	}
	return a, one.err
}

// madeOn returns the target that a link of the application was made on, which is found
// by the attachment's path; of several, that of one that runs.
func (p *pass) madeOn(uid string, a plan.Attachment) (target plan.Target, ok bool) {
	for _, l := range p.state.Links {
		is := l.Attachment
		is.BinaryID, is.NetnsID = "", 0
		if l.UID == uid && is.Program == a.Program && is.Hook == a.Hook && is.Target == a.Target && (!ok || !l.Severed) {
			target, ok = l.Attachment.Target, true
		}
	}
	return target, ok
}

// findTarget finds what an action attaches to. The caller closes it.
func (p *pass) findTarget(a plan.Attachment) (*attach.Found, error) {
	if !byPath(a) {
		return attach.Find(a, p.opts.host())
	}
	one, err := p.seek(a)
	if err != nil {
		return nil, err
	}
	// It is the caller's now.
	delete(p.lookups, findKey(a))
	return one.found, one.err
}

// awaits returns an *unansweredError where an action attaches to what was not found yet.
func (p *pass) awaits(a plan.Action) error {
	switch a.Verb {
	case plan.Attach, plan.Overlap, plan.Move:
		if !byPath(a.Attachment) {
			return nil
		}
		_, err := p.seek(a.Attachment)
		return err
	case plan.Update, plan.SetChain, plan.Detach, plan.Drop, plan.Forget:
	}
	return nil
}

// seek finds what is attached to. What it finds is kept until findTarget takes it, or
// until nobody seeks it.
func (p *pass) seek(a plan.Attachment) (*answer, error) {
	host := p.opts.host()
	return p.lookUp(findKey(a), false, a, func() (got answer) {
		got.found, got.err = attach.Find(a, host)
		return got
	})
}

func findKey(a plan.Attachment) string {
	return fmt.Sprintf("find %s %s %#v", a.Application, a.Hook, a.Target)
}

// lookUp does something beside the loop that may take for ever, and waits a little for
// it. What it came to is kept: refresh does it again, and returns what it came to before
// until that is done. It fails with *unansweredError where there is no answer yet.
func (p *pass) lookUp(key string, refresh bool, a plan.Attachment, do func() answer) (*answer, error) {
	p.sought[key] = true
	path, one := a.Binary+a.NetworkNamespace, p.lookups[key]
	if one == nil || refresh && one.isDone() {
		crowded, late := p.lookups.crowd(a.Application, p.now)
		switch {
		case !crowded:
			one = p.beginLookup(a.Application, one, do)
			p.lookups[key] = one
			p.awaitLookup(one)
		case one == nil:
			return nil, &unansweredError{path: path, crowded: true, late: late}
		}
	}
	if one.isDone() {
		return &one.answer, nil
	}
	late := one.isLate(p.now)
	if late && !one.slow {
		one.slow = true
		p.opts.Log.Warn("a file system does not answer; who needs the path waits, and nobody else does", "path", path, "application", a.Application.String())
	}
	if one.before != nil {
		return one.before, nil
	}
	return nil, &unansweredError{path: path, late: late}
}

// beginLookup begins a look-up; last is the one before it, or nil.
func (p *pass) beginLookup(application v1alpha1.Identity, last *lookup, do func() answer) *lookup {
	one := &lookup{application: application, began: p.now, done: make(chan struct{})}
	if last != nil {
		before := last.answer
		one.before = &before
	}
	wake := p.wakeUp
	go func() {
		one.answer = do()
		close(one.done)
		if one.left.Load() && (one.before == nil || !one.before.same(&one.answer)) {
			wake()
		}
	}()
	return one
}

// awaitLookup waits for a look-up as long as its application may delay the pass.
func (p *pass) awaitLookup(one *lookup) {
	began := time.Now()
	timer := time.NewTimer(min(lookupGrace-p.waited[one.application], lookupsGrace-p.waitedAll))
	defer timer.Stop()
	select {
	case <-one.done:
	case <-timer.C:
		one.left.Store(true)
	}
	took := time.Since(began)
	p.waited[one.application] += took
	p.waitedAll += took
}
