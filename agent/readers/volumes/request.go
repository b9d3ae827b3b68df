package volumes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/readers/mounter"
)

// Request is a volume that a pod is to have.
type Request struct {
	Claim
	At mounter.Volume
	// Group is that of the pins and files.
	Group uint32
}

// ErrTooMany is the error of a pod whose volume is one too many for its namespace or for the node.
var ErrTooMany = errors.New("there are too many volumes of maps")

// Bounds are how many volumes pods have. One costs a descriptor, for its socket; maps are shared by all.
type Bounds struct {
	// Node is how many a node has: 512, or an eighth of the descriptors that the process may have, if that is fewer. A quarter of them is
	// for namespaces that have fewer than Reserved.
	Node int
	// Namespace is how many one namespace has, 64, and Reserved is 4.
	Namespace, Reserved int
}

func (b Bounds) orDefaults() Bounds {
	if b.Node == 0 {
		b.Node = 512
		var most unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &most) == nil {
			b.Node = int(min(uint64(b.Node), most.Cur/8))
		}
	}
	if b.Namespace == 0 {
		b.Namespace, b.Reserved = 64, 4
	}
	return b
}

// check returns an error where a namespace that has some of all volumes may not have one more.
func (b Bounds) check(namespace string, has, all int) error {
	const fix = "delete pods with such volumes there, or have them run on other nodes"
	switch {
	case has >= b.Namespace:
		return fmt.Errorf("%w: pods of namespace %s have %d on this node, and no more are allowed; %s", ErrTooMany, namespace, has, fix)
	case all >= b.Node || has >= b.Reserved && all >= b.Node-b.Node/4:
		return fmt.Errorf("%w: pods of namespace %s have %d on this node, and all pods %d of %d, of which the last %d are for namespaces with fewer than %d; %s",
			ErrTooMany, namespace, has, all, b.Node, b.Node/4, b.Reserved, fix)
	}
	return nil
}

// Mount mounts a volume with the maps that its pod was granted. It waits a while for a program that is not loaded. The error wraps
// ErrNotGranted or ErrNotThere where nothing is to be had, and ErrTooMany where a bound is reached; nothing is mounted then.
func (k *Keeper) Mount(ctx context.Context, r Request) error {
	patience := time.NewTimer(k.o.Patience)
	defer patience.Stop()
	for {
		changed := k.changed()
		err := k.mount(ctx, r)
		if !errors.Is(err, ErrNotThere) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-patience.C:
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
	v, end, err := k.enter(ctx, r)
	if err != nil {
		return err
	}
	defer end()
	if v.isMounted {
		// The kubelet has started again. What runs keeps its volume, with or without maps.
		err := k.apply(ctx, v)
		if !errors.Is(err, mounter.ErrNotMounted) {
			return err
		}
		k.mu.Lock()
		socket := v.leave()
		k.mu.Unlock()
		closeSockets(socket)
		v.isMounted, v.isTried = false, false
	}
	app, release := k.current(v)
	defer release()
	c, err := k.content(r.Claim, app)
	if err == nil {
		err = r.all(app, c)
	}
	if err != nil {
		// What an earlier request may have mounted goes.
		return cmp.Or(k.remove(ctx, v), err)
	}
	v.isTried = true
	dir, err := k.o.Mounter.Mount(ctx, r.At, r.Group, record, k.pins(c))
	if err != nil {
		return err
	}
	v.isMounted = true
	return k.fill(v, dir, c, app, true)
}

// enter returns the volume of a request, which is made within the bounds where there is none, and has the caller be busy with it.
func (k *Keeper) enter(ctx context.Context, r Request) (v *volume, end func(), err error) {
	for {
		if v, err = k.lookUp(r); err != nil {
			return nil, nil, err
		}
		if end, err = k.begin(ctx, v); err != nil {
			return nil, nil, err
		}
		if k.knows(v) {
			return v, end, nil
		}
		end()
	}
}

// knows reports whether a volume has not been forgotten.
func (k *Keeper) knows(v *volume) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.volumes[v.at] == v
}

// lookUp returns the volume of a request, which is made within the bounds where there is none.
func (k *Keeper) lookUp(r Request) (*volume, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.take()
	if k.snapshot == nil {
		return nil, fmt.Errorf("%w: the agent has started, and has not looked at the kernel yet", ErrNotThere)
	}
	if v := k.volumes[r.At]; v != nil {
		if v.Claim != r.Claim {
			return nil, fmt.Errorf("%s is mounted for %+v; delete the pod", r.At, v.Claim)
		}
		return v, nil
	}
	has := 0
	for _, v := range k.volumes {
		if v.Namespace == r.Namespace {
			has++
		}
	}
	if err := k.o.Bounds.check(r.Namespace, has, len(k.volumes)); err != nil {
		return nil, err
	}
	v := newVolume(r.At, r.Claim, r.Group)
	k.volumes[r.At] = v
	return v, nil
}

// remove unmounts a volume that may be mounted, and forgets it. The caller is busy with it.
func (k *Keeper) remove(ctx context.Context, v *volume) error {
	if v.isTried {
		if err := k.o.Mounter.Unmount(ctx, v.at); err != nil {
			return err
		}
	}
	k.forget(v)
	return nil
}

// Unmount unmounts a volume. One that is not mounted is no error, and one that may be mounted still is looked after as before.
func (k *Keeper) Unmount(ctx context.Context, at mounter.Volume) error {
	for {
		k.mu.Lock()
		v := k.volumes[at]
		if v == nil {
			k.mu.Unlock()
			return k.o.Mounter.Unmount(ctx, at)
		}
		// Before anything that is waited for.
		socket := v.leave()
		k.mu.Unlock()
		closeSockets(socket)
		if is, err := k.unmount(ctx, v); is || err != nil {
			k.signal()
			return err
		}
	}
}

// unmount is Unmount of a volume, unless it has been forgotten meanwhile.
func (k *Keeper) unmount(ctx context.Context, v *volume) (is bool, err error) {
	end, err := k.begin(ctx, v)
	if err != nil {
		return false, err
	}
	defer end()
	if !k.knows(v) {
		return false, nil
	}
	v.isTried = true
	return true, k.remove(ctx, v)
}
