package imagestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/access"
)

// payloadType is the DSSE type of an image in a BpfImage. The seal says that a
// controller found the image in its repository, and who may read it: the bytes
// would prove themselves.
const payloadType = "application/vnd.skep.image.v1+json"

// maxBlobs is how large an image may be, as stored, to be kept in a BpfImage: a
// larger one is fetched again. Objects of hundreds of programs fit.
const maxBlobs = 256 << 10

// placeOf is where the bytes of an image in one repository are kept.
func placeOf(r image.Resolved) string { return "image." + repositoryOf(r) }

// repositoryOf is a repository in the names of what is kept of an image, such as those
// of its signatures.
func repositoryOf(r image.Resolved) string {
	sum := sha256.Sum256([]byte(r.Registry + "/" + r.Repository))
	return hex.EncodeToString(sum[:8])
}

// Recall is an image that a replica pulled, this one or another, before or after
// a restart; false where none that is kept did. It is access.SharedOptions.Recall.
func (m *Memory) Recall(ctx context.Context, r image.Resolved) (access.Remembered, bool) {
	var o v1alpha1.BpfImage
	if err := m.Client.Get(ctx, client.ObjectKey{Name: objectName(r.Digest)}, &o); err != nil {
		return access.Remembered{}, false
	}
	return m.unseal(o.Spec.Memory[placeOf(r)])
}

// unseal opens what seal made; false where it is nothing, or its seal does not
// hold.
func (m *Memory) unseal(packed []byte) (access.Remembered, bool) {
	var kept access.Remembered
	if len(packed) == 0 || m.Keys == nil {
		return kept, false
	}
	envelope, err := unpack(packed)
	if err != nil {
		return kept, false
	}
	body, err := m.Keys().Trust.Verify(payloadType, envelope)
	return kept, err == nil && json.Unmarshal(body, &kept) == nil
}

// seal packs an image as this replica's cache has it, unless the BpfImage has it
// as it is; nil where there is nothing to write. It is asked once of each image,
// and keeps no image that a namespace's own credentials opened: who may read
// BpfImages could read that.
func (m *Memory) seal(ctx context.Context, r image.Resolved) ([]byte, error) {
	if m.Remember == nil || m.Keys == nil || !m.first(r) {
		return nil, nil
	}
	if _, there := m.Recall(ctx, r); there {
		return nil, nil
	}
	kept, ok := m.Remember(ctx, r, maxBlobs)
	if !ok || !kept.Open {
		return nil, nil
	}
	body, err := json.Marshal(kept)
	if err != nil {
		return nil, err
	}
	envelope, err := m.Keys().Sealer.Sign(payloadType, body)
	if err != nil {
		return nil, err
	}
	return pack(envelope)
}

// maxSettled bounds how many images it is known of that they were looked at.
const maxSettled = 4096

// first reports whether an image was not looked at before by this process, under
// the key that seals now; again has it looked at once more.
func (m *Memory) first(r image.Resolved) bool {
	name := m.settledAs(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled[name] {
		return false
	}
	if m.settled == nil || len(m.settled) >= maxSettled {
		m.settled = map[string]bool{}
	}
	m.settled[name] = true
	return true
}

func (m *Memory) again(r image.Resolved) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.settled, m.settledAs(r))
}

func (m *Memory) settledAs(r image.Resolved) string {
	return r.Digest + " " + placeOf(r) + " " + string(m.Keys().Sealer.Public())
}
