package intent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
)

// Rollout is one step of bringing a version to the nodes.
type Rollout struct {
	// Step counts from 1.
	Step int `json:"step"`
	// Through is the greatest NodeHash of the nodes that are to have the version;
	// the others hold the one before. Empty means no node.
	Through string `json:"through,omitempty"`
}

// NodeHash is a node's place in the order in which an application's versions
// come to nodes: lower ones first. The order is the application's own and stays
// the same, so that it is always the same node that goes first. It is 16
// lower-case hex digits.
func NodeHash(uid, node string) string {
	sum := sha256.Sum256([]byte(uid + "/" + node))
	return hex.EncodeToString(sum[:8])
}

// Reaches tells whether a node is to have this version by now.
func (p *Payload) Reaches(node string) bool {
	return p.Rollout == nil || NodeHash(p.UID, node) <= p.Rollout.Through
}

// Alone is the payload's own version, without how far it has come and what was
// before.
func (p Payload) Alone() Payload {
	p.Rollout, p.Previous = nil, nil
	return p
}

// Versions are the payload's own version and the one before, where there is one:
// what nodes may have to fetch.
func (p *Payload) Versions() []Payload {
	if p.Previous == nil {
		return []Payload{*p}
	}
	return []Payload{*p, *p.Previous}
}

// VersionSerial is the serial under which the version was first sealed. A later
// one of it moves the rollout, and asks nothing new of nodes that have it.
func (p *Payload) VersionSerial() int64 { return cmp.Or(p.Version, p.Serial) }

// SameVersion tells whether two payloads ask the same of a node. Which tag led
// there, who signed, and which policies decided are no part of a version.
func (p *Payload) SameVersion(other *Payload) bool {
	a, errA := p.version()
	b, errB := other.version()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

func (p *Payload) version() ([]byte, error) {
	return json.Marshal(Payload{
		Tombstone: p.Tombstone, ObjectDigest: p.ObjectDigest, NodeSelector: p.NodeSelector,
		Variables: p.Variables, Maps: p.Maps, Programs: p.Programs,
	})
}

// checkRollout refuses what no honest sealer makes of a rollout.
func (p *Payload) checkRollout() error {
	switch before := p.Previous; {
	case p.Rollout != nil && p.Rollout.Step < 1:
		return errors.New("a rollout without a step")
	case before == nil:
		return nil
	case before.Rollout != nil || before.Previous != nil || before.Tombstone:
		return errors.New("the version before is none")
	case before.UID != p.UID || before.Application != p.Application:
		return errors.New("the version before is another application's")
	default:
		return before.check()
	}
}

// For is the intent as it concerns one node: itself, or the version before under
// the same serial where its rollout has not come to the node. Where there was no
// version before, it has no programs: nothing is to run.
func (o Opened) For(node string) Opened {
	if o.payload.Tombstone || o.payload.Reaches(node) {
		return o
	}
	held := Opened{payload: Payload{Format: o.payload.Format, Application: o.payload.Application, UID: o.payload.UID}, held: true}
	if before := o.payload.Previous; before != nil {
		held.payload, held.revision = *before, o.before
		held.payload.Version = before.VersionSerial()
	}
	held.payload.Serial = o.payload.Serial
	return held
}

// Before is the version before under its own serial; false where there is none
// that may run.
func (o Opened) Before() (Opened, bool) {
	if o.payload.Previous == nil {
		return Opened{}, false
	}
	return Opened{payload: *o.payload.Previous, revision: o.before}, true
}

// Held tells that this is the version before, for a node that the rollout has
// not come to.
func (o Opened) Held() bool { return o.held }
