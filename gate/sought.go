package gate

import (
	"cmp"
	"slices"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing/collect"
)

// maxSought is how many sealed artifacts are looked for of one image, whatever the number of
// applications that it was sealed for.
const maxSought = 2 * intent.MaxEvidence

// sealedEvidence is where the running version says that the evidence of its image is.
func (r Resolved) sealedEvidence() []collect.Artifact {
	sealed := r.req.Sealed
	if sealed == nil || sealed.ImageDigest != r.image.Digest {
		return nil
	}
	var all []collect.Artifact
	for _, a := range sealed.Evidence[:min(len(sealed.Evidence), intent.MaxEvidence)] {
		all = append(all, collect.Artifact{Kind: collect.Kind(a.Kind), Manifest: a.Manifest})
	}
	return all
}

// seeks are the sealed artifacts that the next collection looks for: the request's, and those
// that were looked for before.
func (c collectedAt) seeks(r Resolved) []collect.Artifact {
	all := r.sealedEvidence()
	for _, a := range c.sought {
		if len(all) < maxSought && !slices.ContainsFunc(all, sameManifest(a)) {
			all = append(all, a)
		}
	}
	return all
}

// unsought are the request's sealed artifacts, of some kinds or of all, that c does not have and
// that were not looked for. Until they are, what c lacks says nothing.
func (c collectedAt) unsought(r Resolved, kinds ...collect.Kind) []collect.Artifact {
	return slices.DeleteFunc(r.sealedEvidence(), func(a collect.Artifact) bool {
		return len(kinds) > 0 && !slices.Contains(kinds, a.Kind) ||
			slices.ContainsFunc(c.sought, sameManifest(a)) || slices.ContainsFunc(c.Collected.Artifacts, sameManifest(a))
	})
}

// havingSought is c after some sealed artifacts were looked for. A part has none that are under
// cosign's tags.
func (c collectedAt) havingSought(sought []collect.Artifact) collectedAt {
	c.sought = slices.DeleteFunc(slices.Clone(sought), func(a collect.Artifact) bool { return c.Collected.Partial && a.Kind != collect.Bundle })
	return c
}

func sameManifest(a collect.Artifact) func(collect.Artifact) bool {
	return func(b collect.Artifact) bool { return a.Kind == b.Kind && a.Manifest == b.Manifest }
}

// whereabouts are where the evidence of a verdict is, next to the image.
type whereabouts struct {
	all []intent.Artifact
	// needed are those that repeat no other, signatures first, as many as are sealed.
	needed []intent.Artifact
}

// counted is where the evidence is that counts. What a signer's own repository has is found
// there again: only the signer may push to it.
func (i Inspected) counted() (c whereabouts) {
	for _, counts := range i.evidence.Counted {
		a := i.collected.Collected.Artifacts[counts.Artifact]
		if a.Repository != "" || a.Manifest == "" {
			continue
		}
		sealed := intent.Artifact{Kind: string(a.Kind), Manifest: a.Manifest}
		c.all = append(c.all, sealed)
		if !counts.Repeats && !slices.Contains(c.needed, sealed) {
			c.needed = append(c.needed, sealed)
		}
	}
	turn := []string{string(collect.LegacySignature), string(collect.Bundle), string(collect.LegacyAttestation)}
	slices.SortStableFunc(c.needed, func(a, b intent.Artifact) int {
		return cmp.Compare(slices.Index(turn, a.Kind), slices.Index(turn, b.Kind))
	})
	c.needed = c.needed[:min(len(c.needed), intent.MaxEvidence)]
	return c
}

// outlived reports whether sealed evidence does not count any more while other evidence does,
// such as after an image was signed again and the registry deleted the old manifest. Without
// sealed evidence, as before there was any, nothing is sealed anew for it.
func (v Verdict) outlived(sealed []intent.Artifact) bool {
	lacks := func(all, of []intent.Artifact) bool {
		return slices.ContainsFunc(of, func(a intent.Artifact) bool { return !slices.Contains(all, a) })
	}
	return !v.evidence.Partial && lacks(v.counted.all, sealed) && lacks(sealed, v.counted.needed)
}
