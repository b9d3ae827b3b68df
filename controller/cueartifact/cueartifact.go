// Package cueartifact reconciles CueArtifacts: it renders the CUE of a Flux source and
// publishes the definitions as a Flux ExternalArtifact, which a Flux Kustomization applies.
//
// It owns the way from a source's artifact to an archive that is served: fetch by digest,
// render in the confined child of package schemas, ask the gate about each application, store,
// announce. It applies nothing itself, and an application is never left out of an archive:
// Flux would remove it from the cluster.
//
// Rights: get, list and watch of the four kinds of sources; create, get, list, watch and
// patch of ExternalArtifacts and their status; get, list and watch of CueArtifacts; patch of
// their status; get of the ConfigMaps and Secrets that tags name. A CueArtifact has no
// finalizer: it can be deleted where nothing renders it.
package cueartifact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// The reasons of Ready, and of events.
const (
	ReasonPublished = meta.SucceededReason
	// ReasonNewArtifact is of the event of a new revision.
	ReasonNewArtifact = "NewArtifact"
	// ReasonAccessDenied: the CueArtifact may not read the source.
	ReasonAccessDenied = "AccessDenied"
	// ReasonSourceNotReady: there is no such source, or it has no artifact yet.
	ReasonSourceNotReady = "SourceNotReady"
	// ReasonSourceNotVerified: requireVerifiedSource asks for more.
	ReasonSourceNotVerified = "SourceNotVerified"
	// ReasonTagsFailed: the value of a tag cannot be had.
	ReasonTagsFailed = "TagsFailed"
	// ReasonFetchFailed: the source's artifact cannot be had, or is not what it says.
	ReasonFetchFailed = "FetchFailed"
	// ReasonRenderFailed: the source's content cannot be rendered.
	ReasonRenderFailed = "RenderFailed"
	// ReasonNotAllowed: requireAllowed holds back what is denied.
	ReasonNotAllowed = "NotAllowed"
	// ReasonNotEvaluated: requireAllowed holds back what is not evaluated yet.
	ReasonNotEvaluated = "NotEvaluated"
	// ReasonStorageFailed: the archive cannot be stored or announced.
	ReasonStorageFailed = "StorageFailed"
	// ReasonArtifactLost is of an ExternalArtifact whose archive is lost, and not rendered
	// again.
	ReasonArtifactLost = "ArtifactLost"
)

// failure is why nothing new is published.
type failure struct {
	reason string
	// stalled is true where only a change of what was asked for, or of the source, helps.
	stalled bool
	err     error
}

// Error implements error.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap implements errors.Unwrap.
func (f *failure) Unwrap() error { return f.err }

// retry is a failure that may pass.
func retry(reason, format string, args ...any) error {
	return &failure{reason: reason, err: fmt.Errorf(format, args...)}
}

// stalled is a failure that stays until somebody changes something.
func stalled(reason, format string, args ...any) error {
	return &failure{reason: reason, stalled: true, err: fmt.Errorf(format, args...)}
}

// errBusy says that as many CueArtifacts of a namespace are rendered or evaluated as may be.
var errBusy = errors.New("others of its namespace are rendered or evaluated")

// maxTimeout bounds how long one CueArtifact is fetched, rendered and evaluated, in total.
const maxTimeout = 5 * time.Minute

// timeout is how long a CueArtifact may be fetched, rendered and evaluated.
func timeout(spec v1alpha1.CueArtifactSpec) time.Duration {
	if spec.Timeout == nil || spec.Timeout.Duration <= 0 {
		return time.Minute
	}
	return min(spec.Timeout.Duration, maxTimeout)
}

// minInterval bounds how often a CueArtifact is looked at without an event: each time, the objects
// of its tags are read.
const minInterval = 5 * time.Second

// interval is when a CueArtifact is looked at again without an event, after a failure too.
func interval(spec v1alpha1.CueArtifactSpec, failed bool) time.Duration {
	if failed && spec.RetryInterval != nil {
		return max(spec.RetryInterval.Duration, minInterval)
	}
	return max(spec.Interval.Duration, minInterval)
}

// published is what a status says of an artifact.
func published(a meta.Artifact) *v1alpha1.PublishedArtifact {
	p := &v1alpha1.PublishedArtifact{Revision: a.Revision, Digest: a.Digest, URL: a.URL, Path: a.Path, LastUpdateTime: a.LastUpdateTime}
	if a.Size != nil {
		p.Size = *a.Size
	}
	return p
}

// conditionOf is Ready after an attempt: err is why it failed.
func conditionOf(err error, success string) metav1.Condition {
	if err == nil {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: ReasonPublished, Message: success}
	}
	reason := meta.FailedReason
	if f := (*failure)(nil); errors.As(err, &f) {
		reason = f.reason
	}
	return metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: err.Error()}
}

// isStalled reports whether only a change of something helps.
func isStalled(err error) bool {
	f := (*failure)(nil)
	return errors.As(err, &f) && f.stalled
}

// waited reports whether a context ended by itself, and not what was done within it.
func waited(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }
