// Package imagestore keeps what was learned of image digests in BpfImage objects:
// what one replica asked a registry for, all replicas know, and know still after
// a restart.
//
// It decides nothing. Signatures that come out of it are verified again, and
// bytes hashed; that a repository holds them, and who may read it there, is
// sealed by the controller. What people read of a BpfImage stands beside that,
// and nothing acts on it.
package imagestore

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/access"
)

// The bounds of what is kept of one image in one repository, packed and
// unpacked, and of one image in all. What is beyond them is asked for again.
const (
	maxPacked   = 512 << 10
	maxUnpacked = 8 << 20
	maxTogether = 1 << 20
	maxKept     = 64
)

// Memory is a gate.Memory of BpfImages.
type Memory struct {
	// Client reads from the cache and writes. Needed.
	Client client.Client
	// Timeout bounds one write; zero means five seconds.
	Timeout time.Duration
	// Gather is how long what a registry said waits for Describe, so that both are one
	// write; zero writes at once. It is lost where the process ends meanwhile, and asked
	// for again.
	Gather time.Duration
	// MaxImages and MaxBytes are how many are remembered, and of how many bytes, before
	// one gives way; zero means 4096 and 256 MiB. What is denied is remembered too, so
	// whoever may ask could fill etcd.
	MaxImages, MaxBytes int
	// Remember is an image as this replica's cache has it, and Keys seal it; where
	// one is nil, no image's bytes are kept.
	Remember func(ctx context.Context, r image.Resolved, most int) (access.Remembered, bool)
	Keys     func() sealing.Keys

	// Open reports whether everybody may read an image: of others nothing is written
	// down, since many may read BpfImages. Nil means that everybody may read all.
	Open func(image.Resolved) bool

	// mu guards settled, the images whose bytes were looked at, and described, what was
	// written last of the images of which something was.
	mu        sync.Mutex
	settled   map[string]bool
	described map[string]description

	pending pending
	// taking is held by who takes what is described and what is pending.
	taking sync.Mutex
	// crowded spaces the log lines that say that images gave way, and evictions how often
	// they do.
	crowded   rate.Sometimes
	evictions *rate.Limiter
}

// split takes a name of gate.Memory apart: what is kept, and of which image.
func split(name string) (kept, object string, ok bool) {
	kept, digest, found := strings.Cut(name, "-")
	algorithm, hex, whole := strings.Cut(digest, ":")
	return kept, algorithm + "-" + hex, found && whole
}

// objectName is the name of a digest's BpfImage.
func objectName(digest string) string { return strings.Replace(digest, ":", "-", 1) }

// digestOf is the inverse of objectName.
func digestOf(object string) string { return strings.Replace(object, "-", ":", 1) }

// Load implements gate.Memory.
func (m *Memory) Load(name string) ([]byte, bool) {
	kept, object, ok := split(name)
	if !ok {
		return nil, false
	}
	packed := m.pending.get(object, kept)
	if packed == nil {
		ctx, cancel := m.context()
		defer cancel()
		var o v1alpha1.BpfImage
		if err := m.Client.Get(ctx, client.ObjectKey{Name: object}, &o); err != nil {
			return nil, false
		}
		packed = o.Spec.Memory[kept]
	}
	data, err := unpack(packed)
	return data, err == nil
}

// Store implements gate.Memory. What cannot be kept is asked for again, and no
// reason to deny anybody anything: it is logged.
func (m *Memory) Store(name string, data []byte) error {
	kept, object, ok := split(name)
	if !ok {
		return fmt.Errorf("remember %q: it names no image", name)
	}
	packed, err := pack(data)
	if err != nil {
		return err
	}
	if len(packed) > maxPacked {
		return nil
	}
	m.gather(object, map[string][]byte{kept: packed})
	return nil
}

// gather has what a registry said wait to be written, or writes it where it does not
// wait or there is no room.
func (m *Memory) gather(object string, said map[string][]byte) {
	if m.Gather == 0 {
		m.write(object, said)
		return
	}
	for kept, packed := range said {
		switch first, ok := m.pending.put(object, kept, packed); {
		case !ok:
			m.write(object, map[string][]byte{kept: packed})
		case first:
			time.AfterFunc(m.Gather, func() { m.write(object, m.pending.take(object)) })
		}
	}
}

// write keeps what a registry said, if anything.
func (m *Memory) write(object string, said map[string][]byte) {
	if len(said) == 0 {
		return
	}
	ctx, cancel := m.context()
	defer cancel()
	if err := m.edit(ctx, object, "", func(o *v1alpha1.BpfImage) { m.keepAll(ctx, o, said) }); err != nil {
		ctrl.Log.WithName("images").Error(err, "remember what a registry said", "image", object)
	}
}

// keepAll is keep for several.
func (m *Memory) keepAll(ctx context.Context, o *v1alpha1.BpfImage, packed map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(packed)) {
		m.keep(ctx, o, name, packed[name])
	}
}

// keep puts into a BpfImage what is packed, and drops what is beyond its bounds.
func (m *Memory) keep(ctx context.Context, o *v1alpha1.BpfImage, name string, packed []byte) {
	if o.Spec.Memory == nil {
		o.Spec.Memory = map[string][]byte{}
	}
	o.Spec.Memory[name] = packed
	if held(o) > maxTogether || len(o.Spec.Memory) > maxKept {
		makeRoom(o.Spec.Memory, name, m.placesOf(ctx, o.Name))
	}
}

// held is how many bytes a BpfImage keeps.
func held(o *v1alpha1.BpfImage) (together int) {
	for _, packed := range o.Spec.Memory {
		together += len(packed)
	}
	return together
}

// edit changes a BpfImage, or makes it, where that makes a difference and there is room
// for it; by is the namespace it is changed for, empty where that is not known.
func (m *Memory) edit(ctx context.Context, name, by string, change func(*v1alpha1.BpfImage)) error {
	var before v1alpha1.BpfImage
	err := m.Client.Get(ctx, client.ObjectKey{Name: name}, &before)
	if client.IgnoreNotFound(err) != nil {
		return wrap("get", name, err)
	}
	unknown := err != nil
	before.Name = name
	now := before.DeepCopy()
	change(now)
	if unknown || held(now) > held(&before) {
		if ok, err := m.admit(ctx, now, by); err != nil || !ok {
			return wrap("make room for", name, err)
		}
	}
	if unknown {
		// Else another replica made it, and the cache does not show it yet.
		if err = m.Client.Create(ctx, now.DeepCopy()); !apierrors.IsAlreadyExists(err) {
			return wrap("create", name, err)
		}
	}
	patch := client.MergeFrom(&before)
	if data, err := patch.Data(now); err != nil || string(data) == "{}" {
		return wrap("compare", name, err)
	}
	return wrap("patch", name, m.Client.Patch(ctx, now, patch))
}

func (m *Memory) context() (context.Context, context.CancelFunc) {
	timeout := m.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	return context.WithTimeout(context.Background(), timeout)
}

// wrap names the object of a request that was not answered well.
func wrap(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %s: %w", verb, v1alpha1.KindBpfImage, name, err)
}

// pack compresses what is kept.
func pack(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err := w.Close()
	return b.Bytes(), err
}

// unpack is the inverse of pack, within bounds.
func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, maxUnpacked+1))
	if err == nil && len(data) > maxUnpacked {
		err = fmt.Errorf("it unpacks to more than %d bytes", maxUnpacked)
	}
	return data, err
}
