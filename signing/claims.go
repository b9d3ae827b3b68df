package signing

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
)

// Claims are what a certificate says of the build that a signature is from. The
// authority that issued it learned them from whoever runs the build, such as a CI
// service. The names are Fulcio's
// (https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md); what a certificate
// does not say is empty.
type Claims struct {
	// BuildSignerURI and BuildSignerDigest name the instructions that signed, such as
	// a reusable workflow.
	BuildSignerURI    string `json:"buildSignerURI,omitempty"`
	BuildSignerDigest string `json:"buildSignerDigest,omitempty"`
	// RunnerEnvironment is github-hosted or self-hosted, for instance.
	RunnerEnvironment string `json:"runnerEnvironment,omitempty"`
	// SourceRepositoryURI, -Digest and -Ref name what was built; -Identifier stays
	// where the repository is renamed.
	SourceRepositoryURI             string `json:"sourceRepositoryURI,omitempty"`
	SourceRepositoryDigest          string `json:"sourceRepositoryDigest,omitempty"`
	SourceRepositoryRef             string `json:"sourceRepositoryRef,omitempty"`
	SourceRepositoryIdentifier      string `json:"sourceRepositoryIdentifier,omitempty"`
	SourceRepositoryOwnerURI        string `json:"sourceRepositoryOwnerURI,omitempty"`
	SourceRepositoryOwnerIdentifier string `json:"sourceRepositoryOwnerIdentifier,omitempty"`
	// BuildConfigURI and BuildConfigDigest name the instructions that the build began
	// with, such as a workflow.
	BuildConfigURI    string `json:"buildConfigURI,omitempty"`
	BuildConfigDigest string `json:"buildConfigDigest,omitempty"`
	// BuildTrigger is what began the build, such as push.
	BuildTrigger string `json:"buildTrigger,omitempty"`
	// RunInvocationURI names the one run.
	RunInvocationURI string `json:"runInvocationURI,omitempty"`
	// SourceRepositoryVisibilityAtSigning is public or private, for instance.
	SourceRepositoryVisibilityAtSigning string `json:"sourceRepositoryVisibilityAtSigning,omitempty"`
	// The claims that only GitHub's certificates make, under their older names.
	GithubWorkflowTrigger    string `json:"githubWorkflowTrigger,omitempty"`
	GithubWorkflowSHA        string `json:"githubWorkflowSHA,omitempty"`
	GithubWorkflowName       string `json:"githubWorkflowName,omitempty"`
	GithubWorkflowRepository string `json:"githubWorkflowRepository,omitempty"`
	GithubWorkflowRef        string `json:"githubWorkflowRef,omitempty"`
}

// claimsOf are the claims of a certificate.
func claimsOf(e certificate.Extensions) Claims {
	return Claims{
		BuildSignerURI: e.BuildSignerURI, BuildSignerDigest: e.BuildSignerDigest, RunnerEnvironment: e.RunnerEnvironment,
		SourceRepositoryURI: e.SourceRepositoryURI, SourceRepositoryDigest: e.SourceRepositoryDigest,
		SourceRepositoryRef: e.SourceRepositoryRef, SourceRepositoryIdentifier: e.SourceRepositoryIdentifier,
		SourceRepositoryOwnerURI: e.SourceRepositoryOwnerURI, SourceRepositoryOwnerIdentifier: e.SourceRepositoryOwnerIdentifier,
		BuildConfigURI: e.BuildConfigURI, BuildConfigDigest: e.BuildConfigDigest, BuildTrigger: e.BuildTrigger,
		RunInvocationURI: e.RunInvocationURI, SourceRepositoryVisibilityAtSigning: e.SourceRepositoryVisibilityAtSigning,
		GithubWorkflowTrigger: e.GithubWorkflowTrigger, GithubWorkflowSHA: e.GithubWorkflowSHA, GithubWorkflowName: e.GithubWorkflowName,
		GithubWorkflowRepository: e.GithubWorkflowRepository, GithubWorkflowRef: e.GithubWorkflowRef,
	}
}

// byName are the claims that are made, by their names.
func (c Claims) byName() (map[string]string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("name claims: %w", err)
	}
	var named map[string]string
	return named, json.Unmarshal(text, &named)
}

// isClaim reports whether a name is one of a claim.
func isClaim(name string) bool {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Claims]()) {
		if tag, _, _ := strings.Cut(field.Tag.Get("json"), ","); tag == name {
			return true
		}
	}
	return false
}
