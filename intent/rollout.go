package intent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Rollout is one step of bringing a version to the nodes.
type Rollout struct {
	// Step counts from 1.
	Step int `json:"step"`
	// Through is the greatest NodeHash of the nodes that are to have the version;
	// the others hold the one before. Empty means no node.
	Through string `json:"through,omitempty"`
	// Since is when the version came this far, in unix milliseconds.
	Since int64 `json:"since,omitempty"`
}

// NodeHash is a node's place in the order in which an application's versions
// come to nodes: lower ones first. The order is the application's own and stays
// the same, so that it is always the same node that goes first. It is 16
// lower-case hex digits.
func NodeHash(uid, node string) string {
	sum := sha256.Sum256([]byte(uid + "/" + node))
	return hex.EncodeToString(sum[:8])
}

// Reaches reports whether a node is to have this version by now.
func (p *Payload) Reaches(node string) bool {
	return p.Rollout == nil || NodeHash(p.UID, node) <= p.Rollout.Through
}

// Alone is the payload's own version, without how far it has come and what
// stands beside it.
func (p Payload) Alone() Payload {
	p.Rollout, p.Previous, p.Withdrawn = nil, nil, nil
	return p
}

// Beside are the versions that may run where the payload's own one does not.
func (p *Payload) Beside() []*Payload {
	var all []*Payload
	if p.Previous != nil {
		all = append(all, p.Previous)
	}
	for i := range p.Withdrawn {
		all = append(all, &p.Withdrawn[i])
	}
	return all
}

// Versions are the payload's own version and those beside it: what nodes may
// have to fetch.
func (p *Payload) Versions() []Payload {
	all := []Payload{*p}
	for _, v := range p.Beside() {
		all = append(all, *v)
	}
	return all
}

// VersionSerial is the serial under which the version was first sealed. A later
// one of it moves the rollout, and asks nothing new of nodes that have it.
func (p *Payload) VersionSerial() int64 { return cmp.Or(p.Version, p.Serial) }

// SameVersion reports whether two payloads ask the same of a node. Which tag led
// there, who signed, which policies decided, and who reads maps are no part of a version.
func (p *Payload) SameVersion(other *Payload) bool {
	a, errA := p.version()
	b, errB := other.version()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// Revision is what nodes that run the version tell of it; empty where it is none
// that can be sealed. It hashes the whole version.
func (p *Payload) Revision() string {
	mine, err := p.revision()
	if err != nil {
		return ""
	}
	return mine
}

func (p *Payload) version() ([]byte, error) {
	return json.Marshal(Payload{
		Tombstone: p.Tombstone, ObjectDigest: p.ObjectDigest, NodeSelector: p.NodeSelector,
		Variables: p.Variables, Maps: v1alpha1.WithoutReaders(p.Maps), Programs: p.Programs, Alternatives: p.Alternatives,
	})
}

// checkRollout rejects what no honest sealer makes of a rollout.
func (p *Payload) checkRollout() error {
	if p.Rollout != nil && p.Rollout.Step < 1 {
		return errors.New("a rollout without a step")
	}
	for _, v := range p.Beside() {
		switch {
		case v.Rollout != nil || len(v.Beside()) > 0 || v.Tombstone:
			return errors.New("the version beside it is none")
		case v.UID != p.UID || v.Application != p.Application:
			return errors.New("the version beside it is another application's")
		}
		if err := v.check(); err != nil {
			return err
		}
	}
	return nil
}

// For is the intent as it concerns one node: itself, or the version before under
// the same serial where its rollout has not come to the node, with those withdrawn
// beside it: the node may run one still. Where there was no version before, it has
// no programs: nothing is to run. Of who read the maps of that version, none does any more whom
// the intent does not name: one that it names in addition was allowed with other maps.
func (o Opened) For(node string) Opened {
	if o.payload.Tombstone || o.payload.Reaches(node) {
		return o
	}
	held := Opened{payload: Payload{Format: o.payload.Format, Application: o.payload.Application, UID: o.payload.UID}, held: true}
	if before := o.payload.Previous; before != nil {
		held.payload, held.revision, held.beside = *before, o.beside[0], o.beside[1:]
		held.payload.Version, held.payload.Withdrawn = before.VersionSerial(), o.payload.Withdrawn
	}
	held.payload.Serial, held.payload.Grant = o.payload.Serial, o.payload.Grant
	held.payload, _ = held.payload.Narrowed(o.payload.Maps)
	return held
}

// Narrowed is a payload whose maps no reader has that the definition of its maps does not name as
// well, and whether that is less than it had.
func (p Payload) Narrowed(definition map[string]v1alpha1.Map) (Payload, bool) {
	all, isLess := maps.Clone(p.Maps), false
	for name, m := range all {
		narrowed, less := v1alpha1.NarrowExports(p.Application, m.Export, definition[name].Export)
		isWithdrawn := m.Metrics != nil && definition[name].Metrics == nil
		if !less && !isWithdrawn {
			continue
		}
		isNamed := !m.IsForReaders()
		if isWithdrawn {
			m.Metrics = nil
		}
		if m.Export, isLess = narrowed, true; len(m.Export) > 0 || m.Metrics != nil || isNamed {
			all[name] = m
		} else {
			delete(all, name)
		}
	}
	p.Maps = all
	return p, isLess
}

// NarrowEach takes from the versions beside the payload's own, by their VersionSerial, each reader that what is given for them does not name,
// and reports whether that is less than they had.
func (p *Payload) NarrowEach(kept map[int64]map[string]v1alpha1.Map) (isLess bool) {
	narrow := func(v Payload) Payload {
		to, isGiven := kept[v.VersionSerial()]
		if !isGiven {
			return v
		}
		narrowed, less := v.Narrowed(to)
		isLess = isLess || less
		return narrowed
	}
	if p.Previous != nil {
		previous := narrow(*p.Previous)
		p.Previous = &previous
	}
	p.Withdrawn = slices.Clone(p.Withdrawn)
	for i := range p.Withdrawn {
		p.Withdrawn[i] = narrow(p.Withdrawn[i])
	}
	return isLess
}

// NarrowBeside takes from the versions beside the payload's own each reader that it does not name itself: no node gives them any,
// and they are evaluated without.
func (p *Payload) NarrowBeside() {
	own := map[int64]map[string]v1alpha1.Map{}
	for _, v := range p.Beside() {
		own[v.VersionSerial()] = p.Maps
	}
	p.NarrowEach(own)
}

// Before is the version before under its own serial; false where there is none
// that may run.
func (o Opened) Before() (Opened, bool) {
	if o.payload.Previous == nil {
		return Opened{}, false
	}
	return Opened{payload: *o.payload.Previous, revision: o.beside[0]}, true
}

// Names are the versions beside the payload's own that have a revision, each under
// its own serial. There may be several, at other places or for other nodes.
func (o Opened) Names(revision string) []Opened {
	var named []Opened
	for i, v := range o.payload.Beside() {
		if o.beside[i] == revision {
			named = append(named, Opened{payload: *v, revision: revision})
		}
	}
	return named
}

// Held tells that this is the version before, for a node that the rollout has
// not come to.
func (o Opened) Held() bool { return o.held }
