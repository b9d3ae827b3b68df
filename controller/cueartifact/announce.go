package cueartifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/runtime/conditions"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// externals are the ExternalArtifacts that announce what is published.
type externals struct {
	client client.Client
	// flux reads from the cache, not decoded.
	flux client.Reader
}

// announce has the ExternalArtifact of a CueArtifact say what is published. Nothing is written
// where it does.
func (es externals) announce(ctx context.Context, o *v1alpha1.CueArtifact, a meta.Artifact) error {
	name := client.ObjectKeyFromObject(o)
	before, err := es.get(ctx, name)
	if apierrors.IsNotFound(err) {
		if before, err = es.create(ctx, o); err != nil {
			return err
		}
	} else if err != nil {
		return retry(ReasonStorageFailed, "get ExternalArtifact %s: %w", name, err)
	}
	if !metav1.IsControlledBy(before, o) {
		return stalled(ReasonStorageFailed, "announce revision %s: ExternalArtifact %s is not this CueArtifact's: delete it, or give the CueArtifact another name",
			a.Revision, name)
	}
	ea := before.DeepCopy()
	ea.Spec = specFor(o)
	if !equality.Semantic.DeepEqual(before.Spec, ea.Spec) {
		if err := es.client.Patch(ctx, ea, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return retry(ReasonStorageFailed, "patch ExternalArtifact %s: %w", name, err)
		}
		before = ea.DeepCopy()
	}
	ea.Status.Artifact = &a
	conditions.MarkTrue(ea, meta.ReadyCondition, meta.SucceededReason, "stored artifact for revision '%s'", a.Revision)
	return es.patchStatus(ctx, before, ea)
}

// withdraw has the ExternalArtifact of a CueArtifact announce nothing, since the archive was lost
// and why says why it is not rendered again. Flux then waits for an artifact, and neither asks for
// one that is not there nor removes what it applied.
func (es externals) withdraw(ctx context.Context, o *v1alpha1.CueArtifact, why error) error {
	name := client.ObjectKeyFromObject(o)
	before, err := es.get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return retry(ReasonStorageFailed, "get ExternalArtifact %s: %w", name, err)
	case !metav1.IsControlledBy(before, o):
		return nil
	}
	ea := before.DeepCopy()
	ea.Status.Artifact = nil
	conditions.MarkFalse(ea, meta.ReadyCondition, ReasonArtifactLost, "the archive is not stored any more, and is not rendered again: %s",
		text.Cut(why.Error(), maxProblem))
	return es.patchStatus(ctx, before, ea)
}

// patchStatus writes the status of an ExternalArtifact, if it says anything new.
func (es externals) patchStatus(ctx context.Context, before, ea *sourcev1.ExternalArtifact) error {
	if equality.Semantic.DeepEqual(before.Status, ea.Status) {
		return nil
	}
	if err := es.client.Status().Patch(ctx, ea, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return retry(ReasonStorageFailed, "patch status of ExternalArtifact %s: %w", client.ObjectKeyFromObject(ea), err)
	}
	return nil
}

// get gets an ExternalArtifact from the cache.
func (es externals) get(ctx context.Context, name types.NamespacedName) (*sourcev1.ExternalArtifact, error) {
	object := fluxObject(sourcev1.ExternalArtifactKind)
	if err := es.flux.Get(ctx, name, object); err != nil {
		return nil, err
	}
	ea := &sourcev1.ExternalArtifact{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, ea); err != nil {
		return nil, fmt.Errorf("decode it: %w: delete it", err)
	}
	return ea, nil
}

// specFor is what an ExternalArtifact says of its CueArtifact.
func specFor(o *v1alpha1.CueArtifact) sourcev1.ExternalArtifactSpec {
	return sourcev1.ExternalArtifactSpec{SourceRef: &meta.NamespacedObjectKindReference{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindCueArtifact, Name: o.Name, Namespace: o.Namespace,
	}}
}

// create makes the ExternalArtifact of a CueArtifact, which goes with it.
func (es externals) create(ctx context.Context, o *v1alpha1.CueArtifact) (*sourcev1.ExternalArtifact, error) {
	ea := &sourcev1.ExternalArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Spec: specFor(o)}
	if err := controllerutil.SetControllerReference(o, ea, es.client.Scheme(), controllerutil.WithBlockOwnerDeletion(false)); err != nil {
		return nil, retry(ReasonStorageFailed, "make ExternalArtifact %s: %w", client.ObjectKeyFromObject(ea), err)
	}
	if err := es.client.Create(ctx, ea); err != nil {
		return nil, retry(ReasonStorageFailed, "create ExternalArtifact %s: %w", client.ObjectKeyFromObject(ea), err)
	}
	return ea, nil
}

// maxNamed bounds how many definitions an event names of each that were added, changed or
// removed.
const maxNamed = 5

// describeNew says which revision is published, and what changed with it, unless names may be
// those that a Secret's value gave.
func (r *Reconciler) describeNew(former *meta.Artifact, m *memo) string {
	note := fmt.Sprintf("published revision %s: %s", m.artifact.Revision, m.answers.summary())
	if m.answers.hidden || former != nil && !m.shown {
		return note
	}
	now, err := r.Store.Read(*m.artifact)
	if err != nil {
		return note
	}
	var before []byte
	if former != nil {
		if before, err = r.Store.Read(*former); err != nil {
			return note
		}
	}
	return note + describeDiff(documents(before), documents(now))
}

// documents are hashes of the documents of an archive, by kind, namespace and name.
func documents(content []byte) map[string][sha256.Size]byte {
	all := map[string][sha256.Size]byte{}
	for doc := range bytes.SplitSeq(content, []byte("\n---\n")) {
		doc = bytes.TrimSuffix(doc, []byte("\n"))
		var o metav1.PartialObjectMetadata
		if len(doc) > 0 && yaml.Unmarshal(doc, &o) == nil {
			all[o.Kind+" "+strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")] = sha256.Sum256(doc)
		}
	}
	return all
}

// describeDiff says which definitions were added, changed and removed.
func describeDiff(before, now map[string][sha256.Size]byte) string {
	var added, changed, removed []string
	for name, hash := range now {
		if was, ok := before[name]; !ok {
			added = append(added, name)
		} else if was != hash {
			changed = append(changed, name)
		}
	}
	for name := range before {
		if _, ok := now[name]; !ok {
			removed = append(removed, name)
		}
	}
	return some("added", added) + some("changed", changed) + some("removed", removed)
}

// some counts names, and lists the first.
func some(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	listed := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if len(names) > maxNamed {
		listed += ", …"
	}
	return fmt.Sprintf("; %d %s: %s", len(names), what, listed)
}
