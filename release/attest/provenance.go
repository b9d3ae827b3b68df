// Package attest writes what a release says of what is in it: software bills of materials
// (CycloneDX) and provenance (SLSA), and the in-toto statements that these are signed in.
//
// It is pure: it reads nothing, and equal input gives equal bytes. It signs nothing.
package attest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// The kinds of statement: https://slsa.dev/spec/v1.0/provenance and https://cyclonedx.org.
const (
	PredicateProvenance = "https://slsa.dev/provenance/v1"
	PredicateSBOM       = "https://cyclonedx.org/bom"
)

// buildType says how external parameters are to be read: docs/release.md does so.
const buildType = "https://github.com/skep-dev/skep/blob/main/docs/release.md#provenance"

// Subject is a file, or an image by the digest of its manifest.
type Subject struct {
	// Name is the file's, or the image's repository.
	Name string
	// SHA256 is in hex.
	SHA256 string
}

// Build is what is known of how a release was made.
type Build struct {
	// Builder is the URI of who ran it, whom a verifier trusts or not.
	Builder string
	// Source is the URL of the git repository.
	Source string
	// Revision is the commit's hash.
	Revision string
	// Version is the release's, as v1.2.3.
	Version string
	// Folder is the registry and folder that images are named below: chart and kustomize directory
	// have it.
	Folder string
	// Time is when the commit was made, or SOURCE_DATE_EPOCH.
	Time time.Time
	// Platforms are those of the binaries, such as linux/amd64.
	Platforms []string
	// Flags and Environment are those of go build, without what only a platform has.
	Flags, Environment []string
	// Go is the version of Go, as go1.26.8.
	Go string
	// Modules are those that are linked into any of the binaries, or of which images have files.
	Modules []debug.Module
}

// Provenance is a statement of SLSA's provenance about subjects. It says nothing of when and
// where the build ran, so that a build which is repeated elsewhere can say the same.
func Provenance(b Build, subjects []Subject) ([]byte, error) {
	external, err := structOf(map[string]any{
		"source":  map[string]any{"uri": "git+" + b.Source, "digest": map[string]any{"gitCommit": b.Revision}},
		"version": b.Version, "folder": b.Folder, "sourceDateEpoch": b.Time.Unix(), "platforms": b.Platforms,
	})
	if err != nil {
		return nil, err
	}
	internal, err := structOf(map[string]any{"command": "go build", "flags": b.Flags, "environment": b.Environment})
	if err != nil {
		return nil, err
	}
	p := &provenance.Provenance{
		BuildDefinition: &provenance.BuildDefinition{
			BuildType: buildType, ExternalParameters: external, InternalParameters: internal, ResolvedDependencies: b.resolved(),
		},
		RunDetails: &provenance.RunDetails{Builder: &provenance.Builder{Id: b.Builder}},
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("check provenance: %w", err)
	}
	predicate, err := protojson.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode provenance: %w", err)
	}
	return Statement(PredicateProvenance, predicate, subjects)
}

// resolved are the commit, Go, and the modules.
func (b Build) resolved() []*intoto.ResourceDescriptor {
	all := []*intoto.ResourceDescriptor{
		{Uri: "git+" + b.Source + "@" + b.Revision, Digest: map[string]string{"gitCommit": b.Revision}},
		// Where it came from, nobody saw.
		{Name: "go", Uri: goLibrary(b.Go)},
	}
	for _, m := range b.Modules {
		d := &intoto.ResourceDescriptor{Uri: goPackage(m.Path, m.Version, nil, "")}
		if sum, ok := treeHash(m.Sum); ok {
			d.Digest = map[string]string{string(intoto.AlgorithmDirHash): sum}
		}
		all = append(all, d)
	}
	return all
}

// Statement is an in-toto statement that says a predicate, given as JSON, of subjects.
func Statement(predicateType string, predicate []byte, subjects []Subject) ([]byte, error) {
	s := &intoto.Statement{Type: intoto.StatementTypeUri, PredicateType: predicateType, Predicate: &structpb.Struct{}}
	if err := protojson.Unmarshal(predicate, s.GetPredicate()); err != nil {
		return nil, fmt.Errorf("read predicate %s: %w", predicateType, err)
	}
	for _, subject := range subjects {
		s.Subject = append(s.Subject, &intoto.ResourceDescriptor{Name: subject.Name, Digest: map[string]string{"sha256": subject.SHA256}})
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("check statement %s: %w", predicateType, err)
	}
	return stable(s)
}

// stable encodes a message so that equal ones are equal bytes: protojson alone puts spaces in by chance,
// so that nobody relies on that.
func stable(m proto.Message) ([]byte, error) {
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	return out.Bytes(), nil
}

// structOf is a value as protobuf has JSON.
func structOf(value map[string]any) (*structpb.Struct, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode parameters: %w", err)
	}
	s := new(structpb.Struct)
	if err := protojson.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("encode parameters: %w", err)
	}
	return s, nil
}
