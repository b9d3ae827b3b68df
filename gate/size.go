package gate

import (
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/intent"
)

// sealRest is what a sealed intent has left for all that neither the definition nor the object says: digests, and who signed
// when. No more signatures of an image are read than fit.
const sealRest = 64 << 10

// maxFacts bounds what one version has of the facts of its programs, so that the facts of the six versions that an intent may
// have take half of it. 256 programs of 15 calls each take 25 KB, and of 50 calls each 56 KB: see TestTheFactsOfManyProgramsAreSealed.
const maxFacts = 64 << 10

// shapeSize denies a definition that no intent has room for.
func shapeSize(r *denials, app v1alpha1.Application) {
	most := intent.MaxPayloadBytes - sealRest
	switch n, err := version(app, app.Body().Programs, nil).Size(); {
	case err != nil:
		r.add("shape/size", "spec", "write every variable as JSON", "it cannot be sealed: %v", err)
	case n > most:
		r.add("shape/size", "spec", "make the definition smaller, or split it", "it has %d bytes as JSON that is sealed, at most %d fit", n, most)
	}
}

// fitSize denies a definition that no intent has room for with what its object says: the targets in sections of programs, and
// what the programs do.
func fitSize(r *denials, app v1alpha1.Application, programs []v1alpha1.Program, facts bytecode.Facts) {
	const rule, at, fix = "inspect/size", "spec.programs", "list fewer programs, or split the object into several"
	most, sealed := intent.MaxPayloadBytes-sealRest, sealedFacts(programs, facts)
	if n, err := (intent.Payload{Facts: sealed}).Size(); err != nil || n > maxFacts {
		r.add(rule, at, fix, "its programs do so much that an intent takes %d bytes to say it, at most %d are sealed", n, maxFacts)
	} else if n, err := version(app, programs, sealed).Size(); err != nil || n > most {
		r.add(rule, at, fix+", or make the definition smaller", "with what its object says of its programs it has %d bytes as JSON that is sealed, at most %d fit",
			n, most)
	}
}

// version is what a definition asks of a node, as far as it and its object say.
func version(app v1alpha1.Application, programs []v1alpha1.Program, facts *intent.Facts) intent.Payload {
	spec := app.Body()
	return intent.Payload{
		Application: app.Identity(), Image: spec.Bytecode.Image, NodeSelector: spec.NodeSelector,
		Variables: spec.Variables, Maps: spec.Maps, Programs: programs, Alternatives: spec.Alternatives, Facts: facts,
	}
}

// sealedFacts are the facts of the programs that may run.
func sealedFacts(programs []v1alpha1.Program, facts bytecode.Facts) *intent.Facts {
	named, tails := map[string]bool{}, callsTails(facts)
	for _, p := range programs {
		named[p.Name] = true
	}
	var mayRun []bytecode.Program
	for _, p := range facts.Programs {
		if named[p.Name] || tails {
			mayRun = append(mayRun, p)
		}
	}
	sealed := &intent.Facts{}
	sealed.Calls, sealed.Reads = bytecode.Seal(mayRun)
	return sealed
}
