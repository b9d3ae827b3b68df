// Package queue runs jobs that may take long, or for ever, next to the agent's loop: loads, calls of
// the kernel, fetches, look-ups. It owns their order and their bounds, and knows nothing of what a
// job does.
//
// Owners take turns: the owner that was served longest ago is next. A job that hangs keeps a place of its
// owner. An owner with nothing under way has a place as long as fewer than mostOwners owners have one; only its
// further jobs take part in the shared places. So no owner, however many of its jobs hang, takes the place of
// another one. Applications of the cluster have a reserve of both. What remains: while the jobs of mostOwners
// namespaces hang in one queue, a further namespace waits until one of them ends.
package queue

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The places of one queue. A job that hangs in the kernel takes a thread, of which a Go program has at most
// 10,000. A node rarely has 250 pods, and so many namespaces.
const (
	// shared is how many further jobs of owners that have one may be under way, and mostOwners how many owners
	// may have one.
	shared, mostOwners = 128, 1024
	// The reserve is how many more of both there may be for an application of the cluster.
	sharedReserve, ownersReserve = 128, 64
)

// OwnerOf returns the owner of an application, which shares turns and bounds: its namespace. An application of
// the cluster is an owner itself, with a name that no namespace has.
func OwnerOf(uid string, app v1alpha1.Identity) string { return cmp.Or(app.Namespace, "/"+uid) }

// isOfCluster reports whether an owner is no namespace.
func isOfCluster(owner string) bool { return owner == "" || strings.HasPrefix(owner, "/") }

// Job is something to do once.
type Job struct {
	// Run does the job on a goroutine of its own, and reports whether its end is news to the loop.
	// The context ends when the queue is closed. A job without Run keeps its place until Go.
	Run func(context.Context) (news bool)
	// Prepare, if set, is called before Run by the goroutine that has the job begin, and may not call
	// the queue. If it returns false, the job ends without Run.
	Prepare func() bool
	// What names the job for the log.
	What string
	// Owners wait for the job; it counts for the one whose turn it takes. None is the cluster.
	Owners []string
	// Part is the part of an owner that has a bound of its own, such as an application.
	Part string
	// Urgent jobs are the next of their owner, and the end of each wakes the loop; of the other jobs, the
	// end of the owner's last one does.
	Urgent bool
	// Awaited jobs do not wake the loop before Await has returned.
	Awaited bool
	// Owed jobs are taken whatever the bounds are.
	Owed bool
	// Place is the place in the order of arrival that Ticket.Place returned for an earlier job; zero is the last.
	Place uint64
}

// Options are the settings of a queue. Log and Wake are required.
type Options struct {
	// Concurrent is how many jobs are under way at once, slow ones not counted; zero is any number.
	Concurrent int
	// PerOwner is how many jobs of an owner are under way at once, and PerPart how many of a part of it; zero is one,
	// and any number.
	PerOwner, PerPart int
	// MaxOfOwner is how many jobs of an owner are taken that have not ended, and Max how many of all, beyond which each
	// owner has one; zero is any number.
	MaxOfOwner, Max int
	// Slow is how long a job takes before SlowMessage is logged; zero is for ever. It does not count as one of Concurrent
	// from then on, unless SlowCounts.
	Slow        time.Duration
	SlowMessage string
	SlowCounts  bool
	// OnCall has jobs begin in Next alone, on the caller's goroutine.
	OnCall bool
	Log    *slog.Logger
	// Wake wakes the loop. It is called from any goroutine, and may not call the queue.
	Wake func()
}

// Queue runs jobs. All methods may be called from any goroutine.
type Queue struct {
	Options
	ctx  context.Context
	stop context.CancelFunc
	wait sync.WaitGroup

	mu sync.Mutex
	// lines are the jobs that wait, by owner: urgent ones first, then in the order of arrival.
	lines map[string][]*Ticket
	// running are the jobs under way by the owner that they count for, total is their number, and fast
	// how many of them count to Concurrent.
	running     map[string][]*Ticket
	total, fast int
	// served is the number of the last job of an owner, as long as that is needed to choose.
	served   map[string]uint64
	sequence uint64
	// settled is closed when fast is zero; nil if there is no wait.
	settled chan struct{}
}

// New returns an empty queue.
func New(o Options) *Queue {
	o.PerOwner = cmp.Or(o.PerOwner, 1)
	q := &Queue{Options: o, lines: map[string][]*Ticket{}, running: map[string][]*Ticket{}, served: map[string]uint64{}}
	q.ctx, q.stop = context.WithCancel(context.Background())
	return q
}

// HasRoom reports whether Add takes a job of an owner that is not owed. If it is alone of its kind,
// the owner may have no other urgent job.
func (q *Queue) HasRoom(owner string, alone bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if alone {
		isUrgent := func(t *Ticket) bool { return t.job.Urgent }
		return !slices.ContainsFunc(q.lines[owner], isUrgent) && !slices.ContainsFunc(q.running[owner], isUrgent)
	}
	return q.hasRoom(owner)
}

func (q *Queue) hasRoom(owner string) bool {
	own, all := q.of(owner), q.total
	for _, line := range q.lines {
		all += len(line)
	}
	return own == 0 || (q.MaxOfOwner == 0 || own < q.MaxOfOwner) && (q.Max == 0 || all < q.Max)
}

// Add takes a job, which begins when it is its turn. It returns nil where the first owner has no
// room, and from a closed queue: the job is not taken then. To ask and to take is one step.
func (q *Queue) Add(j Job) *Ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(j.Owners) == 0 {
		j.Owners = []string{""}
	}
	if q.ctx.Err() != nil || !j.Owed && !q.hasRoom(j.Owners[0]) {
		return nil
	}
	if j.Place == 0 {
		q.sequence++
		j.Place = q.sequence
	}
	owners := j.Owners
	j.Owners = nil
	t := &Ticket{queue: q, job: j, done: make(chan struct{})}
	for _, owner := range owners {
		q.line(t, owner)
	}
	q.startUnlessOnCall(slices.Values(t.job.Owners))
	return t
}

// line puts a job in the line of an owner.
func (q *Queue) line(t *Ticket, owner string) {
	if slices.Contains(t.job.Owners, owner) {
		return
	}
	t.job.Owners = append(t.job.Owners, owner)
	at, _ := slices.BinarySearchFunc(q.lines[owner], t, func(a, b *Ticket) int {
		switch {
		case a.job.Urgent == b.job.Urgent:
			return cmp.Or(cmp.Compare(a.job.Place, b.job.Place), -1)
		case a.job.Urgent:
			return -1
		}
		return 1
	})
	q.lines[owner] = slices.Insert(q.lines[owner], at, t)
}

// leave takes a job out of all lines.
func (q *Queue) leave(t *Ticket) (waited bool) {
	for _, owner := range t.job.Owners {
		i := slices.Index(q.lines[owner], t)
		if i < 0 {
			continue
		}
		waited = true
		if q.lines[owner] = slices.Delete(q.lines[owner], i, i+1); len(q.lines[owner]) == 0 {
			delete(q.lines, owner)
		}
	}
	return waited
}

// Next has begin what may begin.
func (q *Queue) Next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.start(maps.Keys(q.lines))
	q.forget()
}

// Running returns how many jobs are under way.
func (q *Queue) Running() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}

// Of returns how many jobs of an owner have not ended.
func (q *Queue) Of(owner string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.of(owner)
}

func (q *Queue) of(owner string) int { return len(q.lines[owner]) + len(q.running[owner]) }

// Settle waits until no job is under way but slow ones, or the context ends. What waits then, waits
// for slow jobs of its owner.
func (q *Queue) Settle(ctx context.Context) {
	q.mu.Lock()
	if q.fast == 0 {
		q.mu.Unlock()
		return
	}
	if q.settled == nil {
		q.settled = make(chan struct{})
	}
	settled := q.settled
	q.mu.Unlock()
	select {
	case <-settled:
	case <-ctx.Done():
	}
}

// Wait waits until every job has ended.
func (q *Queue) Wait() { q.wait.Wait() }

// Close drops the jobs that wait, and ends the context of those that are under way, for which it does not wait. A closed
// queue takes no job.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stop()
	clear(q.lines)
}

// startUnlessOnCall has begin what may of the owners, and ends the wait of Settle.
func (q *Queue) startUnlessOnCall(owners iter.Seq[string]) {
	if !q.OnCall {
		q.start(owners)
	}
	if q.fast == 0 && q.settled != nil {
		close(q.settled)
		q.settled = nil
	}
}

func (q *Queue) start(owners iter.Seq[string]) {
	for q.Concurrent == 0 || q.fast < q.Concurrent {
		t, owner := q.choose(owners)
		if t == nil {
			return
		}
		q.begin(t, owner)
	}
}

// choose returns the next job, and the owner whose turn it is; nil where none may begin.
func (q *Queue) choose(owners iter.Seq[string]) (best *Ticket, turn string) {
	for owner := range owners {
		if !q.mayBegin(owner) {
			continue
		}
		line := q.lines[owner]
		i := slices.IndexFunc(line, func(t *Ticket) bool { return t.job.Run != nil && q.hasPartRoom(owner, t.job.Part) })
		if i >= 0 && (best == nil || cmp.Or(cmp.Compare(q.served[owner], q.served[turn]), cmp.Compare(line[i].job.Place, best.job.Place)) < 0) {
			best, turn = line[i], owner
		}
	}
	return best, turn
}

// mayBegin reports whether there is a place for one more job of an owner.
func (q *Queue) mayBegin(owner string) bool {
	jobs, owners := shared, mostOwners
	if isOfCluster(owner) {
		jobs, owners = jobs+sharedReserve, owners+ownersReserve
	}
	if own := len(q.running[owner]); own > 0 {
		return own < q.PerOwner && q.total-len(q.running) < jobs
	}
	return len(q.running) < owners
}

func (q *Queue) hasPartRoom(owner string, part string) bool {
	n := 0
	for _, t := range q.running[owner] {
		if t.job.Part == part {
			n++
		}
	}
	return q.PerPart == 0 || n < q.PerPart
}

// begin begins a job for an owner.
func (q *Queue) begin(t *Ticket, owner string) {
	q.leave(t)
	q.sequence++
	q.served[owner] = q.sequence
	t.begun = true
	if t.job.Prepare != nil && !t.job.Prepare() {
		close(t.done)
		return
	}
	q.running[owner] = append(q.running[owner], t)
	q.total++
	q.fast++
	var slow *time.Timer
	if q.Slow > 0 {
		slow = time.AfterFunc(q.Slow, func() { q.noteSlow(t) })
	}
	q.wait.Go(func() {
		news := t.job.Run(q.ctx)
		if slow != nil {
			slow.Stop()
		}
		q.end(t, owner, news)
	})
}

// noteSlow logs a job that takes long. Others may begin next to it.
func (q *Queue) noteSlow(t *Ticket) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.IsDone() {
		return
	}
	q.Log.Warn(q.SlowMessage, "what", t.job.What)
	if !q.SlowCounts {
		t.slow = true
		q.fast--
		q.startUnlessOnCall(maps.Keys(q.lines))
	}
}

func (q *Queue) end(t *Ticket, owner string, news bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.running[owner], t)
	if q.running[owner] = slices.Delete(q.running[owner], i, i+1); len(q.running[owner]) == 0 {
		delete(q.running, owner)
	}
	q.total--
	if !t.slow {
		q.fast--
	}
	close(t.done)
	q.startUnlessOnCall(maps.Keys(q.lines))
	if !q.OnCall {
		q.forget()
	}
	if news && !t.job.Awaited && (t.job.Urgent || q.of(owner) == 0) {
		q.Wake()
	}
}

// forget forgets when owners were served that have nothing to do, unless one that waits was served before them: they
// would go first again.
func (q *Queue) forget() {
	least := q.sequence
	for owner := range q.lines {
		least = min(least, q.served[owner])
	}
	for owner, at := range q.served {
		if q.of(owner) == 0 && at <= least {
			delete(q.served, owner)
		}
	}
}

// Ticket is a job that was handed over. A nil Ticket has ended.
type Ticket struct {
	queue *Queue
	job   Job
	done  chan struct{}
	// begun and slow: it is under way, or was, and takes long.
	begun, slow bool
}

// Go gives a job its Run that was added without.
func (t *Ticket) Go(run func(context.Context) (news bool)) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.job.Run = run
	t.queue.startUnlessOnCall(slices.Values(t.job.Owners))
}

// Join has another owner wait for the job, too: it begins at the turn of any of them.
func (t *Ticket) Join(owner string) {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	if !t.begun && t.queue.ctx.Err() == nil {
		t.queue.line(t, owner)
		t.queue.startUnlessOnCall(slices.Values(t.job.Owners))
	}
}

// Place is the job's place in the order of arrival, for a job that replaces it.
func (t *Ticket) Place() uint64 { return t.job.Place }

// HasBegun reports whether the job is under way, or was; until then it waits for others.
func (t *Ticket) HasBegun() bool {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return t.begun
}

// IsDone reports whether the job has ended. What Run wrote may be read from then on.
func (t *Ticket) IsDone() bool {
	if t == nil {
		return true
	}
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Await waits for the end of the job, at most that long, and reports whether it came. If it comes later, it wakes the loop.
func (t *Ticket) Await(most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.job.Awaited = false
	return t.IsDone()
}

// Cancel takes back a job that has not begun, and reports whether it did.
func (t *Ticket) Cancel() bool {
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	return t.queue.leave(t)
}
