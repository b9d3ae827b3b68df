package image

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"
)

// smallLayer is the size in bytes up to which a layer is read from a registry
// whatever else is read: nearly all are smaller, and none is to wait for a
// registry that sends a large one slowly.
const smallLayer = mib

// sharers is how many registries, and how many parties, it takes to fill the room
// for layers: one that is slow holds up no other.
const sharers = 3

// room bounds what Pulls take of the memory together. A registry that sends
// slowly takes some of layers only: nobody asks for room among objects before
// all that is to be read from the network is there.
type room struct {
	layersBytes int64
	// layers counts the bytes of layers on their way, objects the objects that
	// are open; nil is no bound.
	layers, objects *semaphore.Weighted

	mu     sync.Mutex
	shares map[string]*share
}

// share is what one registry, or one party, may take of the room for layers.
type share struct {
	room *semaphore.Weighted
	// users are those that have some of it or wait for it.
	users int
}

func newRoom(o Options) *room {
	r := &room{layersBytes: o.LayersBytes, shares: map[string]*share{}}
	if o.LayersBytes > 0 {
		r.layers = semaphore.NewWeighted(o.LayersBytes)
	}
	if o.Objects > 0 {
		r.objects = semaphore.NewWeighted(int64(o.Objects))
	}
	return r
}

// forLayer waits until a layer of so many bytes may be read from a registry for
// a party; an empty one shares with nobody. Who waits for the party's share holds
// nothing else, and who waits for the registry's holds the party's alone.
func (r *room) forLayer(ctx context.Context, bytes int64, party, registry string) (release func(), err error) {
	if bytes <= smallLayer || r.layers == nil {
		return func() {}, nil
	}
	var taken []func()
	release = sync.OnceFunc(func() {
		for _, give := range taken {
			give()
		}
	})
	for _, of := range [][2]string{{"party ", party}, {"registry ", registry}} {
		if of[1] == "" {
			continue
		}
		give, err := r.forShare(ctx, of[0]+of[1], bytes)
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, give)
	}
	give, err := take(ctx, r.layers, min(bytes, r.layersBytes))
	if err != nil {
		release()
		return nil, err
	}
	taken = append(taken, give)
	return release, nil
}

// forShare waits until so many bytes may be taken of a share.
func (r *room) forShare(ctx context.Context, name string, bytes int64) (release func(), err error) {
	most := max(r.layersBytes/sharers, 1)
	r.mu.Lock()
	s := r.shares[name]
	if s == nil {
		s = &share{room: semaphore.NewWeighted(most)}
		r.shares[name] = s
	}
	s.users++
	r.mu.Unlock()
	leave := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(r.shares, name)
		}
	}
	give, err := take(ctx, s.room, min(bytes, most))
	if err != nil {
		leave()
		return nil, err
	}
	return func() { give(); leave() }, nil
}

// forObject waits until one more object may be open.
func (r *room) forObject(ctx context.Context) (release func(), err error) {
	return take(ctx, r.objects, 1)
}

// take waits for a share no longer than the context. What it returns gives the
// share back, however often it is called.
func take(ctx context.Context, of *semaphore.Weighted, share int64) (release func(), err error) {
	if of == nil {
		return func() {}, nil
	}
	if err := of.Acquire(ctx, share); err != nil {
		return nil, &kindError{kind: ErrUnavailable, err: fmt.Errorf("wait for room to read an image, as many are read at once: %w", err)}
	}
	return sync.OnceFunc(func() { of.Release(share) }), nil
}

// How many images are known to be no bytecode images, and how many bytes are
// remembered of why.
const (
	maxRefused     = 4096
	maxRefusedText = 1024
)

// refusedImages remembers by the digest of a manifest why its image is none, so
// that its layer is not read again. It is asked after the manifest was read, by
// whoever may read that.
type refusedImages struct {
	mu  sync.Mutex
	why map[string]string
}

// known is why an image is none; nil where nothing is known of it.
func (r *refusedImages) known(manifest string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why, ok := r.why[manifest]; ok {
		return malformed("%s", why)
	}
	return nil
}

// note remembers why an image is none.
func (r *refusedImages) note(manifest string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why == nil || len(r.why) >= maxRefused {
		r.why = map[string]string{}
	}
	text := why.Error()
	r.why[manifest] = strings.ToValidUTF8(text[:min(len(text), maxRefusedText)], "")
}
