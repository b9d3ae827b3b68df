package schemas

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// kinds are those that authors write.
var kinds = [...]string{
	v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication,
	v1alpha1.KindBpfPolicy, v1alpha1.KindClusterBpfPolicy, v1alpha1.KindBpfSigner,
}

// unjudged are the kinds that are rendered as they stand: a cluster's API server alone checks
// what they say.
var unjudged = [...]string{v1alpha1.KindCueArtifact, v1alpha1.KindBpfImage, v1alpha1.KindBpfIntent, v1alpha1.KindBpfNode}

// bpfman is the project that has kinds of the same names as ours.
const bpfman = "bpfman.io/"

// namesKind reports whether a file says one of our kinds, and so may hold a
// definition whose apiVersion is misspelt.
func namesKind(data []byte) bool {
	for _, kind := range slices.Concat(kinds[:], unjudged[:]) {
		if bytes.Contains(data, []byte(kind)) {
			return true
		}
	}
	return false
}

// stray says what is wrong with a value that looks like a definition and is not
// one, since its apiVersion is not Skep's. A misspelt group must not make a
// definition vanish.
func (s *scope) stray(v cue.Value) *Problem {
	field := func(name string) cue.Value { return v.LookupPath(cue.MakePath(cue.Str(name))) }
	kindField, version := field("kind"), field("apiVersion")
	if !kindField.Exists() || !field("metadata").Exists() && !field("spec").Exists() {
		return nil
	}
	kind, _ := kindField.String()
	inNamespace, ours := namespaced(kind)
	vague := version.Exists() && !version.IsConcrete()
	p := &Problem{Source: s.r.position(v), Path: v.Path().String(), Field: "apiVersion", Fix: clause(rightVersion)}
	switch {
	case !kindField.IsConcrete() && vague:
		p.Message = "neither apiVersion nor kind is concrete, so this may be any definition"
		p.Fix = "give both a concrete value, or make a template a hidden field or a definition"
		return p
	case !ours:
		return nil
	}
	if id := identify(v, kind, inNamespace); id.Name != "" {
		p.Definition = &id
	}
	said, err := version.String()
	switch {
	case !version.Exists():
		p.Message = fmt.Sprintf("the %s has no apiVersion", kind)
		return p
	case vague:
		p.Message = fmt.Sprintf("the apiVersion of a %s is not concrete", kind)
	case err == nil && strings.HasPrefix(said, bpfman):
		return nil
	case err != nil:
		p.Message = fmt.Sprintf("the apiVersion is not that of a %s: %s", kind, s.text(errors.Promote(err, "")))
	default:
		p.Message = fmt.Sprintf("%s is not the apiVersion of a %s", written(v, []string{"apiVersion"}), kind)
	}
	p.Path = strings.TrimPrefix(p.Path+".apiVersion", ".")
	if at := s.r.position(version); at.File != "" {
		p.Source = at
	}
	return p
}
