package cueartifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// The bounds of evaluating: how many applications at once from memory, how long the registry
// of one may take, and how much of the answers a status has.
const (
	evaluationsAtOnce = 4
	evaluationTimeout = 20 * time.Second
	maxApplications   = 500
	maxRules          = 8
	maxMessage        = 256
	maxListedBytes    = 192 << 10
)

// namespaceKind is what a Namespace is looked up by; its labels are all that is read.
var namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}

// answers are what the policies answer about the applications of a rendering.
type answers struct {
	// all are those of all applications: first the denied ones, then those that are not
	// evaluated.
	all []v1alpha1.RenderedApplication
	// hidden says that a tag has its value from a Secret: names and reasons may repeat it,
	// cut or encoded, so that nothing but counts is told.
	hidden bool
	// denied and unknown count.
	denied, unknown int
	// namespaces are those of the applications, and revision is that of the signers and
	// policies that answered.
	namespaces []string
	revision   string
}

// summary counts the applications.
func (a *answers) summary() string {
	s := fmt.Sprintf("%d applications", len(a.all))
	if len(a.all) == 1 {
		s = "1 application"
	}
	if a.denied > 0 {
		s += fmt.Sprintf(", %d of them denied", a.denied)
	}
	if a.unknown > 0 {
		s += fmt.Sprintf(", %d of them not evaluated yet", a.unknown)
	}
	return s
}

// listed are those that a status has room for.
func (a *answers) listed() []v1alpha1.RenderedApplication {
	if a.hidden || len(a.all) == 0 {
		return nil
	}
	room := maxListedBytes
	for i, one := range a.all[:min(len(a.all), maxApplications)] {
		data, _ := json.Marshal(one)
		if room -= len(data) + 1; room < 0 {
			return a.all[:i]
		}
	}
	return a.all[:min(len(a.all), maxApplications)]
}

// held is why requireAllowed holds an artifact back; nil where it does not.
func (a *answers) held() error {
	first := func(want metav1.ConditionStatus) string {
		if a.hidden {
			return "which and why is not shown, since a tag has its value from a Secret (render with another value and ask skep vet)"
		}
		i := slices.IndexFunc(a.all, func(r v1alpha1.RenderedApplication) bool { return r.Allowed == want })
		return fmt.Sprintf("%s %s: %s", a.all[i].Kind, identityOf(a.all[i]), a.all[i].Message)
	}
	switch {
	case a.denied > 0:
		return stalled(ReasonNotAllowed, "publish %s: spec.requireAllowed holds all of it back: %s", a.summary(), first(metav1.ConditionFalse))
	case a.unknown > 0:
		return retry(ReasonNotEvaluated, "publish %s: spec.requireAllowed holds all of it back: %s", a.summary(), first(metav1.ConditionUnknown))
	}
	return nil
}

// identityOf names an application.
func identityOf(r v1alpha1.RenderedApplication) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}
}

// evaluate asks the gate about each application of a rendering: from memory, and of what
// memory lacks beside the loop. Those that the CueArtifact's time does not suffice for are
// not evaluated.
func (r *Reconciler) evaluate(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, objects []schemas.Object, t tagValues) (*answers, error) {
	if err := r.Keeper.Wait(ctx); waited(ctx) {
		return nil, retry(ReasonNotEvaluated, "evaluate the applications: signers and policies are not active after %s (spec.timeout)", timeout(o.Spec))
	} else if err != nil {
		return nil, err
	}
	apps := schemas.Decode(objects).Applications
	if err := r.memory.hasRoom(client.ObjectKeyFromObject(o), len(apps)); err != nil {
		return nil, err
	}
	a := &answers{hidden: t.secret, namespaces: namespacesOf(apps), all: make([]v1alpha1.RenderedApplication, len(apps))}
	a.revision = r.policyRevision(a.namespaces)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(evaluationsAtOnce)
	for i, app := range apps {
		group.Go(func() error {
			a.all[i] = r.ask(ctx, o, m, app.Application)
			if waited(ctx) {
				return nil
			}
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	rank := map[metav1.ConditionStatus]int{metav1.ConditionFalse: 0, metav1.ConditionUnknown: 1, metav1.ConditionTrue: 2}
	slices.SortStableFunc(a.all, func(x, y v1alpha1.RenderedApplication) int { return cmp.Compare(rank[x.Allowed], rank[y.Allowed]) })
	for _, one := range a.all {
		switch one.Allowed {
		case metav1.ConditionFalse:
			a.denied++
		case metav1.ConditionUnknown:
			a.unknown++
		}
	}
	return a, nil
}

// namespacesOf are the namespaces of applications, each once; an empty one is the cluster's.
func namespacesOf(apps []schemas.Definition) (all []string) {
	for _, app := range apps {
		all = append(all, app.Application.Identity().Namespace)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// policyRevision identifies the signers and policies that evaluate the applications of some
// namespaces.
func (r *Reconciler) policyRevision(namespaces []string) string {
	sum := sha256.New()
	for _, ns := range namespaces {
		fmt.Fprintf(sum, "%q %q\n", ns, r.Evaluator.RevisionIn(ns))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ask asks about one application.
func (r *Reconciler) ask(ctx context.Context, o *v1alpha1.CueArtifact, m *memo, app v1alpha1.Application) v1alpha1.RenderedApplication {
	id := app.Identity()
	unknown := v1alpha1.RenderedApplication{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, Allowed: metav1.ConditionUnknown}
	ns, err := r.namespace(ctx, id.Namespace)
	if err != nil {
		unknown.Message = text.Cut(err.Error(), maxMessage)
		return unknown
	}
	request := gate.Request{Application: app, Namespace: ns, Reader: r.reader(ctx, o, app), Passing: true}
	// Package evaluations takes what stands before a slash for whose question it is.
	name := strings.ReplaceAll(fmt.Sprintf("%s %s %s", o.UID, id.Kind, id), "/", "|")
	request.Digest = m.imageDigest(name)
	verdict, err := r.Evaluator.Evaluate(registry.CacheOnly(ctx), request)
	a := answer(id, verdict, err)
	if errors.Is(err, image.ErrNotAsked) || verdict.Outdated() {
		a = r.askRegistry(m, name, o.Namespace, request)
	}
	if a.Err != nil && waited(ctx) {
		a.Err = fmt.Errorf("it is not evaluated after %s (spec.timeout)", timeout(o.Spec))
	}
	if a.Err != nil {
		unknown.Message = text.Cut(a.Err.Error(), maxMessage)
		return unknown
	}
	m.remember(name, a.Digest)
	return a.Told
}

// answer is what is told of a verdict, and what the tag stands for, without the verdict.
func answer(id v1alpha1.Identity, verdict gate.Verdict, err error) evaluations.Answer {
	if err != nil {
		return evaluations.Answer{Err: err}
	}
	told := v1alpha1.RenderedApplication{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, Allowed: metav1.ConditionTrue}
	if !verdict.Allowed() {
		told.Allowed = metav1.ConditionFalse
		denied := verdict.Decision().Denied
		rules := policies.Rules(denied)
		told.Rules = slices.Clone(rules[:min(len(rules), maxRules)])
		if len(denied) > 0 {
			told.Message = text.Cut(gate.Sentence(denied[0]), maxMessage)
		}
	}
	return evaluations.Answer{Told: told, Digest: verdict.Image().Digest}
}

// askRegistry has what memory lacks asked beside the loop, as a question of a namespace. Until
// the answer comes, the error says what is waited for.
func (r *Reconciler) askRegistry(m *memo, name, namespace string, request gate.Request) evaluations.Answer {
	term, queue := r.asking()
	if queue == nil {
		return evaluations.Answer{Err: errors.New("it is evaluated once this replica leads")}
	}
	id := request.Application.Identity()
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q", m.key, request.Digest))
	q := evaluations.Question{
		Name: name + "/rendered", Subject: hex.EncodeToString(sum[:]), Revision: r.Evaluator.RevisionIn(id.Namespace),
		Registry: image.RegistryOf(request.Application.Body().Bytecode.Image), Owner: namespace,
		Ask: func(ctx context.Context) evaluations.Answer {
			ctx, cancel := context.WithTimeout(ctx, evaluationTimeout)
			defer cancel()
			verdict, err := r.Evaluator.Evaluate(ctx, request)
			return answer(id, verdict, err)
		},
	}
	before, answered := queue.Answered(q)
	return queue.Ask(term, q, answered && before.Err != nil && m.mayAskAgain(name, r.now()))
}

// reader reads the image of an application. With the pull Secrets that it names only where it
// is in the CueArtifact's own namespace: nobody learns of what another's Secret opens.
func (r *Reconciler) reader(ctx context.Context, o *v1alpha1.CueArtifact, app v1alpha1.Application) *access.Reader {
	if r.Images == nil {
		return nil
	}
	return r.Images(ctx, o.Namespace, app)
}

// namespace is what policies see of a namespace; one that is not there yet has no labels.
func (r *Reconciler) namespace(ctx context.Context, name string) (policies.Namespace, error) {
	if name == "" {
		return policies.Namespace{}, nil
	}
	var ns metav1.PartialObjectMetadata
	ns.SetGroupVersionKind(namespaceKind)
	if err := client.IgnoreNotFound(r.Client.Get(ctx, types.NamespacedName{Name: name}, &ns)); err != nil {
		return policies.Namespace{}, fmt.Errorf("get Namespace %s, whose labels policies read: %w", name, err)
	}
	return policies.Namespace{Name: name, Labels: ns.Labels}, nil
}
