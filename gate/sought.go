package gate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing/collect"
)

// maxSought is of how many sealed artifacts of one image it is known that they were looked for,
// whatever the number of applications that they were sealed for. Each takes bytesSought.
const (
	maxSought   = 32 * intent.MaxEvidence
	bytesSought = 128
)

// lookedFor is when a sealed artifact was last looked for, and whether that says whether it is there:
// not all was read otherwise.
type lookedFor struct {
	at      time.Time
	settled bool
}

// sealedEvidence is where the running version says that the evidence of its image is.
func (r Resolved) sealedEvidence() []intent.Artifact {
	sealed := r.req.Sealed
	if sealed == nil || sealed.ImageDigest != r.image.Digest {
		return nil
	}
	return sealed.Evidence[:min(len(sealed.Evidence), intent.MaxEvidence)]
}

// sealed is sealedEvidence to look for.
func (r Resolved) sealed() (all []collect.Artifact) {
	for _, a := range r.sealedEvidence() {
		all = append(all, collect.Artifact{Kind: collect.Kind(a.Kind), Manifest: a.Manifest})
	}
	return all
}

// lacks are the request's sealed artifacts that c does not have.
func (c collectedAt) lacks(r Resolved) []intent.Artifact {
	return slices.DeleteFunc(slices.Clone(r.sealedEvidence()), func(a intent.Artifact) bool {
		return slices.ContainsFunc(c.Collected.Artifacts, func(b collect.Artifact) bool { return a == whereIs(b) })
	})
}

// unsought are the request's sealed artifacts, of some kinds or of all, that c does not have and
// that were not looked for.
func (c collectedAt) unsought(r Resolved, kinds ...collect.Kind) []intent.Artifact {
	return slices.DeleteFunc(c.lacks(r), func(a intent.Artifact) bool {
		_, sought := c.sought[a]
		return sought || len(kinds) > 0 && !slices.Contains(kinds, collect.Kind(a.Kind))
	})
}

// unsettled are the request's sealed artifacts that c does not have and that may be there. As
// long as there are some, what c lacks says nothing.
func (c collectedAt) unsettled(r Resolved) []intent.Artifact {
	return slices.DeleteFunc(c.lacks(r), func(a intent.Artifact) bool { return c.sought[a].settled })
}

// askedAt is when the registry was last asked for all that may count: the zero time if some of
// the request's sealed artifacts were not looked for.
func (c collectedAt) askedAt(r Resolved) time.Time {
	at := c.At
	for _, a := range c.lacks(r) {
		if sought := c.sought[a].at; sought.Before(at) {
			at = sought
		}
	}
	return at
}

// havingSought is c after some sealed artifacts were looked for. A part has none that are under
// cosign's tags.
func (c collectedAt) havingSought(sought []collect.Artifact, at time.Time) collectedAt {
	all := maps.Clone(c.sought)
	if all == nil {
		all = map[intent.Artifact]lookedFor{}
	}
	for _, a := range sought {
		if !c.Collected.Partial || a.Kind == collect.Bundle {
			all[whereIs(a)] = lookedFor{at: at, settled: c.Collected.Truncated == ""}
		}
	}
	for len(all) > maxSought {
		delete(all, slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b intent.Artifact) int { return all[a].at.Compare(all[b].at) }))
	}
	c.sought = all
	return c
}

// whereIs says where an artifact is, next to the image.
func whereIs(a collect.Artifact) intent.Artifact {
	return intent.Artifact{Kind: string(a.Kind), Manifest: a.Manifest}
}

// whereabouts is where some of the evidence of a verdict is, next to the image, and the names of
// what it vouches for.
type whereabouts struct {
	intent.Artifact
	vouches vouched
}

// vouched are names of signatures and attestations.
type vouched struct{ signatures, attestations []int }

// and is v with others.
func (v vouched) and(other vouched) vouched {
	return vouched{slices.Concat(v.signatures, other.signatures), slices.Concat(v.attestations, other.attestations)}
}

// without is v without others.
func (v vouched) without(other vouched) vouched {
	lacks := func(all, of []int) []int {
		return slices.DeleteFunc(slices.Clone(all), func(name int) bool { return slices.Contains(of, name) })
	}
	return vouched{lacks(v.signatures, other.signatures), lacks(v.attestations, other.attestations)}
}

// counted is where the evidence is that counts. What a signer's own repository has is found
// there again: only the signer may push to it.
func (i Inspected) counted() (all []whereabouts) {
	for _, counts := range i.evidence.Counted {
		a := i.collected.Collected.Artifacts[counts.Artifact]
		if a.Repository != "" || a.Manifest == "" {
			continue
		}
		of := vouched{counts.Signatures, counts.Attestations}
		known := slices.IndexFunc(all, func(w whereabouts) bool { return w.Artifact == whereIs(a) })
		if known < 0 {
			all = append(all, whereabouts{whereIs(a), of})
			continue
		}
		all[known].vouches = all[known].vouches.and(of.without(all[known].vouches))
	}
	return all
}

// lacksEvidence reports whether something that counts is in no sealed artifact: a signature that
// was made later, or one whose manifest is gone while there is a copy. Without sealed evidence, as
// before there was any, nothing is sealed anew.
func (v Verdict) lacksEvidence(sealed []intent.Artifact) bool {
	return sealed != nil && slices.ContainsFunc(v.evidenceToSeal(sealed), func(a intent.Artifact) bool { return !slices.Contains(sealed, a) })
}

// evidenceToSeal is where the evidence is that is sealed: what was sealed before, unless it is
// known to count no more, and what else it takes for each signature and attestation to be in one
// of them. So nothing that is pushed later takes the place of what is sealed and suffices. If that
// is more than is sealed, those with the most are, signatures first. A part of the evidence, and
// what was not looked for, adds nothing and takes nothing away.
func (v Verdict) evidenceToSeal(sealed []intent.Artifact) []intent.Artifact {
	if len(sealed) > 0 && (v.evidence.Partial || v.unsought) {
		return sealed
	}
	kept := slices.DeleteFunc(slices.Clone(sealed), func(a intent.Artifact) bool {
		return v.evidence.Truncated == "" && !slices.ContainsFunc(v.counted, func(w whereabouts) bool { return w.Artifact == a })
	})
	all := v.covering(kept, sealed)
	if len(all) > intent.MaxEvidence {
		all = v.covering(nil, sealed)
	}
	return all[:min(len(all), intent.MaxEvidence)]
}

// covering is base and what else it takes for everything that counts to be in one of them, the
// most needed first, and of equals what was sealed before. It is not nil.
func (v Verdict) covering(base, sealed []intent.Artifact) []intent.Artifact {
	all, covered := append([]intent.Artifact{}, base...), vouched{}
	for _, w := range v.counted {
		if slices.Contains(base, w.Artifact) {
			covered = covered.and(w.vouches)
		}
	}
	turn := []string{string(collect.LegacySignature), string(collect.Bundle), string(collect.LegacyAttestation)}
	for len(v.counted) > 0 {
		next := slices.MinFunc(v.counted, func(a, b whereabouts) int {
			x, y := a.vouches.without(covered), b.vouches.without(covered)
			return cmp.Or(len(y.signatures)-len(x.signatures), len(y.attestations)-len(x.attestations),
				indexOr(sealed, a.Artifact)-indexOr(sealed, b.Artifact), slices.Index(turn, a.Kind)-slices.Index(turn, b.Kind),
				cmp.Compare(a.Manifest, b.Manifest))
		})
		more := next.vouches.without(covered)
		if len(more.signatures)+len(more.attestations) == 0 {
			break
		}
		all, covered = append(all, next.Artifact), covered.and(more)
	}
	return all
}

// indexOr is where an artifact is in some, or behind them.
func indexOr(all []intent.Artifact, a intent.Artifact) int {
	if i := slices.Index(all, a); i >= 0 {
		return i
	}
	return len(all)
}
