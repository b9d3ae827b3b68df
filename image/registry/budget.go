package registry

import (
	"context"
	"fmt"
	"strings"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/limit"
	"github.com/skep-dev/skep/recent"
)

// smallLayer is the size in bytes up to which a layer is read from a registry
// whatever else is read: nearly all are smaller, and none is to wait for a
// registry that sends a large one slowly.
const smallLayer = mib

// sharers is how many registries, and how many tenants, it takes to fill the room
// for layers: one that is slow holds up no other.
const sharers = 3

// budget bounds what Pulls take of the memory together. A registry that sends
// slowly takes some of layers only: nobody asks for room among objects before
// all that is to be read from the network is there.
type budget struct {
	// layersBytes are those of layers that may be on their way, objects how many
	// objects may be open; zero is no bound.
	layersBytes, objects int64

	shares limit.PerName
}

func newBudget(o Options) *budget {
	return &budget{layersBytes: o.LayersBytes, objects: int64(o.Objects)}
}

// forLayer waits until a layer of so many bytes may be read from a registry for
// a tenant; an empty one shares with nobody. Who waits for the tenant's share holds
// nothing else, and who waits for the registry's holds the tenant's alone.
func (r *budget) forLayer(ctx context.Context, bytes int64, tenant, registry string) (release func(), err error) {
	if bytes <= smallLayer || r.layersBytes == 0 {
		return func() {}, nil
	}
	var taken []func()
	release = func() {
		for _, give := range taken {
			give()
		}
	}
	for _, of := range []struct {
		name string
		most int64
	}{
		{"tenant " + tenant, r.layersBytes / sharers}, {"registry " + registry, r.layersBytes / sharers}, {"layers", r.layersBytes},
	} {
		if of.name == "tenant " {
			continue
		}
		give, err := r.take(ctx, of.name, bytes, of.most)
		if err != nil {
			release()
			return nil, err
		}
		taken = append(taken, give)
	}
	return release, nil
}

// forObject waits until one more object may be open.
func (r *budget) forObject(ctx context.Context) (release func(), err error) {
	if r.objects == 0 {
		return func() {}, nil
	}
	return r.take(ctx, "objects", 1, r.objects)
}

// take waits for a share no longer than the context. What it returns gives the
// share back, however often it is called.
func (r *budget) take(ctx context.Context, name string, weight, most int64) (release func(), err error) {
	release, err = r.shares.Acquire(ctx, name, weight, most)
	if err != nil {
		return nil, image.OfKind(image.ErrUnavailable, fmt.Errorf("wait for room to read an image, as many are read at once: %w", err))
	}
	return release, nil
}

// How many images are known to be no bytecode images, and how many bytes are
// remembered of why.
const (
	maxMalformed     = 4096
	maxMalformedText = 1024
)

// newMalformed remembers by the digest of a manifest why its image is none, so that its
// layer is not read again.
func newMalformed() *recent.Cache[string] {
	return recent.New(recent.Options[string]{Entries: maxMalformed, Bytes: maxMalformed * maxMalformedText, Size: func(why string) int { return len(why) }})
}

// knownMalformed is why an image is none; nil if nothing is known of it. It is asked after
// the manifest was read, by those who may read that.
func (c *Client) knownMalformed(manifest string) error {
	if why, ok := c.malformed.Get(manifest); ok {
		return image.Malformed("%s", why)
	}
	return nil
}

// noteMalformed remembers why an image is none.
func (c *Client) noteMalformed(manifest string, why error) {
	text := why.Error()
	c.malformed.Put(manifest, strings.ToValidUTF8(text[:min(len(text), maxMalformedText)], ""))
}
