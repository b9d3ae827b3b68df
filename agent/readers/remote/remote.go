// Package remote reads maps on this node for a person who asked the cluster: at a bounded share of a core, next to the loop. It
// owns how much, how often and for how long; it decides on no right, takes no connection and changes no map.
package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/skep-dev/skep/agent/readers/show"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
)

// Options are the bounds of a Reader. Zero values stand for the defaults.
type Options struct {
	// Root is the folder of Skep's pins. Required.
	Root string
	// Log is where each read is logged. Required.
	Log *slog.Logger
	// UserBurst is how many reads one user may begin at once, 20, and NodeBurst how many all may, 40. Each second adds one, and two.
	UserBurst, NodeBurst int
	// AtOnce is how many reads there are at once, 2, and Watches how many watches, 4.
	AtOnce, Watches int
	// Share is the share of a core that one read may cost, 0.1.
	Share float64
	// Entries and Bytes bound an answer: 100,000 and 8 MiB. A watch may have eight times as many bytes.
	Entries, Bytes int
	// Time bounds a read, 25 seconds, and WatchTime a watch, 10 minutes.
	Time, WatchTime time.Duration
}

// Reader reads maps. It is safe for concurrent use.
type Reader struct {
	o     Options
	node  *rate.Limiter
	users *cache.LRUExpireCache
	// reads and watches are places.
	reads, watches chan struct{}

	mu sync.Mutex
	// has counts the places of each user.
	has map[place]int
	// watched are the maps that somebody watches, by id.
	watched map[uint32]struct{}
}

// place is a user's, of one kind.
type place struct {
	share, kind string
}

// The limits of limiters: how many reads of a user and of the node begin in a second, and of how many users they are remembered.
const (
	userPerSecond, nodePerSecond = 1, 2
	maxUsers                     = 1024
)

// New makes a Reader.
func New(o Options) *Reader {
	o.UserBurst, o.NodeBurst = cmp.Or(o.UserBurst, 20), cmp.Or(o.NodeBurst, 40)
	o.AtOnce, o.Watches = cmp.Or(o.AtOnce, 2), cmp.Or(o.Watches, 4)
	o.Share = cmp.Or(o.Share, .1)
	o.Entries, o.Bytes = cmp.Or(o.Entries, 100_000), cmp.Or(o.Bytes, 8<<20)
	o.Time, o.WatchTime = cmp.Or(o.Time, 25*time.Second), cmp.Or(o.WatchTime, 10*time.Minute)
	return &Reader{
		o: o, node: rate.NewLimiter(nodePerSecond, o.NodeBurst), users: cache.NewLRUExpireCache(maxUsers),
		reads: make(chan struct{}, o.AtOnce), watches: make(chan struct{}, o.Watches), has: map[place]int{},
		watched: map[uint32]struct{}{},
	}
}

// codeOf is the status that an error has.
func codeOf(err error) int {
	var known noderequest.Failure
	switch {
	case errors.As(err, &known):
		return known.Code
	case errors.Is(err, show.ErrNotFound):
		return noderequest.NotFound
	}
	return noderequest.Unprocessable
}

// Read answers a request by lines, of which the last has an End or an Error. It waits for send, and ends where that returns an
// error or ctx ends.
func (r *Reader) Read(ctx context.Context, request mapread.Request, send func(noderequest.Answer) error) {
	log := r.o.Log.With("user", request.User, "application", request.Application.String(), "operation", string(request.Operation),
		"map", request.Map, "request", request.ID)
	leave, err := r.enter(request)
	if err != nil {
		log.Warn("a read of a map is rejected", "error", err)
		_ = send(noderequest.Answer{Error: err.Error(), Code: codeOf(err)})
		return
	}
	defer leave()
	log.Info("reading a map for a user of the cluster")
	// What a thread worked is measured.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := &answer{send: send, share: r.o.Share, entries: r.o.Entries, bytes: r.o.Bytes, measured: threadTime()}
	err = r.safely(ctx, log, request, a)
	log.Info("read a map for a user of the cluster", "lines", a.sent, "bytes", a.size, "error", err)
	if err != nil {
		_ = send(noderequest.Answer{Error: err.Error(), Code: codeOf(err)})
		return
	}
	_ = send(noderequest.Answer{End: true})
}

// enter takes a place, within what the user and the node may.
func (r *Reader) enter(request mapread.Request) (leave func(), err error) {
	places, what := r.reads, "reads"
	if request.Operation == mapread.Watch {
		places, what = r.watches, "watches"
	}
	if !r.limiter(request.Share()).Allow() || !r.node.Allow() {
		return nil, noderequest.Fail(noderequest.TooMany, "node %s was asked too often: a user may begin %d read a second, and all users %d; "+
			"try again in a few seconds",
			request.Node, userPerSecond, nodePerSecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	own := place{request.Share(), what}
	if most := max(cap(places)/2, 1); r.has[own] >= most {
		return nil, noderequest.Fail(noderequest.TooMany, "%s may have %d of the %d %s of maps on node %s at once; end one",
			request.Share(), most, cap(places), what, request.Node)
	}
	select {
	case places <- struct{}{}:
	default:
		return nil, noderequest.Fail(noderequest.TooMany, "node %s has %d %s of maps, and no more are allowed at once; try again later",
			request.Node, cap(places), what)
	}
	r.has[own]++
	return func() {
		<-places
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.has[own]--; r.has[own] == 0 {
			delete(r.has, own)
		}
	}, nil
}

// limiter is a share's own.
func (r *Reader) limiter(share string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	own, ok := r.users.Get(share)
	if !ok {
		own = rate.NewLimiter(userPerSecond, r.o.UserBurst)
		r.users.Add(share, own, time.Hour)
	}
	return own.(*rate.Limiter)
}

// safely is do, of which no request can end the agent: keys and names of types are a user's to choose, and BTF an object's.
func (r *Reader) safely(ctx context.Context, log *slog.Logger, request mapread.Request, a *answer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("a read of a map failed inside", "error", p, "stack", string(debug.Stack()))
			err = noderequest.Fail(noderequest.Inside, "the agent failed to read this, and logged why; please report it")
		}
	}()
	return r.do(ctx, request, a)
}

// do reads what is asked for.
func (r *Reader) do(ctx context.Context, request mapread.Request, a *answer) error {
	limit := r.o.Time
	if request.Operation == mapread.Watch {
		limit = r.o.WatchTime
		a.bytes, a.entries = 8*r.o.Bytes, 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, noderequest.Fail(noderequest.Late, "the answer ends here: it may take %s", limit))
	defer cancel()
	maps, err := show.Pinned(r.o.Root, request.UID, request.Application.String())
	if err != nil {
		return err
	}
	if request.Operation == mapread.List {
		return list(ctx, maps, request, a)
	}
	m, err := show.Find(maps, request.Application.String(), request.Map)
	if err != nil {
		return err
	}
	if request.Operation == mapread.Watch {
		return r.watch(ctx, m, request, a)
	}
	entries, err := show.Open(m)
	if err != nil {
		return err
	}
	defer entries.Close()
	if request.Operation == mapread.Dump {
		return entries.All(ctx, func(e show.Entry) error { return a.add(ctx, e) })
	}
	entry, err := entries.Get(request.Key)
	if err != nil {
		return err
	}
	return a.add(ctx, entry)
}

// listed is a map without what only a host's admin reads: its pin, and processes.
type listed struct {
	Application string `json:"application"`
	Name        string `json:"name"`
	ID          uint32 `json:"id"`
	Type        string `json:"type"`
	KeySize     uint32 `json:"keySize"`
	ValueSize   uint32 `json:"valueSize"`
	MaxEntries  uint32 `json:"maxEntries"`
}

func list(ctx context.Context, maps []show.Map, request mapread.Request, a *answer) error {
	if len(maps) == 0 {
		return noderequest.Fail(noderequest.NotFound, "no map of application %s is on node %s: it does not run there, or its programs have no map",
			request.Application, request.Node)
	}
	for _, m := range maps {
		if err := a.add(ctx, listed{m.Application, m.Name, m.ID, m.Type, m.KeySize, m.ValueSize, m.MaxEntries}); err != nil {
			return err
		}
	}
	return nil
}

// watch answers records, if no other user watches the map.
func (r *Reader) watch(ctx context.Context, m show.Map, request mapread.Request, a *answer) error {
	r.mu.Lock()
	_, busy := r.watched[m.ID]
	r.watched[m.ID] = struct{}{}
	r.mu.Unlock()
	if busy {
		return noderequest.Fail(noderequest.Conflict, "map %s of %s is watched by another user on node %s, and two consumers lose records: "+
			"try again when that watch has ended",
			m.Name, m.Application, request.Node)
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watched, m.ID)
	}()
	// To look at all processes takes long where there are many.
	m, err := m.Holders(ctx)
	if err == nil {
		err = a.rest(ctx)
	}
	if err != nil {
		return err
	}
	return show.Watch(ctx, m, request.Type, func(record show.Record) error { return a.add(ctx, record) })
}

// answer sends lines within the bounds of a read.
type answer struct {
	send  func(noderequest.Answer) error
	share float64
	// entries and bytes are how many there may be; no entries means any number.
	entries, bytes int
	sent, size     int
	// measured is the time of the thread until which the answer has rested.
	measured time.Duration
}

// grain is how long a thread works before it rests.
const grain = 2 * time.Millisecond

// add sends a value, and rests where the thread worked long enough.
func (a *answer) add(ctx context.Context, value any) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	switch {
	case len(line) > noderequest.MaxAnswer-1<<10:
		return noderequest.Fail(noderequest.TooLarge, "the answer ends here: an entry or record takes %d bytes, and at most %d are sent; "+
			"read it on the node by skep map",
			len(line), noderequest.MaxAnswer-1<<10)
	case a.entries > 0 && a.sent >= a.entries, a.size+len(line) > a.bytes:
		return noderequest.Fail(noderequest.TooLarge, "the answer ends here, after %d lines of %d bytes: there is more than one answer may have; "+
			"ask for keys by get, or read the map on the node by skep map dump", a.sent, a.size)
	}
	if err := a.send(noderequest.Answer{Value: line}); err != nil {
		return err
	}
	a.sent++
	a.size += len(line)
	return a.rest(ctx)
}

// rest waits until what the thread worked is its share of the time.
func (a *answer) rest(ctx context.Context) error {
	worked := threadTime() - a.measured
	if worked < grain {
		return nil
	}
	rest := time.NewTimer(time.Duration(float64(worked) * (1/a.share - 1)))
	defer rest.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-rest.C:
	}
	a.measured = threadTime()
	return nil
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
