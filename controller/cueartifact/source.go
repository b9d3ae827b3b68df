package cueartifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/http/fetch"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
)

// maxDownload is how many bytes the archive of a source's artifact has at most.
const maxDownload = 50 << 20

// sources are the kinds of sources.
var sources = []string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind}

// fluxObject is an empty object of a kind of Flux as it is cached: not decoded. What Flux's
// schema admits, Go's types may not hold, such as an interval of 99999999999h, and then a list
// of decoded objects would fail as a whole, for all tenants.
func fluxObject(kind string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(sourcev1.GroupVersion.WithKind(kind))
	return o
}

// sourceState is what is read of a source: its status, and nothing of its spec.
type sourceState struct {
	Artifact   *meta.Artifact     `json:"artifact"`
	Conditions []metav1.Condition `json:"conditions"`
	// IncludedArtifacts are of other repositories, and are in the artifact too. The source's
	// signature says nothing of them.
	IncludedArtifacts []meta.Artifact `json:"includedArtifacts"`

	// Generation is that of the source, which is no field of its status.
	Generation int64 `json:"-"`
}

// stateOf decodes what is read of a source.
func stateOf(o *unstructured.Unstructured) (s sourceState, err error) {
	status, _, err := unstructured.NestedMap(o.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(status, &s)
	}
	if err != nil {
		return sourceState{}, fmt.Errorf("decode its status: %w", err)
	}
	s.Generation = o.GetGeneration()
	return s, nil
}

// sourceKey names the source of a CueArtifact in the field index.
func sourceKey(kind string, name types.NamespacedName) string { return kind + "/" + name.String() }

// sourceName is the name of a CueArtifact's source.
func sourceName(o *v1alpha1.CueArtifact) types.NamespacedName {
	ref := o.Spec.SourceRef
	return types.NamespacedName{Namespace: cmp.Or(ref.Namespace, o.Namespace), Name: ref.Name}
}

// source returns the artifact that a CueArtifact is rendered from.
func (r *Reconciler) source(ctx context.Context, o *v1alpha1.CueArtifact) (*meta.Artifact, error) {
	ref, name := o.Spec.SourceRef, sourceName(o)
	what := fmt.Sprintf("%s %s", ref.Kind, name)
	if name.Namespace != o.Namespace && r.NoCrossNamespaceRefs {
		return nil, stalled(ReasonAccessDenied, "get %s: sources of other namespaces are not read (--no-cross-namespace-refs): name one of namespace %s",
			what, o.Namespace)
	}
	if err := r.circular(ctx, o); err != nil {
		return nil, err
	}
	if !r.kinds[ref.Kind] {
		return nil, stalled(ReasonSourceNotReady, "get %s: the cluster had no such kind when the controller started: install it, and restart the controller", what)
	}
	object := fluxObject(ref.Kind)
	switch err := r.Flux.Get(ctx, name, object); {
	case apierrors.IsNotFound(err):
		return nil, retry(ReasonSourceNotReady, "get %s: it is not there: create it, or correct spec.sourceRef", what)
	case err != nil:
		return nil, retry(ReasonSourceNotReady, "get %s: %w", what, err)
	}
	src, err := stateOf(object)
	if err != nil {
		return nil, retry(ReasonSourceNotReady, "get %s: %w", what, err)
	}
	a := src.Artifact
	if a == nil || a.URL == "" || a.Digest == "" {
		return nil, retry(ReasonSourceNotReady, "get %s: it has no artifact yet: its status says why", what)
	}
	if o.Spec.RequireVerifiedSource && len(src.IncludedArtifacts) > 0 {
		return nil, retry(ReasonSourceNotVerified, "get %s: it includes other repositories, whose signatures its spec.verify does not verify, "+
			"and spec.requireVerifiedSource asks for: take them out of its spec.include, and render them by CueArtifacts of their own", what)
	}
	if o.Spec.RequireVerifiedSource && !src.verified() {
		return nil, retry(ReasonSourceNotVerified, "get %s: its condition SourceVerified is not True for its present generation, "+
			"which spec.requireVerifiedSource asks for: give it spec.verify", what)
	}
	return a, nil
}

// maxChain is how many CueArtifacts may be rendered from each other.
const maxChain = 16

// circular denies a source that is rendered, by however many CueArtifacts, from what this one
// publishes: nothing new would ever come into such a circle. What a CueArtifact publishes has its
// name.
func (r *Reconciler) circular(ctx context.Context, o *v1alpha1.CueArtifact) error {
	self, at, what := client.ObjectKeyFromObject(o), o, ""
	for range maxChain {
		if at.Spec.SourceRef.Kind != sourcev1.ExternalArtifactKind {
			return nil
		}
		name := sourceName(at)
		what += " from " + name.String()
		if name == self {
			return stalled(ReasonAccessDenied, "get ExternalArtifact %s: it is what this CueArtifact publishes, which is rendered%s: name another source",
				sourceName(o), what)
		}
		at = &v1alpha1.CueArtifact{}
		if err := r.Client.Get(ctx, name, at); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("get CueArtifact %s: %w", name, err)
		}
	}
	return stalled(ReasonAccessDenied, "get ExternalArtifact %s: more than %d CueArtifacts are rendered from each other: name the source of the first",
		sourceName(o), maxChain)
}

// verified reports whether a source's signature was verified, for its present generation, and is
// about all of the artifact.
func (s sourceState) verified() bool {
	c := apimeta.FindStatusCondition(s.Conditions, sourcev1.SourceVerifiedCondition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == s.Generation && len(s.IncludedArtifacts) == 0
}

// fetchInto downloads a source's artifact, verifies its digest and unpacks it into a folder.
func fetchInto(ctx context.Context, a meta.Artifact, dir string) error {
	const archive = "source.tar.gz"
	fetcher := fetch.New(fetch.WithMaxDownloadSize(maxDownload), fetch.WithFileName(archive))
	if err := fetcher.FetchWithContext(ctx, a.URL, a.Digest, dir); err != nil {
		return fmt.Errorf("fetch revision %s: %w", a.Revision, withoutSecrets(err, a.URL))
	}
	file := filepath.Join(dir, archive)
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open revision %s: %w", a.Revision, errors.Unwrap(err))
	}
	defer f.Close()
	if err := archives.Unpack(ctx, f, filepath.Join(dir, "source")); err != nil {
		return fmt.Errorf("unpack revision %s: %w", a.Revision, err)
	}
	return os.Remove(file)
}

// addresses matches the addresses in an error of net/http, which quotes them: that of the source,
// and those that its server redirects to, whose queries are signatures.
var addresses = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"]+`)

// withoutSecrets takes user, password, query and fragment of each address out of an error.
func withoutSecrets(err error, address string) error {
	if errors.Is(err, fetch.ErrFileNotFound) {
		return errors.New("the source's server has it no longer: the source announces another soon")
	}
	// An address may have spaces and quotes in it.
	message := strings.ReplaceAll(err.Error(), address, safe(address))
	return errors.New(addresses.ReplaceAllStringFunc(message, safe))
}

// safe is an address without user, password, query and fragment.
func safe(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that is none"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
