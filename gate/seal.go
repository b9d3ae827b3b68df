package gate

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// Stamp is what a sealed intent carries beside the verdict.
type Stamp struct {
	// UID is that of the application; serials count per UID.
	UID string
	// Serial is max(last + 1, unix milliseconds).
	Serial int64
	// Created is when the application was created, in unix milliseconds, by a clock
	// that no author sets.
	Created int64
	// Source says where the definition stands; may be empty.
	Source string
	// Version is the serial under which the version was first sealed; 0 where
	// that is Serial.
	Version int64
	// Rollout is how far the version is to come; nil means to every node.
	Rollout *intent.Rollout
	// Previous is the version before, nil where there is none that may run, and
	// Withdrawn those that go on where they run.
	Previous  *intent.Payload
	Withdrawn []intent.Payload
	// Undone is the generation of the definition that the verdict's version
	// takes the place of; 0 where it is the definition's own.
	Undone int64
}

// Seal makes the intent agents act on. It is an error unless the verdict
// allows.
func (v Verdict) Seal(s *intent.Sealer, stamp Stamp) (intent.Envelope, error) {
	if !v.allowed {
		return nil, errors.New("seal verdict: it does not allow")
	}
	p := v.payload(stamp)
	p.Evidence = v.evidenceToSeal(v.sealedBefore)
	p.NarrowBeside()
	return s.Seal(p)
}

// Same reports whether sealing the verdict would say what the payload already
// says, serial and rollout apart.
func (v Verdict) Same(p intent.Payload) bool {
	if !v.allowed {
		return false
	}
	mine := v.payload(Stamp{UID: p.UID, Serial: p.Serial, Created: p.Created, Source: p.Source, Version: p.Version})
	mine.Format, mine.PolicyRevision = p.Format, p.PolicyRevision
	a, errA := json.Marshal(mine)
	b, errB := json.Marshal(p.Alone())
	return errA == nil && errB == nil && bytes.Equal(a, b) && !v.lacksEvidence(p.Evidence)
}

// Version is what the verdict asks of a node, if it allows; its application has
// no UID there.
func (v Verdict) Version() intent.Payload {
	if !v.allowed {
		return intent.Payload{}
	}
	return v.payload(Stamp{})
}

// SameVersion reports whether the verdict asks the same of a node as the payload.
func (v Verdict) SameVersion(p intent.Payload) bool {
	mine := v.Version()
	return v.allowed && mine.SameVersion(&p)
}

func (v Verdict) payload(stamp Stamp) intent.Payload {
	spec := v.req.Application.Body()
	return intent.Payload{
		Application:    v.req.Application.Identity(),
		UID:            stamp.UID,
		Serial:         stamp.Serial,
		Created:        stamp.Created,
		Generation:     v.generation,
		Source:         stamp.Source,
		Image:          spec.Bytecode.Image,
		ImageDigest:    v.resolved.Digest,
		ObjectDigest:   v.object.ObjectDigest,
		NodeSelector:   spec.NodeSelector,
		Variables:      spec.Variables,
		Maps:           spec.Maps,
		Programs:       v.programs,
		Alternatives:   spec.Alternatives,
		Facts:          sealedFacts(v.programs, v.facts),
		Grant:          sealedGrant(v.granted),
		Signers:        v.evidence.Signers(),
		SignedAt:       signedAt(v.evidence),
		PolicyRevision: v.revision,
		Version:        stamp.Version,
		Rollout:        stamp.Rollout,
		Previous:       stamp.Previous,
		Withdrawn:      stamp.Withdrawn,
		Undone:         stamp.Undone,
	}
}

// sealedGrant is what is granted; nil where that is nothing.
func sealedGrant(g policies.SharedTargets) *intent.Grant {
	if g == (policies.SharedTargets{}) {
		return nil
	}
	return &intent.Grant{TargetPrograms: g.Programs, TextPages: g.TextPages}
}

// signedAt are the trusted times of who signed, in unix seconds; nil where there are
// none.
func signedAt(e signing.Evidence) map[string]int64 {
	var all map[string]int64
	for name, at := range e.SignedAt() {
		if at.IsZero() {
			continue
		}
		if all == nil {
			all = map[string]int64{}
		}
		all[name] = at.Unix()
	}
	return all
}

// SealTombstone seals a tombstone: agents unload the application, for the reason.
func SealTombstone(s *intent.Sealer, id v1alpha1.Identity, stamp Stamp, reason string) (intent.Envelope, error) {
	return s.Seal(intent.Payload{
		Application: id, UID: stamp.UID, Serial: stamp.Serial, Source: stamp.Source, Tombstone: true, Reason: reason, Undone: stamp.Undone,
	})
}

// Reseal seals an opened intent with another key. It stays the same intent, with the same
// serial.
func Reseal(s *intent.Sealer, o intent.Opened) (intent.Envelope, error) {
	if o.Held() {
		return nil, errors.New("seal intent anew: it is one node's view of it")
	}
	return s.Seal(o.WithEvidence())
}

// WithdrawVersions seals a live intent under a new serial without some of the versions
// beside its own, named by their VersionSerial. It needs no verdict: it takes away, and
// adds nothing.
func WithdrawVersions(s *intent.Sealer, live intent.Payload, serial int64, withdrawn []int64) (intent.Envelope, error) {
	live.Version, live.Serial = live.VersionSerial(), serial
	gone := func(v intent.Payload) bool { return slices.Contains(withdrawn, v.VersionSerial()) }
	if live.Previous != nil && gone(*live.Previous) {
		live.Previous = nil
	}
	live.Withdrawn = slices.DeleteFunc(slices.Clone(live.Withdrawn), gone)
	return s.Seal(live)
}

// WithdrawRollout seals a live intent under a new serial so that no node should run its own
// version, and all should run the previous one. It needs no verdict either.
func WithdrawRollout(s *intent.Sealer, live intent.Payload, serial int64) (intent.Envelope, error) {
	if live.Rollout == nil || live.Previous == nil {
		return nil, errors.New("withdraw version: there is none before to hold nodes at")
	}
	own := live
	live.Version, live.Serial = live.VersionSerial(), serial
	live.Withdrawn = slices.DeleteFunc(slices.Clone(live.Withdrawn), func(v intent.Payload) bool { return v.SameVersion(&own) })
	live.Rollout = &intent.Rollout{Step: live.Rollout.Step, Since: live.Rollout.Since}
	return s.Seal(live)
}

// WithdrawGrants seals a live intent under a new serial without what its maps grant to readers and the definition does
// not any more. Of the versions beside its own, those that beside has by their VersionSerial keep no more than it gives them.
// The envelope is nil where that is nothing. It needs no verdict either: what is denied, undone or cannot be evaluated keeps no reader.
func WithdrawGrants(s *intent.Sealer, live intent.Payload, serial int64, definition map[string]v1alpha1.Map,
	beside map[int64]map[string]v1alpha1.Map) (intent.Envelope, error) {
	narrowed, isLess := live.Narrowed(definition)
	if narrowed.NarrowEach(beside) || isLess {
		return withdrawn(s, live, narrowed, serial)
	}
	return nil, nil
}

// withdrawn seals what is left of a live intent.
func withdrawn(s *intent.Sealer, live, narrowed intent.Payload, serial int64) (intent.Envelope, error) {
	seal := func(p intent.Payload) (intent.Envelope, error) {
		p.Version, p.Serial = live.VersionSerial(), serial
		p.NarrowBeside()
		return s.Seal(p)
	}
	envelope, err := seal(narrowed)
	if err != nil {
		// The names that the definition adds, such as service accounts, may be more than fit.
		none, _ := live.Narrowed(nil)
		return seal(none)
	}
	return envelope, nil
}

// NextSerial is the serial after last at a time given in unix milliseconds.
func NextSerial(last, nowMillis int64) int64 { return max(last+1, nowMillis) }
