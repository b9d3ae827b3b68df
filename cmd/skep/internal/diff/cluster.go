package diff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// Bounds of what is asked of one cluster.
const (
	// atOnce is how many objects are compared at the same time.
	atOnce = 8
	// pageSize is how many objects one request lists, and maxListed how many of a kind are read.
	pageSize  = 500
	maxListed = 20_000
	// requestTimeout bounds one request: a webhook may take 30 seconds.
	requestTimeout = time.Minute
)

// defaultManager is who applies where no object says it.
const defaultManager = "kubectl"

// Cluster is what definitions are compared with, as its API server answers the caller.
type Cluster struct {
	// Config is the caller's.
	Config *rest.Config
	// Namespace is that of objects that name none.
	Namespace string
	// FieldManager is who would apply the objects; empty means who applied the live one last.
	FieldManager string
	// Selector chooses by labels what PATH owns in the cluster; empty means what the Kustomization
	// or the Application of Argo CD owns that applied the objects of PATH.
	Selector string

	api dynamic.Interface
}

// Compare compares objects with those of the cluster. Cautions are what could not be looked at.
func (c *Cluster) Compare(ctx context.Context, objects []schemas.Object) (r Report, cautions []string, err error) {
	config := rest.CopyConfig(c.Config)
	// The number of requests at once bounds them; 429 of the API server is honoured.
	config.QPS, config.Timeout, config.WarningHandlerWithContext = -1, requestTimeout, warnings{}
	if c.api, err = dynamic.NewForConfig(config); err != nil {
		return r, nil, fmt.Errorf("reach cluster: %w", err)
	}
	r = Report{Against: "cluster " + source.Redact(c.Config.Host), Changes: []Change{}}
	compared := make([]comparison, len(objects))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, o := range objects {
		g.Go(func() (err error) {
			compared[i], err = c.compare(gctx, o)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return r, nil, err
	}
	known, owners := map[v1alpha1.Identity]bool{}, map[string]bool{}
	for _, one := range compared {
		known[one.change.Identity] = true
		if one.owner != "" {
			owners[one.owner] = true
		}
		if one.same {
			r.Unchanged++
			continue
		}
		r.Changes = append(r.Changes, one.change)
	}
	if c.Selector != "" || len(owners) > 0 {
		cautions, err = c.removed(ctx, &r, known, owners)
	}
	r.sort()
	return r, cautions, err
}

// comparison is one object against its live counterpart.
type comparison struct {
	change Change
	same   bool
	owner  string
}

// resource is where objects of a kind are.
func (c *Cluster) resource(kind string) dynamic.NamespaceableResourceInterface {
	plural, _ := apimeta.UnsafeGuessKindToResource(v1alpha1.GroupVersion().WithKind(kind))
	return c.api.Resource(plural)
}

// within is where one object is.
func (c *Cluster) within(id v1alpha1.Identity) dynamic.ResourceInterface {
	if id.Namespace == "" {
		return c.resource(id.Kind)
	}
	return c.resource(id.Kind).Namespace(id.Namespace)
}

// compare asks the API server what becomes of one object. The error is for what ends the whole
// command; what concerns the object alone is its answer.
func (c *Cluster) compare(ctx context.Context, o schemas.Object) (comparison, error) {
	wanted := &unstructured.Unstructured{}
	if err := wanted.UnmarshalJSON(o.JSON); err != nil {
		return comparison{}, fmt.Errorf("read %s: %w", o.Identity, err)
	}
	id := o.Identity
	if id.Namespace != "" {
		id.Namespace = cmp.Or(wanted.GetNamespace(), c.Namespace)
		wanted.SetNamespace(id.Namespace)
	}
	one := comparison{change: Change{Action: Changed, Identity: id}}
	live, err := c.within(id).Get(ctx, id.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		live, one.change.Action = nil, Added
	case err != nil && unreachable(err):
		return one, fmt.Errorf("get %s: %w", one.change, err)
	case err != nil:
		one.change.Answer, one.change.Reasons = Unknown, []string{text.Line(err.Error())}
		return one, nil
	default:
		one.owner = ownerOf(live)
		adopt(wanted, live)
	}
	said := &heard{}
	after, err := c.dryRun(context.WithValue(ctx, heardKey{}, said), id, live, wanted)
	if err != nil && unreachable(err) {
		return one, fmt.Errorf("compare %s: %w", one.change, err)
	}
	one.change.answer(err, said.lines)
	if err != nil {
		after = supposed(live, wanted)
	}
	return one, one.finish(live, after, err)
}

// finish makes the diff. An object that was rejected differs, whatever the diff can show.
func (one *comparison) finish(live, after *unstructured.Unstructured, rejected error) error {
	var texts [2]string
	for i, o := range []*unstructured.Unstructured{live, after} {
		if o == nil {
			continue
		}
		doc, err := document(o)
		if err != nil {
			return fmt.Errorf("compare %s: %w", one.change, err)
		}
		texts[i] = doc
	}
	one.change.Diff = unified(one.change, texts[0], texts[1])
	one.same = one.change.Diff == "" && rejected == nil
	return nil
}

// supposed is what an object would be, without the API server's word.
func supposed(live, wanted *unstructured.Unstructured) *unstructured.Unstructured {
	if live == nil {
		return wanted
	}
	object, ok := overlaid(live.Object, wanted.Object).(map[string]any)
	if !ok {
		return wanted
	}
	return &unstructured.Unstructured{Object: object}
}

// dryRun has the API server say what it would store, with its defaults and after its admission.
// It is applied as it was before: on the server's side in the name of the same manager, whose
// fields go that the definition no longer has; or by the annotation of kubectl apply.
func (c *Cluster) dryRun(ctx context.Context, id v1alpha1.Identity, live, wanted *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	force := true
	options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: c.manager(live), Force: &force}
	modified, err := wanted.MarshalJSON()
	if err != nil {
		return nil, err
	}
	if !clientSide(live) || c.FieldManager != "" {
		return c.within(id).Patch(ctx, id.Name, types.ApplyPatchType, modified, options)
	}
	current, err := live.MarshalJSON()
	if err != nil {
		return nil, err
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch([]byte(live.GetAnnotations()[lastApplied]), modified, current)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; apply the object again with --server-side, or compare by --field-manager", errLastApplied, err)
	}
	if string(patch) == "{}" {
		return live, nil
	}
	options.Force = nil
	return c.within(id).Patch(ctx, id.Name, types.MergePatchType, patch, options)
}

// appliedBy is who applied an object on the server's side last; empty where nobody did.
func appliedBy(live *unstructured.Unstructured) string {
	manager, at := "", metav1.Time{}
	for _, f := range live.GetManagedFields() {
		if f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "" && (manager == "" || at.Before(f.Time)) {
			manager = f.Manager
			if f.Time != nil {
				at = *f.Time
			}
		}
	}
	return manager
}

// manager is who would apply an object.
func (c *Cluster) manager(live *unstructured.Unstructured) string {
	if live == nil {
		return cmp.Or(c.FieldManager, defaultManager)
	}
	return cmp.Or(c.FieldManager, appliedBy(live), defaultManager)
}

// clientSide reports whether kubectl apply without --server-side, or who does as it does, applied
// the object last.
func clientSide(live *unstructured.Unstructured) bool {
	return live != nil && appliedBy(live) == "" && live.GetAnnotations()[lastApplied] != ""
}

// Errors that are about one object, or one kind, and do not end the command.
var (
	errLastApplied = errors.New("annotation " + lastApplied + " of the live object cannot be read")
	errTooMany     = fmt.Errorf("there are more than %d", maxListed)
)

// unreachable reports whether an error is about the API server and no object of it.
func unreachable(err error) bool {
	if errors.Is(err, errLastApplied) {
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || apierrors.IsUnauthorized(err) {
		return true
	}
	// A webhook may deny without a reason, by a code of the client's errors.
	code := status.Status().Code
	ofClient := code >= http.StatusBadRequest && code < http.StatusInternalServerError
	return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && !ofClient
}

// answer sets what the API server said of a dry run: an error, or warnings.
func (c *Change) answer(err error, said []string) {
	c.Answer = Allowed
	for _, line := range said {
		switch reason, denied := strings.CutPrefix(line, gate.WarningDenied); {
		case denied:
			c.Answer, c.Reasons = Denied, append(c.Reasons, reason)
		case strings.Contains(line, gate.WarningUnverified):
			c.Answer, c.Reasons = Unverified, append(c.Reasons, line)
		default:
			c.Warnings = append(c.Warnings, line)
		}
	}
	if err == nil {
		return
	}
	var status apierrors.APIStatus
	code := int32(0)
	if errors.As(err, &status) {
		code = status.Status().Code
	}
	switch {
	case code == http.StatusForbidden && strings.Contains(err.Error(), " denied "):
		// A webhook, or a ValidatingAdmissionPolicy; RBAC says "is forbidden".
		c.Answer = Denied
	case code == http.StatusUnprocessableEntity || code == http.StatusBadRequest:
		c.Answer = Invalid
	default:
		c.Answer = Unknown
	}
	c.Reasons = append(c.Reasons, text.Line(err.Error()))
}

// warnings hands the warnings of an API server to the request that it answers.
type warnings struct{}

// heardKey is where a request's context has what is heard.
type heardKey struct{}

// heard are the warnings of one request and its retries, each once.
type heard struct {
	mu    sync.Mutex
	lines []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, message string) {
	h, ok := ctx.Value(heardKey{}).(*heard)
	const miscellaneous = 299
	if !ok || code != miscellaneous {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if line := text.Line(message); line != "" && !slices.Contains(h.lines, line) {
		h.lines = append(h.lines, line)
	}
}

// kinds are those that people write.
func kinds() []string {
	return []string{
		v1alpha1.KindBpfApplication, v1alpha1.KindClusterBpfApplication, v1alpha1.KindBpfPolicy, v1alpha1.KindClusterBpfPolicy, v1alpha1.KindBpfSigner,
		v1alpha1.KindCueArtifact,
	}
}

// removed adds what the owner of the objects has in the cluster, and PATH has not. Where the
// caller may not list a kind everywhere, the namespaces of PATH are looked at.
func (c *Cluster) removed(ctx context.Context, r *Report, known map[v1alpha1.Identity]bool, owners map[string]bool) (cautions []string, err error) {
	var within, hidden, partly []string
	for _, kind := range kinds() {
		visit := func(live *unstructured.Unstructured) error {
			id := v1alpha1.Identity{Kind: kind, Namespace: live.GetNamespace(), Name: live.GetName()}
			if known[id] || live.GetDeletionTimestamp() != nil || c.Selector == "" && !owners[ownerOf(live)] || keptByOwner(live) {
				return nil
			}
			return r.remove(id, live)
		}
		err := c.list(ctx, kind, metav1.NamespaceAll, visit)
		if apierrors.IsNotFound(err) {
			err = nil // an older cluster, without the kind
		}
		if apierrors.IsForbidden(err) {
			if err = c.listWithin(ctx, kind, known, visit); err == nil {
				within = append(within, kind)
			}
		}
		if apierrors.IsForbidden(err) {
			hidden, err = append(hidden, kind), nil
		}
		if errors.Is(err, errTooMany) {
			partly, err = append(partly, kind), nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind, err)
		}
	}
	const right = "ask for the right to list them"
	return slices.Concat(
		caution("for the namespaces of PATH alone", within, right),
		caution("nowhere", hidden, right),
		caution(fmt.Sprintf("for the first %d of each alone", maxListed), partly, "choose fewer by --selector"),
	), nil
}

// caution says that removed objects of some kinds are not shown everywhere; nothing where there
// are none.
func caution(where string, kinds []string, remedy string) []string {
	if len(kinds) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("removed objects of the kinds %s are shown %s; %s", strings.Join(kinds, ", "), where, remedy)}
}

// remove adds an object that is removed.
func (r *Report) remove(id v1alpha1.Identity, live *unstructured.Unstructured) error {
	before, err := document(live)
	if err != nil {
		return fmt.Errorf("read %s %s: %w", id.Kind, id, err)
	}
	change := Change{Action: Removed, Identity: id}
	change.Diff = unified(change, before, "")
	r.Changes = append(r.Changes, change)
	return nil
}

// listWithin is list, for the namespaces that PATH has objects in.
func (c *Cluster) listWithin(ctx context.Context, kind string, known map[v1alpha1.Identity]bool, visit func(*unstructured.Unstructured) error) error {
	var namespaces []string
	for id := range known {
		if id.Namespace != "" {
			namespaces = append(namespaces, id.Namespace)
		}
	}
	slices.Sort(namespaces)
	for _, namespace := range slices.Compact(namespaces) {
		if err := c.list(ctx, kind, namespace, visit); err != nil {
			return err
		}
	}
	return nil
}

// list has each object of a kind visited, until there are too many.
func (c *Cluster) list(ctx context.Context, kind, namespace string, visit func(*unstructured.Unstructured) error) error {
	options := metav1.ListOptions{LabelSelector: c.Selector, Limit: pageSize}
	for seen := 0; ; {
		page, err := c.resource(kind).Namespace(namespace).List(ctx, options)
		if err != nil {
			return err
		}
		for i := range page.Items {
			if err := visit(&page.Items[i]); err != nil {
				return err
			}
		}
		seen += len(page.Items)
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return nil
		}
		if seen >= maxListed {
			return errTooMany
		}
	}
}
