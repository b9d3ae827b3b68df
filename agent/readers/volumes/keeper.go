// Package volumes keeps the volumes in which pods find the maps that they were granted. It must not decide who is granted what, which
// package grants does, and it mounts nothing itself: package mounter does, in another process.
//
// The agent's loop leaves snapshots of what is granted and loaded, and waits for nothing. Sockets answer for nothing that the newest one
// does not grant, before anything slow: no lock is held while the mounter, an object or a file is waited for, but a volume's own. Volumes
// that are mounted are found again by what the mounter lists, each with the record of whose it is: there is no other one.
package volumes

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/agent/state/objects"
)

// Mounter mounts volumes. It is a mounter.Client but in tests.
type Mounter interface {
	Mount(ctx context.Context, v mounter.Volume, group uint32, record []byte, pins []mounter.Pin) (*os.File, error)
	Update(ctx context.Context, v mounter.Volume, pins []mounter.Pin) (*os.File, error)
	Narrow(ctx context.Context, v mounter.Volume, keep []mounter.Pin) error
	Unmount(ctx context.Context, v mounter.Volume) error
	List(ctx context.Context) ([]mounter.Mounted, error)
}

// Options are those of a keeper. Mounter, Objects and Log are required.
type Options struct {
	Mounter Mounter
	// Objects has what is loaded, whose types and flags of maps the kernel does not tell.
	Objects *objects.Cache
	Log     *slog.Logger
	// Pins has volumes have pins, where they were mounted with folders for these.
	Pins bool
	// Patience is how long a mount waits for a program to be loaded; default 10 seconds. The kubelet asks again after it.
	Patience time.Duration
	// Retry is how long it takes until what failed is tried again, where nothing changes; default 5 seconds.
	Retry time.Duration
	// Bounds are how many volumes there may be. Zero values stand for the defaults.
	Bounds Bounds
}

// The requests to the mounter at a time, which answers 16. What takes rights away waits for nothing else, and for no answer longer than
// withdrawal: then another volume has its turn.
const (
	withdrawals = 4
	others      = 8
	withdrawal  = 5 * time.Second
)

// Keeper keeps volumes. Its methods may be called from several goroutines, but for Withdraw and Publish, which are the loop's.
type Keeper struct {
	o      Options
	loop   loop
	server *serve.Server

	handed    sync.Mutex
	published published

	// withdraws and asks have a token for each request to the mounter.
	withdraws, asks chan struct{}
	// learning has one object at a time read.
	learning sync.Mutex

	// mu guards what follows, and the fields of volumes but those of who is busy with one. It is held over nothing slow.
	mu       sync.Mutex
	snapshot snapshot
	// newest are the newest intents before there is a snapshot, which needs a look at the kernel.
	newest  *newest
	volumes map[mounter.Volume]*volume
	closed  bool
}

// volume is one that is mounted, or may be.
type volume struct {
	Claim
	at    mounter.Volume
	group uint32
	// busy has a token of who asks the mounter for the volume, and writes its files.
	busy chan struct{}
	// isMounted is set when the mounter has answered that it is, and isTried when it was asked. They belong to who is busy.
	isMounted, isTried bool

	// app is the application that the volume has what it is of, where done is set.
	app  *application
	done bool
	// loses is whether the volume has to lose something yet, and follows whether follow runs for it.
	loses, follows bool
	socket         *serve.Folder
	// narrowed are the newest intents by which pins were removed.
	narrowed *newest
}

func newVolume(at mounter.Volume, c Claim, group uint32) *volume {
	return &volume{Claim: c, at: at, group: group, busy: make(chan struct{}, 1)}
}

// New returns a keeper, which knows of no volume before Run.
func New(o Options) *Keeper {
	o.Patience, o.Retry = cmp.Or(o.Patience, 10*time.Second), cmp.Or(o.Retry, 5*time.Second)
	o.Bounds = o.Bounds.orDefaults()
	k := &Keeper{o: o, published: published{changed: make(chan struct{})}, volumes: map[mounter.Volume]*volume{},
		withdraws: make(chan struct{}, withdrawals), asks: make(chan struct{}, others)}
	k.server = serve.New(serve.Options{IsLoaded: k.isLoaded})
	return k
}

// Run finds the volumes that are mounted, and keeps all up to date, until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { k.find(ctx) })
	for ctx.Err() == nil {
		changed := k.changed()
		k.mu.Lock()
		k.take()
		for _, v := range k.volumes {
			if k.isBehind(v) && !v.follows {
				v.follows = true
				work.Go(func() { k.follow(ctx, v) })
			}
		}
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// Close ends the sockets of volumes, which stay mounted. The loop has ended, and Run has.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	k.take()
	k.snapshot, k.closed = nil, true
	var sockets []*serve.Folder
	for _, v := range k.volumes {
		sockets = append(sockets, v.leave())
	}
	k.mu.Unlock()
	closeSockets(sockets...)
	for _, app := range k.loop.made {
		if app.loaded != nil {
			app.loaded.close()
		}
	}
}

// leave takes a volume's socket away, which the caller closes. The caller holds mu.
func (v *volume) leave() *serve.Folder {
	socket := v.socket
	v.socket, v.done = nil, false
	return socket
}

// closeSockets waits for what they answer: it must not be called with mu.
func closeSockets(all ...*serve.Folder) {
	for _, s := range all {
		if s != nil {
			_ = s.Close()
		}
	}
}

// find finds the volumes that are mounted, as soon as the mounter answers.
func (k *Keeper) find(ctx context.Context) {
	for {
		mounted, err := k.o.Mounter.List(ctx)
		if err == nil {
			k.found(mounted)
			return
		}
		if ctx.Err() == nil {
			k.o.Log.Warn("volumes of pods are not looked after until the mounter answers", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(k.o.Retry):
		}
	}
}

// found adds volumes that are mounted. The bounds are for those that come.
func (k *Keeper) found(mounted []mounter.Mounted) {
	k.mu.Lock()
	for _, m := range mounted {
		if k.volumes[m.Volume] != nil {
			continue
		}
		v := newVolume(m.Volume, Claim{}, m.Group)
		v.isMounted, v.isTried = true, true
		if err := json.Unmarshal(m.Record, &v.Claim); err != nil {
			// It is of no application, and gets nothing.
			k.o.Log.Warn("a volume has no record of whose it is", "volume", m.Volume.String(), "error", err)
		}
		k.volumes[m.Volume] = v
	}
	k.mu.Unlock()
	k.signal()
}

// Count is how many volumes have what they should, and how many do not, such as while the mounter is away.
func (k *Keeper) Count() (current, behind int) {
	if k == nil {
		return 0, 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range k.volumes {
		if k.isBehind(v) {
			behind++
		}
	}
	return len(k.volumes) - behind, behind
}

// isBehind reports whether a volume does not have what it should. The caller holds mu.
func (k *Keeper) isBehind(v *volume) bool {
	switch {
	case k.volumes[v.at] != v:
		return false
	case k.snapshot == nil:
		return k.o.Pins && v.narrowed != k.newest
	}
	return !v.done || v.app != k.snapshot[v.Application]
}
