package gate

import (
	"maps"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// Input is the document Rego sees, but for the parameters and the clock, which
// the engine sets.
func (i Inspected) Input() policies.Input {
	input := i.input(i.programs)
	input.Image = policies.Image{
		Registry: i.image.Registry, Repository: i.image.Repository, Tag: i.image.Tag, Digest: i.image.Digest,
		Size: i.object.ObjectSize, Labels: i.object.Labels,
	}
	input.Signatures, input.Attestations, input.Bytecode = i.evidence.Signatures, i.evidence.Attestations, i.facts
	input.Object = &i.object.facts.Facts
	return input
}

// input is the part of the document that the definition says, with its programs as
// Inspect makes them.
func (s Shaped) input(programs []v1alpha1.Program) policies.Input {
	app, spec := s.req.Application, *s.req.Application.Body().DeepCopy()
	id := app.Identity()
	spec.Programs = programs
	ns := s.req.Namespace
	ns.Name = id.Namespace
	return policies.Input{
		Version: policies.InputVersion,
		Application: policies.Application{
			Kind: id.Kind,
			Metadata: policies.Metadata{
				Name: id.Name, Namespace: id.Namespace, Labels: app.GetLabels(), Annotations: annotations(app),
			},
			Spec: spec,
		},
		Requester: s.req.Requester,
		Namespace: ns,
	}
}

// AnnotationLastApplied is kubectl's copy of a definition as it was applied last.
const AnnotationLastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// annotations are those that policies see: not kubectl's copy of the whole
// definition, which controllers do not keep in memory.
func annotations(app v1alpha1.Application) map[string]string {
	all := app.GetAnnotations()
	if _, copied := all[AnnotationLastApplied]; !copied {
		return all
	}
	all = maps.Clone(all)
	delete(all, AnnotationLastApplied)
	return all
}
