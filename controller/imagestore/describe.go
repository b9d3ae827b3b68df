package imagestore

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/gate"
)

// description is what people read of an image.
type description struct {
	repository                 string
	signers, programs, helpers []string
}

// describe is the description of a verdict's image.
func describe(v gate.Verdict) description {
	from, evidence := v.Image(), v.Evidence()
	d := description{repository: from.Registry + "/" + from.Repository, signers: evidence.Signers()}
	d.programs, d.helpers = named(v.Facts())
	return d
}

// named are the programs of an object and the helpers they call, each once.
func named(facts bytecode.Facts) (programs, helpers []string) {
	for _, p := range facts.Programs {
		programs = append(programs, p.Name)
		for _, h := range p.Helpers {
			if !slices.Contains(helpers, h) {
				helpers = append(helpers, h)
			}
		}
	}
	slices.Sort(helpers)
	return programs, helpers
}

// Describe writes down what a verdict rests on: for people, and the image itself
// for replicas that have not pulled it. What a registry said of the image a moment
// ago goes with it, in one write.
func (m *Memory) Describe(ctx context.Context, v gate.Verdict) error {
	from, now := v.Image(), describe(v)
	if from.Digest == "" || m.Open != nil && !m.Open(from) {
		return nil
	}
	sealed, err := m.seal(ctx, from)
	if err != nil {
		return fmt.Errorf("seal image %s: %w", from.Digest, err)
	}
	object := objectName(from.Digest)
	news, said := m.toWrite(object, now)
	if !news && len(said) == 0 && sealed == nil {
		return nil
	}
	err = m.edit(ctx, object, tenantOf(v.Application().Identity()), func(o *v1alpha1.BpfImage) {
		o.Spec.Repository, o.Spec.Signers, o.Spec.Programs, o.Spec.Helpers = now.repository, now.signers, now.programs, now.helpers
		m.keepAll(ctx, o, said)
		if sealed != nil && held(o)+len(sealed) <= maxTogether {
			m.keep(ctx, o, placeOf(from), sealed)
		}
	})
	if err != nil {
		m.undescribed(object)
		m.gather(object, said)
		if sealed != nil {
			m.again(from)
		}
	}
	return err
}

// toWrite takes what is to be written of an image, at once: of callers at the same time, one
// writes all of it.
func (m *Memory) toWrite(object string, now description) (news bool, said map[string][]byte) {
	m.taking.Lock()
	defer m.taking.Unlock()
	return m.news(object, now), m.pending.take(object)
}

// describedFor is how long it counts that an image was described, while applications
// of one image are evaluated together and the cache does not show it yet. A BpfImage
// that somebody deleted is described again after that.
const describedFor = time.Minute

// news reports whether an image is described otherwise than a moment ago, or was not,
// and takes it as described.
func (m *Memory) news(object string, now description) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before, known := m.described[object]; known && reflect.DeepEqual(before, now) {
		return false
	}
	if m.described == nil || len(m.described) >= maxSettled {
		m.described = map[string]description{}
	}
	m.described[object] = now
	time.AfterFunc(describedFor, func() { m.undescribed(object) })
	return true
}

func (m *Memory) undescribed(object string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.described, object)
}
