package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/application"
	"github.com/skep-dev/skep/controller/policy"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/text"
)

// compileBudgets is how many budgets a policy may take to compile, where the API server
// waits so long.
const compileBudgets = 4

// Validator says of every application, policy and signer whether it may be
// stored. It changes nothing, so a dry run is a request like any other.
type Validator struct {
	// Reader reads namespaces, from a cache.
	Reader    client.Reader
	Evaluator *gate.Evaluator
	Keeper    *policy.Keeper
	// Images reads an application's image with the pull Secrets it names; nil
	// means as the Evaluator does.
	Images func(context.Context, v1alpha1.Application) *access.Reader
	// Budget is how long one request may take to learn what is not known.
	Budget  time.Duration
	Metrics *Metrics
}

// answer is an outcome and what is told of it.
type answer struct {
	outcome  outcome
	message  string
	warnings []string
	// rules are those that deny an application.
	rules []string
	// audited are what policies in mode Audit would deny.
	audited []policies.Reason
}

// The annotations in the API server's audit log of what policies in mode Audit would deny:
// each rule once, as a JSON array, and the reasons, cut. The API server puts the webhook's
// name before them.
const (
	annotationDenials = "denials"
	annotationReasons = "denial-reasons"
)

// Handle implements admission.Handler. A denial is 403 Forbidden and never 422,
// which Flux takes for a field that cannot change, and then may delete the
// object to make it anew. See changeable as well.
func (v *Validator) Handle(ctx context.Context, req webhook.AdmissionRequest) webhook.AdmissionResponse {
	a, err := v.review(ctx, req)
	if err != nil {
		a.outcome = malformed
	}
	v.Metrics.observe(req.Kind.Kind, a)
	if err != nil {
		return webhook.Errored(http.StatusBadRequest, err)
	}
	response := webhook.Allowed("")
	if a.outcome == denied {
		ctrl.LoggerFrom(ctx).Info("denied", "message", a.message, "user", req.UserInfo.Username)
		response = webhook.Denied(a.message)
	}
	if len(a.audited) > 0 {
		response.AuditAnnotations = audited(a.audited)
		ctrl.LoggerFrom(ctx).Info("audited", "object", name(req), "rules", response.AuditAnnotations[annotationDenials],
			"message", response.AuditAnnotations[annotationReasons], "user", req.UserInfo.Username)
	}
	return response.WithWarnings(a.warnings...)
}

// review looks at one request.
func (v *Validator) review(ctx context.Context, req webhook.AdmissionRequest) (answer, error) {
	object, err := read(req.Kind, req.Object.Raw)
	if err != nil {
		return answer{}, fmt.Errorf("read %s: %w", name(req), err)
	}
	var before client.Object
	if req.Operation == admissionv1.Update {
		if before, err = read(req.Kind, req.OldObject.Raw); err != nil {
			return answer{}, fmt.Errorf("read %s as it was: %w", name(req), err)
		}
	}
	switch wrong, err := oversized(req, object.GetDeletionTimestamp() != nil); {
	case err != nil:
		return answer{}, err
	case wrong != "":
		return deny(name(req), wrong), nil
	}
	asks := before == nil || !settled(before, object)
	switch known, err := recorded(before, object, asks, req.UserInfo); {
	case err != nil:
		return answer{}, err
	case !known:
		return deny(name(req), unrecorded), nil
	case !asks:
		return answer{outcome: unchanged}, nil
	}
	switch o := object.(type) {
	case v1alpha1.Application:
		a := v.application(ctx, o, stoodFor(before, o))
		a.warnings = append(a.warnings, warnings("", append(keptContents(before, o), groupsAlone(o)...))...)
		return a, nil
	case *v1alpha1.ClusterBpfPolicy:
		return v.policy(ctx, name(req), policies.FromObjects([]v1alpha1.ClusterBpfPolicy{*o}, nil))
	case *v1alpha1.BpfPolicy:
		return v.policy(ctx, name(req), policies.FromObjects(nil, []v1alpha1.BpfPolicy{*o}))
	case *v1alpha1.BpfSigner:
		if _, err := signing.NewTrust([]v1alpha1.BpfSigner{*o}); err != nil {
			return deny(name(req), err.Error()), nil
		}
	}
	return answer{outcome: allowed}, nil
}

// name is kind, namespace and name of what a request is about.
func name(req webhook.AdmissionRequest) string {
	id := v1alpha1.Identity{Namespace: req.Namespace, Name: req.Name}
	return req.Kind.Kind + " " + id.String()
}

// deny is a denial with its reasons on one line.
func deny(object string, reasons ...string) answer {
	return answer{outcome: denied, message: changeable(text.Line(object + ": " + strings.Join(reasons, "; ")))}
}

// read is an object of one of the kinds that are looked at.
func read(kind metav1.GroupVersionKind, raw []byte) (client.Object, error) {
	object := map[string]client.Object{
		v1alpha1.KindBpfApplication:        &v1alpha1.BpfApplication{},
		v1alpha1.KindClusterBpfApplication: &v1alpha1.ClusterBpfApplication{},
		v1alpha1.KindBpfPolicy:             &v1alpha1.BpfPolicy{},
		v1alpha1.KindClusterBpfPolicy:      &v1alpha1.ClusterBpfPolicy{},
		v1alpha1.KindBpfSigner:             &v1alpha1.BpfSigner{},
	}[kind.Kind]
	if object == nil || kind.Group != v1alpha1.Group {
		return nil, fmt.Errorf("kind %s is not looked at here", schema.GroupVersionKind(kind))
	}
	return object, json.Unmarshal(raw, object)
}

// settled reports whether an update asks for nothing that has to be looked at.
// What was denied since it was stored must stay in the hands of its operators:
// they can label it, confirm it, suspend it, and take finalizers from it while it
// is on its way out, whatever is wrong with the rest of it. None of this loads
// anything, and the reconcilers evaluate by the new metadata. Nor does undoing a
// rollout: the version before is evaluated by itself. What has a tag resolved anew,
// or a rollout go on, is looked at.
func settled(before, now client.Object) bool {
	was, is := spec(before), spec(now)
	if is, ok := is.(v1alpha1.BpfApplicationSpec); ok && is.Suspend {
		held := was.(v1alpha1.BpfApplicationSpec)
		held.Suspend = true
		was = held
	}
	return equality.Semantic.DeepEqual(was, is) && !differ(before, now, gate.AnnotationRequestedAt, v1alpha1.AnnotationResume)
}

// spec is what an object asks for.
func spec(o client.Object) any {
	switch o := o.(type) {
	case v1alpha1.Application:
		return *o.Body()
	case *v1alpha1.ClusterBpfPolicy:
		return o.Spec
	case *v1alpha1.BpfPolicy:
		return o.Spec
	case *v1alpha1.BpfSigner:
		return o.Spec
	}
	return nil
}

// policy says whether a policy can be used, with the line and column of what is
// wrong with it, and warns of what its author may not have meant.
func (v *Validator) policy(ctx context.Context, object string, list []policies.Policy) (answer, error) {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, compileBudgets*v.Budget)
	defer cancel()
	_, err := v.Keeper.Engine.Compile(limited, list, policies.Options{})
	var broken *policies.CompileError
	switch {
	case err != nil && errors.Is(limited.Err(), context.DeadlineExceeded):
		return deny(object, fmt.Sprintf("it did not compile within %s; make it simpler, or try again when other policies of its namespace are compiled",
			time.Since(began).Round(time.Second))), nil
	case errors.As(err, &broken):
		return deny(object, err.Error()), nil
	case err != nil:
		return answer{}, err
	}
	return answer{outcome: allowed, warnings: warnings("", list[0].Cautions())}, nil
}

// stoodFor is the digest that an application's image stood for when it was evaluated
// last, as its status says; empty where it names another image by now, was not evaluated
// since it names that one, or whoever changes it asks what the tag stands for now.
func stoodFor(before client.Object, now v1alpha1.Application) string {
	was, ok := before.(v1alpha1.Application)
	if !ok || was.Body().Bytecode.Image != now.Body().Bytecode.Image || differ(was, now, gate.AnnotationRequestedAt) {
		return ""
	}
	report := was.Report()
	verified := apimeta.FindStatusCondition(report.Conditions, v1alpha1.ConditionVerified)
	if verified == nil || verified.Status == metav1.ConditionUnknown || report.ObservedGeneration != was.GetGeneration() {
		return ""
	}
	return report.Digest
}

// application asks the gate: at once where all is known, within the budget
// where it is not. What could not be determined is let in with a warning, since
// nothing is loaded before it was; but not what is denied already by what its image
// stood for before.
func (v *Validator) application(ctx context.Context, app v1alpha1.Application, before string) answer {
	id := app.Identity()
	verdict, aside, err := v.verdict(ctx, app, before)
	if err != nil {
		return answer{outcome: unverified, warnings: warnings(
			fmt.Sprintf("%s %s %s", id.Kind, id, gate.WarningUnverified), []string{err.Error()})}
	}
	decision := verdict.Decision()
	a := answer{
		outcome: allowed, warnings: warnings("", append(aside, sentences(decision.Warnings, maxWarnings)...)),
		audited: decision.Audited,
	}
	switch {
	case verdict.Allowed():
		return a
	case decision.AdmissionWarn:
		a.outcome = warned
		a.warnings = append(warnings(gate.WarningDenied, sentences(decision.Denied, maxWarnings)), a.warnings...)
		return a
	}
	refused := deny(id.Kind+" "+id.String(), sentences(decision.Denied, maxReasons)...)
	refused.warnings, refused.audited = a.warnings, a.audited
	for _, reason := range decision.Denied {
		refused.rules = append(refused.rules, reason.Rule)
	}
	return refused
}

// verdict is the gate's, within the budget. Where its registry could not be asked an
// application is denied by what is known of a digest, and aside says so.
func (v *Validator) verdict(ctx context.Context, app v1alpha1.Application, before string) (verdict gate.Verdict, aside []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, v.Budget)
	defer cancel()
	asking := ctx
	if before != "" {
		var stop context.CancelFunc
		asking, stop = context.WithTimeout(ctx, v.Budget*3/4)
		defer stop()
	}
	if verdict, err = v.evaluate(asking, app, ""); err == nil || before == "" {
		return verdict, nil, err
	}
	known, unknown := v.evaluate(ctx, app, before)
	if unknown != nil || known.Allowed() {
		return verdict, nil, err
	}
	return known, []string{fmt.Sprintf("evaluated by what is known of %s, since its registry could not be asked: %v", before, err)}, nil
}

// evaluate has the gate evaluate an application as the reconcilers would, by a digest
// where there is one.
func (v *Validator) evaluate(ctx context.Context, app v1alpha1.Application, digest string) (gate.Verdict, error) {
	if err := v.Keeper.Wait(ctx); err != nil {
		return gate.Verdict{}, err
	}
	request := gate.Request{Application: app, Requester: application.Requester(app), Digest: digest, Passing: true}
	if v.Images != nil {
		request.Reader = v.Images(ctx, app)
	}
	if namespace := app.GetNamespace(); namespace != "" {
		ns := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
		if err := v.Reader.Get(ctx, types.NamespacedName{Name: namespace}, &ns); err != nil {
			return gate.Verdict{}, fmt.Errorf("get namespace %s: %w", namespace, err)
		}
		request.Namespace = policies.Namespace{Name: namespace, Labels: ns.Labels}
	}
	return v.Evaluator.Evaluate(ctx, request)
}
