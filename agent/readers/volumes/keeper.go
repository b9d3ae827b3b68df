// Package volumes keeps the volumes in which pods find the maps that they were granted. It must not decide who is granted what, which
// package grants does, and it mounts nothing itself: package mounter does, in another process.
//
// The agent's loop leaves snapshots of what is granted and loaded, and waits for nothing. Volumes that are mounted are found again by
// what the mounter lists, each with the record of whose it is: there is no other one.
package volumes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/agent/state/objects"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/skepmap"
)

// Mounter mounts volumes. It is a mounter.Client but in tests.
type Mounter interface {
	Mount(ctx context.Context, v mounter.Volume, group uint32, record []byte, pins []mounter.Pin) (*os.File, error)
	Update(ctx context.Context, v mounter.Volume, pins []mounter.Pin) (*os.File, error)
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
}

// Request is a volume that a pod is to have.
type Request struct {
	Claim
	At mounter.Volume
	// Group is that of the pins and files.
	Group uint32
}

// Keeper keeps volumes. Its methods may be called from several goroutines, but for Withdraw and Publish, which are the loop's.
type Keeper struct {
	o      Options
	loop   loop
	server *serve.Server

	handed    sync.Mutex
	published published

	mu       sync.Mutex
	snapshot snapshot
	volumes  map[mounter.Volume]*volume
}

// volume is one that is mounted, or may be: until the mounter has answered that it is, isMounted is false.
type volume struct {
	Claim
	group     uint32
	isMounted bool
	// app is the application that the volume has what it is of, where done is set.
	app  *application
	done bool
	// granted is what the socket answers for.
	granted content
	listing skepmap.Listing
	socket  *serve.Folder
}

// New returns a keeper, which knows of no volume before Run.
func New(o Options) *Keeper {
	o.Patience, o.Retry = cmp.Or(o.Patience, 10*time.Second), cmp.Or(o.Retry, 5*time.Second)
	return &Keeper{o: o, server: serve.New(serve.Options{}), published: published{changed: make(chan struct{})}, volumes: map[mounter.Volume]*volume{}}
}

// Run finds the volumes that are mounted, and keeps all up to date, until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	found := false
	for ctx.Err() == nil {
		changed := k.changed()
		if !found {
			err := k.find(ctx)
			if found = err == nil; err != nil {
				k.o.Log.Warn("volumes of pods are not looked after until the mounter answers", "error", err)
			}
		}
		var again <-chan time.Time
		if failed := k.applyAll(ctx); failed || !found {
			again = time.After(k.o.Retry)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		}
	}
}

// Close ends the sockets of volumes, which stay mounted. The loop has ended, and Run has.
func (k *Keeper) Close() {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	for _, v := range k.volumes {
		v.close()
	}
	for _, app := range k.loop.made {
		if app.loaded != nil {
			app.loaded.close()
		}
	}
}

func (v *volume) close() {
	if v.socket != nil {
		_ = v.socket.Close()
		v.socket = nil
	}
}

// find finds the volumes that are mounted.
func (k *Keeper) find(ctx context.Context) error {
	mounted, err := k.o.Mounter.List(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range mounted {
		if k.volumes[m.Volume] != nil {
			continue
		}
		v := &volume{group: m.Group, isMounted: true}
		if err := json.Unmarshal(m.Record, &v.Claim); err != nil {
			// It is of no application, and gets nothing.
			k.o.Log.Warn("a volume has no record of whose it is", "volume", m.Volume.String(), "error", err)
		}
		k.volumes[m.Volume] = v
	}
	return nil
}

// applyAll has all volumes have what they should, and reports whether one has not.
func (k *Keeper) applyAll(ctx context.Context) (failed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	if k.snapshot == nil {
		return false
	}
	for at, v := range k.volumes {
		// A mounter that hangs takes long for each.
		k.take()
		app := k.snapshot[v.Application]
		if v.done && v.app == app {
			continue
		}
		err := k.apply(ctx, at, v, app)
		switch gone := errors.Is(err, mounter.ErrNotMounted); {
		case gone && v.isMounted:
			v.close()
			delete(k.volumes, at)
			continue
		case gone:
			// The mounter may come to it yet. The kubelet asks again, or has it unmounted.
			err = nil
		}
		v.app, v.done = app, err == nil
		if err != nil {
			failed = true
			k.o.Log.Error("a volume of a pod does not have what it should", "volume", at.String(), "pod", v.Namespace+"/"+v.Pod, "error", err)
		}
	}
	return failed
}

// apply has a volume have what an application grants it now. Where that is nothing, or cannot be found out, the volume stays, without maps.
func (k *Keeper) apply(ctx context.Context, at mounter.Volume, v *volume, app *application) error {
	c, failed := k.content(v.Claim, app)
	if errors.Is(failed, ErrNotGranted) || errors.Is(failed, ErrNotThere) {
		failed = nil
	}
	v.narrow(c)
	dir, err := k.o.Mounter.Update(ctx, at, k.pins(c))
	if err == nil {
		err = k.fill(v, dir, c)
	}
	return errors.Join(failed, err)
}

// content is what a claim has of an application; with an error, what is certain of it.
func (k *Keeper) content(c Claim, app *application) (content, error) {
	nothing := content{application: skepmap.Application{Kind: c.Application.Kind, Namespace: c.Application.Namespace, Name: c.Application.Name}}
	if app != nil && c.isGranted(app.payload.Maps) {
		if err := k.learn(app.loaded); err != nil {
			return nothing, err
		}
	}
	has, err := c.wanted(app)
	if err != nil {
		return nothing, err
	}
	return c.content(app, has)
}

// pins are those that the mounter has to make.
func (k *Keeper) pins(c content) []mounter.Pin {
	if !k.o.Pins {
		return nil
	}
	return c.pins()
}

// fill writes the files of a volume that has its pins, and answers on its socket.
func (k *Keeper) fill(v *volume, dir *os.File, c content) error {
	defer func() { _ = dir.Close() }()
	c.hasPins = k.o.Pins && isFolder(filepath.Join(pathOf(dir), mounter.ReadOnly))
	listing, err := c.write(pathOf(dir))
	if err != nil {
		return err
	}
	if v.socket == nil {
		l, err := serve.Listen(filepath.Join(pathOf(dir), skepmap.SocketFile), 0o660, int(v.group))
		if err != nil {
			return err
		}
		v.socket = k.server.Serve(l, v.Namespace)
	}
	v.granted, v.listing = c, listing
	return v.grant(c)
}

// grant has the socket answer for maps of a listing.
func (v *volume) grant(c content) error {
	all := map[string]serve.Granted{}
	var failed error
	for _, e := range c.maps {
		clone, err := plain.Of(e.of.Clone())
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		all[e.name] = serve.Granted{Info: v.listing.Maps[e.name], Map: clone}
	}
	return errors.Join(failed, v.socket.Grant(all))
}

// narrow has the socket answer for nothing that a volume should not have any more, before the mounter is asked.
func (v *volume) narrow(next content) {
	if v.socket == nil {
		return
	}
	var kept content
	for _, e := range v.granted.maps {
		for _, n := range next.maps {
			if e.name == n.name && e.id == n.id && e.to == n.to {
				n.info = e.info
				kept.maps = append(kept.maps, n)
			}
		}
	}
	if len(kept.maps) < len(v.granted.maps) {
		_ = v.grant(kept)
		v.granted = kept
	}
}

// Mount mounts a volume with the maps that its pod was granted. It waits a while for a program that is not loaded. The error wraps
// ErrNotGranted or ErrNotThere where nothing is to be had; nothing is mounted then.
func (k *Keeper) Mount(ctx context.Context, r Request) error {
	patience, cancel := context.WithTimeout(ctx, k.o.Patience)
	defer cancel()
	for {
		changed := k.changed()
		err := k.mount(ctx, r)
		if !errors.Is(err, ErrNotThere) {
			return err
		}
		select {
		case <-patience.Done():
			return err
		case <-changed:
		}
	}
}

// mount is Mount without waiting.
func (k *Keeper) mount(ctx context.Context, r Request) error {
	record, err := json.Marshal(r.Claim)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	if k.snapshot == nil {
		return fmt.Errorf("%w: the agent has started, and has not looked at the kernel yet", ErrNotThere)
	}
	app := k.snapshot[r.Application]
	c, err := k.content(r.Claim, app)
	v := k.volumes[r.At]
	switch {
	case v != nil && v.Claim == r.Claim && v.isMounted:
		// The kubelet has started again. What runs keeps its volume, with or without maps.
		err = k.apply(ctx, r.At, v, app)
		if !errors.Is(err, mounter.ErrNotMounted) {
			return err
		}
		v.close()
		delete(k.volumes, r.At)
		if c, err = k.content(r.Claim, app); err != nil {
			return err
		}
	case v != nil && v.Claim != r.Claim:
		return fmt.Errorf("%s is mounted for %+v; delete the pod", r.At, v.Claim)
	case err != nil && v != nil:
		return cmp.Or(k.unmount(ctx, r.At), err)
	case err != nil:
		return err
	}
	v = &volume{Claim: r.Claim, group: r.Group, app: app}
	k.volumes[r.At] = v
	dir, err := k.o.Mounter.Mount(ctx, r.At, r.Group, record, k.pins(c))
	if err != nil {
		return err
	}
	v.isMounted = true
	err = k.fill(v, dir, c)
	v.done = err == nil
	return err
}

// Unmount unmounts a volume. One that is not mounted is no error.
func (k *Keeper) Unmount(ctx context.Context, at mounter.Volume) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	return k.unmount(ctx, at)
}

// unmount is Unmount of a caller that holds mu. A volume that may be mounted still is looked after as before.
func (k *Keeper) unmount(ctx context.Context, at mounter.Volume) error {
	if v := k.volumes[at]; v != nil {
		v.close()
		v.done = false
	}
	err := k.o.Mounter.Unmount(ctx, at)
	if err == nil {
		delete(k.volumes, at)
	}
	return err
}
