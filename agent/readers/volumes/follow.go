package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/serve"
	"github.com/skep-dev/skep/skepmap"
)

// follow has a volume have what it should, and ends when it does, or with the context.
func (k *Keeper) follow(ctx context.Context, v *volume) {
	said := ""
	for {
		changed := k.changed()
		k.mu.Lock()
		k.take()
		behind := k.isBehind(v) && ctx.Err() == nil
		v.follows = behind
		k.mu.Unlock()
		if !behind {
			return
		}
		err := k.catchUp(ctx, v)
		if err == nil {
			continue
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			k.o.Log.Error("a volume of a pod does not have what it should", "volume", v.at.String(), "pod", v.Namespace+"/"+v.Pod, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(k.o.Retry):
		}
	}
}

// catchUp is one attempt of follow.
func (k *Keeper) catchUp(ctx context.Context, v *volume) error {
	end, err := k.begin(ctx, v)
	if err != nil {
		return err
	}
	defer end()
	k.mu.Lock()
	behind, first := k.isBehind(v), k.snapshot == nil
	k.mu.Unlock()
	switch {
	case !behind:
		return nil
	case first:
		err = k.narrow(ctx, v)
	default:
		err = k.apply(ctx, v)
	}
	if errors.Is(err, mounter.ErrNotMounted) {
		k.notMounted(v)
		return nil
	}
	return err
}

// narrow removes the pins of a volume that the newest intents do not grant, before the first look at the kernel. The caller is busy with it.
func (k *Keeper) narrow(ctx context.Context, v *volume) error {
	k.mu.Lock()
	now := k.newest
	k.mu.Unlock()
	var keep []mounter.Pin
	for _, a := range v.granted(now.of[v.Application]) {
		keep = append(keep, mounter.Pin{Name: escape.Replace(a.name), Write: a.isWritable()})
	}
	ctx, cancel := context.WithTimeout(ctx, withdrawal)
	defer cancel()
	err := k.o.Mounter.Narrow(ctx, v.at, keep)
	if err == nil {
		k.mu.Lock()
		v.narrowed = now
		k.mu.Unlock()
	}
	return err
}

// notMounted has an answer of the mounter that a volume is not mounted. It is gone, if it was; else the mounter may come to it yet. The
// kubelet asks again, or has it unmounted. The caller is busy with it.
func (k *Keeper) notMounted(v *volume) {
	if v.isMounted {
		k.forget(v)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	v.app, v.done, v.loses = k.snapshot[v.Application], true, false
}

// forget forgets a volume that is not mounted.
func (k *Keeper) forget(v *volume) {
	k.mu.Lock()
	socket := v.leave()
	if k.volumes[v.at] == v {
		delete(k.volumes, v.at)
	}
	k.mu.Unlock()
	closeSockets(socket)
}

// begin waits until the caller is the one who is busy with a volume, and until the mounter has room for its request.
func (k *Keeper) begin(ctx context.Context, v *volume) (end func(), err error) {
	select {
	case v.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for an earlier request for %s: %w", v.at, ctx.Err())
	}
	k.mu.Lock()
	room := k.asks
	if v.loses {
		room = k.withdraws
	}
	k.mu.Unlock()
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		<-v.busy
		return nil, fmt.Errorf("wait for the mounter, which is busy with other volumes: %w", ctx.Err())
	}
	return func() { <-room; <-v.busy }, nil
}

// current is an application as of the newest snapshot. Its maps stay open until the function that it returns.
func (k *Keeper) current(v *volume) (app *application, end func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	app = k.snapshot[v.Application]
	if app == nil || app.loaded == nil {
		return app, func() {}
	}
	for _, m := range app.loaded.maps {
		m.Share()
	}
	return app, app.loaded.close
}

// apply has a volume that may be mounted have what its application grants it now. Where that is nothing, or cannot be found out, the
// volume stays, without maps. The caller is busy with it.
func (k *Keeper) apply(ctx context.Context, v *volume) error {
	app, end := k.current(v)
	defer end()
	c, failed := k.content(v.Claim, app)
	if errors.Is(failed, ErrNotGranted) || errors.Is(failed, ErrNotThere) {
		failed = nil
	}
	k.mu.Lock()
	v.keep(c.has())
	if v.loses {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, withdrawal)
		defer cancel()
	}
	k.mu.Unlock()
	dir, err := k.o.Mounter.Update(ctx, v.at, k.pins(c))
	if err == nil {
		err = k.fill(v, dir, c, app, failed == nil)
	}
	return errors.Join(failed, err)
}

// content is what a claim has of an application; with an error, what is certain of it.
func (k *Keeper) content(c Claim, app *application) (content, error) {
	nothing := content{application: skepmap.Application{Kind: c.Application.Kind, Namespace: c.Application.Namespace, Name: c.Application.Name}}
	if app != nil && len(c.granted(app.payload)) > 0 {
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

// fill writes the files of a volume that has its pins, and answers on its socket, unless another snapshot has come. With whole, the
// volume has all of what its application grants. The caller is busy with it.
func (k *Keeper) fill(v *volume, dir *os.File, c content, app *application, whole bool) error {
	defer func() { _ = dir.Close() }()
	c.hasPins = k.o.Pins && isFolder(filepath.Join(pathOf(dir), mounter.ReadOnly))
	listing, err := c.write(pathOf(dir))
	if err != nil {
		return err
	}
	socket, err := k.socketOf(v, dir)
	if err != nil {
		return err
	}
	all := map[string]serve.Granted{}
	for _, e := range c.maps {
		all[e.name] = serve.Granted{Info: listing.Maps[e.name], Map: e.of.Share()}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	if k.closed || v.socket != socket || k.snapshot[v.Application] != app {
		for _, g := range all {
			_ = g.Map.Close()
		}
		return nil
	}
	socket.Grant(all)
	v.app, v.done, v.loses = app, whole, false
	return nil
}

// socketOf is the socket of a volume, in its folder. It answers for nothing before its first grant.
func (k *Keeper) socketOf(v *volume, dir *os.File) (*serve.Folder, error) {
	k.mu.Lock()
	socket := v.socket
	k.mu.Unlock()
	if socket != nil {
		return socket, nil
	}
	l, err := serve.Listen(filepath.Join(pathOf(dir), skepmap.SocketFile), 0o660, int(v.group))
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, l.Close()
	}
	v.socket = k.server.Serve(l, v.Namespace)
	return v.socket, nil
}

// right is what a volume has of a map.
type right struct {
	id ebpf.MapID
	to skepmap.Access
}

// has are the rights that a content gives.
func (c content) has() map[string]right {
	all := map[string]right{}
	for _, e := range c.maps {
		all[e.name] = right{e.of.ID, e.to}
	}
	return all
}

// keep has the socket answer for nothing that a volume should not have any more. The caller holds mu.
func (v *volume) keep(has map[string]right) {
	if v.socket == nil {
		return
	}
	v.socket.Keep(func(name string, g serve.Granted) bool {
		kept := has[name] == right{g.Map.ID, g.Info.Access}
		v.loses = v.loses || !kept
		return kept
	})
}
