// Package targets finds what attachments name on this node: network devices, also in other
// network namespaces, cgroups, and
// binaries and network namespaces by their path.
//
// A path may lie on a file system that never answers. The package therefore looks beside
// the agent's loop, with bounds on the goroutines that wait. It attaches nothing.
//
// Size: every kind of target is found within one round, whose look-ups share one queue and one bound of time.
package targets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/moby/sys/mountinfo"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/pods/process"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/agent/program/guard"
	"github.com/skep-dev/skep/agent/program/holders"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/text"
)

// The bounds of looking for targets in the file system. A goroutine that waits for a file
// system that does not answer cannot be stopped.
const (
	// lookupGrace is how long one reconcile waits for the look-ups of an application, and
	// lookupsGrace for those of all.
	lookupGrace, lookupsGrace = 50 * time.Millisecond, 250 * time.Millisecond
	// anewBudget is how long a reconcile at least takes to find anew what was found in files of pods that are as they were,
	// and as long again for their network namespaces. The next one continues where something else waits.
	anewBudget = 10 * time.Millisecond
	// lookupDeadline is how long a look-up takes before the path is said not to answer.
	lookupDeadline = 2 * time.Second
	// maxPerApplication is how many look-ups of an application may be under way at once, and maxPerOwner how many those of the
	// applications of one namespace: the files may be on file systems that its containers mount.
	maxPerApplication, maxPerOwner = 4, 16
)

// ErrWaiting is the error of an attachment that has no target yet. That is no failure.
var ErrWaiting = errors.New("waiting")

// UnansweredError is the error of a path whose file system has not answered yet. It is an
// ErrWaiting.
type UnansweredError struct {
	path string
	// mount is where the file system that hangs is mounted on the node; empty where that is not known.
	mount string
	// crowded: the look-up was not begun, since too many others of its owner have no answer.
	crowded bool
	// Late reports that the path was asked for longer than two seconds ago.
	Late bool
}

// Error implements error.
func (u *UnansweredError) Error() string {
	switch {
	case u.crowded:
		return fmt.Sprintf("look for %s: it waits for other paths, whose file systems do not answer; see the status of the applications that name them", u.path)
	case u.mount == "":
		return fmt.Sprintf("look for %s: its file system does not answer; see what is mounted there and whether its server runs, or name another path", u.path)
	}
	return fmt.Sprintf("look for %s: its file system does not answer; see whether the server of %s runs, unmount it on the node (`umount -f -l %s`), "+
		"or name another path", u.path, u.mount, text.Word(u.mount))
}

// unanswered is the error of an attachment whose target is looked for still.
func (r *Round) unanswered(a plan.Attachment, one *lookup) *UnansweredError {
	u := &UnansweredError{path: a.Binary + a.NetworkNamespace, crowded: !one.ticket.HasBegun(), Late: r.now.Sub(one.asked) > lookupDeadline}
	if u.Late && a.Container == "" && filepath.IsAbs(u.path) && !u.crowded {
		u.mount = r.servedMount(u.path)
	}
	return u
}

// served are the types of file systems that hang without their server.
var served = regexp.MustCompile(`^(fuse(blk)?(\..*)?|nfs4?|cifs|smb3|ceph|9p|afs|lustre|virtiofs)$`)

// servedMount returns where the file system of a path is mounted, as it is called below the root, if a server answers
// for it. It asks no file system, and follows no symbolic link.
func (r *Round) servedMount(path string) string {
	if !r.hasMounts {
		r.hasMounts = true
		r.mounts, _ = mountinfo.GetMounts(nil)
	}
	isElsewhere, at := mountinfo.ParentsFilter(filepath.Join(r.host.Root, path)), (*mountinfo.Info)(nil)
	for _, one := range r.mounts {
		// Of several at one place, the last one covers the others.
		if skip, _ := isElsewhere(one); !skip && (at == nil || len(one.Mountpoint) >= len(at.Mountpoint)) {
			at = one
		}
	}
	if at == nil || !served.MatchString(at.FSType) {
		return ""
	}
	mount, err := filepath.Rel(filepath.Join("/", r.host.Root), at.Mountpoint)
	if err != nil || mount == "." || mount == ".." || strings.HasPrefix(mount, "../") {
		return ""
	}
	return "/" + mount
}

// Unwrap makes it an ErrWaiting.
func (u *UnansweredError) Unwrap() error { return ErrWaiting }

// answer is the result of a look-up.
type answer struct {
	// targets are those that Resolve found. found is the target of Find, opened.
	targets []plan.Target
	found   *attach.Found
	// places are those that Places returned.
	places []uint64
	err    error
	// registered and known are what Registered returned.
	registered map[int32]ebpf.ProgramID
	known      bool
}

// same reports whether two answers say the same.
func (a *answer) same(b *answer) bool {
	return slices.Equal(a.targets, b.targets) && slices.Equal(a.places, b.places) &&
		(a.err == nil) == (b.err == nil) && (a.err == nil || a.err.Error() == b.err.Error())
}

// lookup is one look-up.
type lookup struct {
	ticket *queue.Ticket
	asked  time.Time
	// before is the answer of the look-up before it, which counts meanwhile; nil where
	// there was none.
	before *answer
	// full is Lookups.full as it began.
	full uint64
	// answer may be read when the ticket is done.
	answer answer
}

// Lookups runs look-ups beside the loop, and keeps their answers. The caller serializes
// all calls; a goroutine owns only its look-up.
type Lookups struct {
	host  attach.Host
	log   *slog.Logger
	wake  func()
	queue *queue.Queue
	byKey map[string]*lookup
	// seen is how other network namespaces were read last.
	seen map[uint64]*reading
	// full counts the times that all is found anew: what was found in an earlier one is stale. isWhole
	// reports that nothing stale was left by the last reconcile; the next time begins after that.
	full    uint64
	isWhole bool
	// members are cgroups of pods that were looked at, by their ids.
	members map[uint64]guard.Member
	// lastRead is the last of them that was read.
	lastRead uint64
	// places are those of functions in files that Places found.
	places map[functionsIn][]uint64
	// hierarchy is where the mount of cgroup2 lies; nil until somebody asks.
	hierarchy *guard.Hierarchy
}

// NewLookups returns Lookups of names on the host. It calls wake, from any goroutine, when
// an answer comes that no caller waits for any more.
func NewLookups(host attach.Host, log *slog.Logger, wake func()) *Lookups {
	host.Functions, host.Netfilter, host.Occupants, host.Mounts = functions.New(), new(attach.Netfilter), new(holders.Finder), new(process.Mounts)
	return &Lookups{host: host, log: log, wake: wake, byKey: map[string]*lookup{}, seen: map[uint64]*reading{}, isWhole: true, queue: queue.New(queue.Options{
		PerOwner: maxPerOwner, PerPart: maxPerApplication, Slow: lookupDeadline, Log: log, Wake: wake,
		SlowMessage: "a file system does not answer; who needs the path waits, and nobody else does",
	})}
}

// Begin begins the look-ups of one reconcile, in which the node has the pods.
func (l *Lookups) Begin(now time.Time, pods Pods) *Round {
	l.host.Containers = pods.Snapshot
	sandboxes, netns := pods.unchanged()
	if pods.Anew && l.isWhole {
		l.full++
	}
	return &Round{
		Lookups: l, now: now, pods: pods, unchanged: sandboxes, unchangedNetns: netns, soughtMembers: map[uint64]guard.Member{},
		soughtPlaces: map[functionsIn][]uint64{}, keptPlaces: map[string]int{}, sought: map[string]bool{},
		started: map[*lookup]bool{}, waited: map[v1alpha1.Identity]time.Duration{},
		anew: anew{files: anewBudget, namespaces: anewBudget, isHurried: pods.IsHurried},
	}
}

// Waiting returns how many look-ups are under way.
func (l *Lookups) Waiting() int { return l.queue.Running() }

// Close frees all answers. It waits for no file system.
func (l *Lookups) Close() {
	l.keep(nil)
	l.host.Mounts.Forget()
}

// keep frees the answers that are not sought any more.
func (l *Lookups) keep(sought map[string]bool) {
	maps.DeleteFunc(l.byKey, func(key string, one *lookup) bool {
		if sought[key] || !one.ticket.IsDone() && !one.ticket.Cancel() {
			return false
		}
		if one.answer.found != nil {
			one.answer.found.Close()
		}
		return true
	})
}

// Round is what one reconcile seeks, and how long it waited for that.
type Round struct {
	*Lookups
	now    time.Time
	sought map[string]bool
	// started are the look-ups that this reconcile began.
	started   map[*lookup]bool
	waited    map[v1alpha1.Identity]time.Duration
	waitedAll time.Duration
	anew      anew
	pods      Pods
	// hasNoAnswer is what the runtime has not answered for; nil until it is asked for.
	hasNoAnswer *noAnswer
	// unchanged are the sandboxes of pods that are as they were in the reconcile before, and
	// unchangedNetns their network namespaces.
	unchanged      map[string]bool
	unchangedNetns map[uint64]bool
	soughtMembers  map[uint64]guard.Member
	soughtPlaces   map[functionsIn][]uint64
	// keptPlaces is how many soughtPlaces are, by namespace.
	keptPlaces map[string]int
	// What Look was told, and what it read: the devices, the other network namespaces that are
	// there, and of those that could not be read, why.
	namespaces Namespaces
	running    Running
	interfaces []plan.Interface
	there      map[uint64]bool
	unread     map[uint64]error
	// left: something that is due is to be read by the next reconcile.
	left bool
	// mounts are the file systems of the node, which are read once where an error names one.
	mounts    []*mountinfo.Info
	hasMounts bool
}

// Host is where the names of targets are looked up.
func (r *Round) Host() attach.Host { return r.host }

// End frees the answers that the reconcile did not seek.
func (r *Round) End() {
	r.keep(r.sought)
	r.members, r.places, r.isWhole = r.soughtMembers, r.soughtPlaces, !r.anew.isLeft
	r.host.Functions.Sweep()
	r.host.Mounts.Forget()
}

// Supports fails with attach.ErrTarget where the kernel lacks the functions or the tracepoint
// of an attachment, and with functions.ErrLater where that is not known yet.
func (r *Round) Supports(at v1alpha1.Attachment) error {
	h, _ := hook.Lookup(at.Hook)
	switch {
	case h.TakesFunctions():
		if _, err := r.onFunctions(plan.Attachment{}, h, at); err != nil {
			return err
		}
		return attach.CheckFunctions(r.host, h, at.Functions.Names)
	case h.Shape == hook.Tracepoint:
		return attach.CheckTracepoint(h, at.Tracepoint)
	}
	return nil
}

// ExplainLoad returns a better error of a load that failed for a function or a tracepoint
// that the kernel has not.
func (r *Round) ExplainLoad(h hook.Hook, at v1alpha1.Attachment, err error) error {
	switch {
	case at.Functions != nil:
		return attach.ExplainLoad(r.host, h, at.Functions.Names, err)
	case h.Shape == hook.Tracepoint && h.LoadsForTarget():
		return cmp.Or(attach.CheckTracepoint(h, at.Tracepoint), err)
	}
	return err
}

// byPath reports whether the target of an attachment is found by a path that may lie on
// any file system.
func byPath(a plan.Attachment) bool {
	h, _ := hook.Lookup(a.Hook)
	return h.Shape == hook.UserBinary || h.Shape == hook.NetworkNamespace && a.NetworkNamespace != ""
}

// Resolve returns the targets of an attachment, with what identifies them. Where a file
// system does not answer now, its last answer counts; without one the error is an
// *UnansweredError.
func (r *Round) Resolve(a plan.Attachment) ([]plan.Target, error) {
	if !byPath(a) {
		return attach.Resolve(a, r.host)
	}
	key := fmt.Sprintf("resolve %s %s %#v", a.Application, a.Hook, a.Target)
	// The goroutine has its own copies.
	copied, host := a, r.host
	one, err := r.standing(key, a, func() (got answer) {
		got.targets, got.err = attach.Resolve(copied, host)
		return got
	})
	if err != nil {
		return nil, err
	}
	return one.targets, one.err
}

// standing is lookUp once in a reconcile, unless the last answer stands.
func (r *Round) standing(key string, a plan.Attachment, do func() answer) (*answer, error) {
	isStale, began := r.isStale(key), time.Now()
	one, err := r.lookUp(key, !r.sought[key] && !r.stands(key, a), a, do)
	if isStale {
		r.anew.files -= time.Since(began)
	}
	return one, err
}

// functionsIn is a function, or a choice of functions, in a file.
type functionsIn struct {
	binaryID, symbol string
	symbols          plan.Symbols
	offset           uint64
}

// maxPlaces is how many places of functions in files are kept of the applications of a namespace together, beside those that run.
const maxPlaces = 8 * v1alpha1.MaxFunctions

// ErrManyPlaces is the error of an attachment whose places are not looked for: others of its namespace have that many.
var ErrManyPlaces = fmt.Errorf("applications of its namespace choose %d functions in files, and no more are looked at; choose fewer functions", maxPlaces)

// CheckPlaces fails with ErrManyPlaces where Places would keep more than a namespace may have.
func (r *Round) CheckPlaces(a plan.Attachment) error {
	in := functionsIn{a.BinaryID, a.Symbol, a.Symbols, a.Offset}
	if a.Symbol == "" && a.Symbols == "" || r.soughtPlaces[in] != nil || r.keptPlaces[a.Application.Namespace] < maxPlaces {
		return nil
	}
	return ErrManyPlaces
}

// keepPlaces remembers places for the next round.
func (r *Round) keepPlaces(of v1alpha1.Identity, in functionsIn, places []uint64) {
	if r.soughtPlaces[in] == nil && len(places) > 0 {
		r.soughtPlaces[in] = places
		r.keptPlaces[of.Namespace] += len(places)
	}
}

// Places returns where in its file the functions of an attachment are, in bytes, whose target Resolve found. A file is read for
// them once, in whichever container. It fails with an *UnansweredError while the answer is not known.
func (r *Round) Places(a plan.Attachment) ([]uint64, error) {
	if a.Symbol == "" && a.Symbols == "" {
		return []uint64{a.Offset}, nil
	}
	in := functionsIn{a.BinaryID, a.Symbol, a.Symbols, a.Offset}
	for _, known := range []map[functionsIn][]uint64{r.soughtPlaces, r.places} {
		if places := known[in]; places != nil {
			r.keepPlaces(a.Application, in, places)
			return places, nil
		}
	}
	key, host := fmt.Sprintf("places %s %s %#v", a.Application, a.Hook, a.Target), r.host
	one, err := r.lookUp(key, !r.sought[key], a, func() (got answer) {
		var found *attach.Found
		if found, got.err = attach.Find(a, host); got.err == nil {
			got.places = found.Places()
			found.Close()
		}
		return got
	})
	if err != nil {
		return nil, err
	}
	r.keepPlaces(a.Application, in, one.places)
	return one.places, one.err
}

// stands reports whether the last answer of a look-up counts in this reconcile: the intent and the pod
// are as they were, the target was found, or was missing twice, and there is no time to find it anew.
func (r *Round) stands(key string, a plan.Attachment) bool {
	one := r.byKey[key]
	if one == nil || a.Container == "" || !one.ticket.IsDone() || r.pods.isNew(a.Application) {
		return false
	}
	c, ok := r.pods.Snapshot.Container(a.Container)
	stands := ok && r.unchanged[c.Pod.SandboxID] && (one.answer.err == nil || one.before != nil && one.before.same(&one.answer))
	if !stands || !r.isStale(key) {
		return stands
	}
	return r.anew.leave(r.anew.isOver(r.anew.files))
}

// isStale reports whether the answer of a look-up is to be found anew.
func (r *Round) isStale(key string) bool { return r.byKey[key] != nil && r.byKey[key].full < r.full }

// Runs reports whether netfilter runs a program at a priority of the hook of an attachment.
// Where that is not known now, it does. It asks once in a reconcile.
func (r *Round) Runs(a plan.Attachment, priority int32, program ebpf.ProgramID) bool {
	place := a
	place.Program, place.Instance, place.Priority, place.Netfilter.Priority = "", "", 0, 0
	key, host := fmt.Sprintf("registered %s %#v", a.Application, place.Target), r.host
	is, err := r.lookUp(key, !r.sought[key], a, func() (got answer) {
		got.registered, got.known = attach.Registered(place, host)
		return got
	})
	// An answer from before may be older than the link.
	if one := r.byKey[key]; err != nil || !is.known || one == nil || !r.started[one] || is != &one.answer {
		return true
	}
	return is.registered[priority] == program
}

// Find finds what an attachment is attached to. The caller closes it.
func (r *Round) Find(a plan.Attachment) (*attach.Found, error) {
	if !byPath(a) {
		return attach.Find(a, r.host)
	}
	one, err := r.seek(a)
	if err != nil {
		return nil, err
	}
	// The caller owns it now.
	delete(r.byKey, findKey(a))
	return one.found, one.err
}

// Keep keeps the target of an attachment that another reconcile will ask for, if it was
// found already.
func (r *Round) Keep(a plan.Attachment) {
	if byPath(a) {
		r.sought[findKey(a)] = true
	}
}

// Await returns an *UnansweredError while Find has no answer.
func (r *Round) Await(a plan.Attachment) error {
	if !byPath(a) {
		return nil
	}
	_, err := r.seek(a)
	return err
}

// seek finds a target by its path. The target is kept until Find takes it, or until no
// reconcile seeks it.
func (r *Round) seek(a plan.Attachment) (*answer, error) {
	host := r.host
	return r.lookUp(findKey(a), false, a, func() (got answer) {
		got.found, got.err = attach.Find(a, host)
		return got
	})
}

func findKey(a plan.Attachment) string {
	return fmt.Sprintf("find %s %s %#v", a.Application, a.Hook, a.Target)
}

// lookUp calls do, which may take for ever, beside the loop, and waits a little for its
// answer, which is kept. refresh calls it again, and returns the answer before until then.
// It fails with *UnansweredError where there is no answer yet.
func (r *Round) lookUp(key string, refresh bool, a plan.Attachment, do func() answer) (*answer, error) {
	r.sought[key] = true
	one := r.byKey[key]
	if one == nil || refresh && one.ticket.IsDone() {
		one = r.start(a, one, do)
		r.byKey[key], r.started[one] = one, true
	}
	switch {
	case one.ticket.IsDone():
		return &one.answer, nil
	case one.before != nil:
		return one.before, nil
	}
	return nil, r.unanswered(a, one)
}

// start starts a look-up, and waits for it as long as its application may delay the reconcile. last is the one before
// it, or nil.
func (r *Round) start(a plan.Attachment, last *lookup, do func() answer) *lookup {
	one := &lookup{asked: r.now, full: r.full}
	if last != nil {
		before := last.answer
		one.before = &before
	}
	application := a.Application
	one.ticket = r.queue.Add(queue.Job{
		What: application.String() + " looks for " + a.Binary + a.NetworkNamespace, Owners: []string{queue.OwnerOf(application.Name, application)},
		Part: application.String(), Urgent: true, Awaited: true,
		Run: func(context.Context) bool {
			one.answer = do()
			return one.before == nil || !one.before.same(&one.answer)
		},
	})
	most := min(lookupGrace-r.waited[application], lookupsGrace-r.waitedAll)
	if !one.ticket.HasBegun() {
		most = 0
	}
	began := time.Now()
	one.ticket.Await(most)
	took := time.Since(began)
	r.waited[application] += took
	r.waitedAll += took
	return one
}
