package node

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/hook"
)

// The bounds of looking for targets in the file system. Who waits for a file system
// that does not answer cannot be stopped.
const (
	// lookupGrace is how long one pass waits for the look-ups of a namespace, and
	// lookupsGrace for those of all.
	lookupGrace, lookupsGrace = 50 * time.Millisecond, 250 * time.Millisecond
	// lookupDeadline is how long a look-up takes before the path is said not to answer.
	lookupDeadline = 2 * time.Second
	// mostLookups is how many look-ups of a namespace may wait at once, and allLookups
	// how many in all. Each holds a thread.
	mostLookups, allLookups = 4, 128
)

// unansweredError: the file system that a path lies on has not answered yet.
type unansweredError struct {
	path string
	// crowded: it was not asked, since too many others do not answer. late: it was
	// asked lookupDeadline ago.
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
func (u *unansweredError) unsettle(out *outcome) {
	out.unsettled = out.unsettled || !u.late && !u.crowded
}

// Unwrap says that it is no failure.
func (u *unansweredError) Unwrap() error { return errWaiting }

// found is what a look-up found.
type found struct {
	attachment plan.Attachment
	target     *attach.Found
}

// lookup is one look-up in progress. The fields after done may be read when it is
// closed.
type lookup struct {
	namespace string
	began     time.Time
	// left reports that nobody waits for it: it wakes the loop.
	left   atomic.Bool
	slow   bool
	done   chan struct{}
	result found
	err    error
}

// lookups runs look-ups beside the loop. It is guarded by Agent.work; a goroutine owns
// only its look-up.
type lookups map[string]*lookup

// crowded reports whether too many look-ups wait for another one to begin.
func (l lookups) crowded(namespace string) bool {
	all, own := 0, 0
	for _, one := range l {
		if one.isDone() {
			continue
		}
		all++
		if one.namespace == namespace {
			own++
		}
	}
	return own >= mostLookups || all >= allLookups
}

func (l *lookup) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// keep lets what was found go where no pass needs it any more.
func (l lookups) keep(sought map[string]bool) {
	maps.DeleteFunc(l, func(key string, one *lookup) bool {
		if sought[key] || !one.isDone() {
			return false
		}
		if one.result.target != nil {
			one.result.target.Close()
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
// system does not answer, that is what the application's link was made on, if it has
// one: it stays as it is.
func (p *pass) resolveTarget(uid string, a plan.Attachment) (plan.Attachment, error) {
	if !byPath(a) {
		return attach.Resolve(a, p.opts.host())
	}
	host := p.opts.host()
	got, err := p.lookUp(a, "resolve", func(a plan.Attachment) (f found, err error) {
		f.attachment, err = attach.Resolve(a, host)
		return f, err
	})
	if unanswered := new(unansweredError); errors.As(err, &unanswered) {
		for _, l := range p.held.links[uid] {
			is := l.Attachment
			is.BinaryID, is.NetnsID = "", 0
			if is.Program == a.Program && is.Hook == a.Hook && is.Target == a.Target {
				a.Target = l.Attachment.Target
				return a, nil
			}
		}
	}
	if err != nil {
		return a, err
	}
	a.Target = got.attachment.Target
	return a, nil
}

// findTarget finds what an action attaches to. The caller closes it.
func (p *pass) findTarget(a plan.Attachment) (*attach.Found, error) {
	if !byPath(a) {
		return attach.Find(a, p.opts.host())
	}
	host := p.opts.host()
	got, err := p.lookUp(a, "find", func(a plan.Attachment) (f found, err error) {
		f.target, err = attach.Find(a, host)
		return f, err
	})
	return got.target, err
}

// lookUp does something beside the loop that may take for ever, and waits a little for
// it. It fails with *unansweredError until it is done.
func (p *pass) lookUp(a plan.Attachment, verb string, do func(plan.Attachment) (found, error)) (found, error) {
	namespace, path := a.Application.Namespace, a.Binary+a.NetworkNamespace
	key := fmt.Sprintf("%s %q %s %#v", verb, namespace, a.Hook, a.Target)
	p.sought[key] = true
	one := p.lookups[key]
	if one == nil {
		if p.lookups.crowded(namespace) {
			return found{}, &unansweredError{path: path, crowded: true}
		}
		one = &lookup{namespace: namespace, began: p.opts.Clock(), done: make(chan struct{})}
		p.lookups[key] = one
		go func() {
			one.result, one.err = do(a)
			close(one.done)
			if one.left.Load() {
				p.poke()
			}
		}()
		p.awaitLookup(one)
	}
	if one.isDone() {
		delete(p.lookups, key)
		return one.result, one.err
	}
	late := p.now.Sub(one.began) > lookupDeadline
	if late && !one.slow {
		one.slow = true
		p.opts.Log.Warn("a file system does not answer; who needs the path waits, and nobody else does", "path", path, "namespace", namespace)
	}
	return found{}, &unansweredError{path: path, late: late}
}

// awaitLookup waits for a look-up as long as its namespace may delay the pass.
func (p *pass) awaitLookup(one *lookup) {
	began := time.Now()
	grace := min(lookupGrace-p.waited[one.namespace], lookupsGrace-p.waitedAll)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-one.done:
	case <-timer.C:
		one.left.Store(true)
	}
	took := time.Since(began)
	p.waited[one.namespace] += took
	p.waitedAll += took
}
