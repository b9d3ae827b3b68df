package intent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
)

// withEvidence is an intent of two versions whose evidence is sealed.
func withEvidence() intent.Payload {
	p := payload()
	p.ImageDigest, p.Evidence = "sha256:aa", artifacts(2)
	previous := p
	previous.ImageDigest, previous.Evidence = "sha256:bb", artifacts(3)
	p.Previous = &previous
	return p
}

func artifacts(count int) (all []intent.Artifact) {
	for i := range count {
		all = append(all, intent.Artifact{Kind: "bundle", Manifest: fmt.Sprintf("sha256:%02d", i)})
	}
	return all
}

// envelope is one as a build reads it that knows nothing of evidence.
type envelope struct {
	PayloadType, Payload string
	Signatures           json.RawMessage
	Evidence             json.RawMessage `json:",omitempty"`
}

func parts(t *testing.T, e intent.Envelope) (all envelope) {
	t.Helper()
	if err := json.Unmarshal(e, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestEvidenceIsNoPartOfAnIntent holds that an agent, of whatever build, has the same intent with evidence and without it.
func TestEvidenceIsNoPartOfAnIntent(t *testing.T) {
	key, p := seals.New(t), withEvidence()
	with, plain := key.Seal(t, p), p
	previous := *p.Previous
	plain.Evidence, previous.Evidence, plain.Previous = nil, nil, &previous
	without := key.Seal(t, plain)
	a, b := parts(t, with), parts(t, without)
	if len(a.Evidence) == 0 || len(b.Evidence) != 0 {
		t.Fatalf("evidence %q and %q", a.Evidence, b.Evidence)
	}
	if a.Evidence = nil; !cmp.Equal(a, b) {
		t.Errorf("an older build reads another envelope: %s", cmp.Diff(a, b))
	}
	opened, plainly := key.Open(t, p), key.Open(t, plain)
	if !cmp.Equal(opened.Payload(), plainly.Payload()) || opened.Revision() != plainly.Revision() {
		t.Errorf("agents have another intent: %s", cmp.Diff(opened.Payload(), plainly.Payload()))
	}
	if got := opened.WithEvidence(); !cmp.Equal(got.Evidence, p.Evidence) || !cmp.Equal(got.Previous.Evidence, p.Previous.Evidence) {
		t.Errorf("evidence %v and %v", got.Evidence, got.Previous.Evidence)
	}
	if opened.Payload().Previous.Evidence != nil {
		t.Error("to read the evidence changes the intent")
	}
}

// TestEvidenceIsSealed has evidence that another key signed, that was changed, or that is an intent, say nothing. The intent
// holds.
func TestEvidenceIsSealed(t *testing.T) {
	key := seals.New(t)
	mine := parts(t, key.Seal(t, withEvidence()))
	for sentence, evidence := range map[string]string{
		"of another key":  string(parts(t, seals.New(t).Seal(t, withEvidence())).Evidence),
		"of another type": string(key.Seal(t, payload())),
		"changed":         strings.Replace(string(mine.Evidence), `"payload":"`, `"payload":"e30`, 1),
		"no envelope":     `[1]`,
	} {
		both := mine
		both.Evidence = json.RawMessage(evidence)
		body, err := json.Marshal(both)
		if err != nil {
			t.Fatal(err)
		}
		o, err := key.Trust.Open(body)
		if err != nil || o.WithEvidence().Evidence != nil {
			t.Errorf("%s: %v, %v", sentence, o.WithEvidence().Evidence, err)
		}
	}
}

// TestEvidenceHasABound seals more than is sealed of one image, and evidence for which there is no room.
func TestEvidenceHasABound(t *testing.T) {
	key, p := seals.New(t), payload()
	p.ImageDigest, p.Evidence = "sha256:aa", artifacts(100)
	if n := len(key.Open(t, p).WithEvidence().Evidence); n != intent.MaxEvidence {
		t.Errorf("%d are sealed", n)
	}
	p.Source = ""
	size, err := p.Size()
	if err != nil {
		t.Fatal(err)
	}
	p.Source = strings.Repeat("x", intent.MaxPayloadBytes-size-len(`"source":"",`))
	e := key.Seal(t, p)
	if o, err := key.Trust.Open(e); err != nil || len(e) > intent.MaxEnvelopeBytes || o.WithEvidence().Evidence != nil {
		t.Errorf("%d bytes, %v", len(e), err)
	}
}
