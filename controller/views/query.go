package views

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
)

// query are the parameters of a request.
type query struct {
	limit int
	from  position
	// labels and fields choose objects.
	labels labels.Selector
	fields fields.Selector
	// include is what of an object a row of a Table has.
	include metav1.IncludeObjectPolicy
}

// everything chooses all.
func everything() query { return query{labels: labels.Everything(), fields: fields.Everything()} }

// position is where a page begins: at a node, after the attachment of a name, or at an application. Everybody may make one: it opens nothing.
type position struct {
	// At is a node's name, or an application's as v1alpha1.Identity writes it.
	At    string `json:"at,omitempty"`
	After string `json:"after,omitempty"`
	// Seen counts the attachments of the node on the pages before.
	Seen int `json:"seen,omitempty"`
}

// token is a position as clients hand it back.
func (p position) token() string {
	text, _ := json.Marshal(p) // It is of texts.
	return base64.RawURLEncoding.EncodeToString(text)
}

// maxToken bounds a token, in bytes.
const maxToken = 2048

// parsePosition reads a token.
func parsePosition(token string) (position, error) {
	var p position
	if token == "" {
		return p, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	isName := func(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }
	namespace, name, isNamespaced := strings.Cut(p.At, "/")
	if err != nil || len(token) > maxToken || !isName(namespace) || isNamespaced && !isName(name) || p.After != "" && !isName(p.After) {
		return position{}, noderequest.Fail(http.StatusBadRequest, "the parameter continue was not made by this API: list again without it")
	}
	return p, nil
}

// selectable are the fields that a field selector of a resource may name.
func (r request) selectable() []string {
	switch {
	case r.subresource != "":
		return []string{"node"}
	case r.resource == nodeViews:
		return []string{"metadata.name", "node"}
	case r.resource == applications, r.resource == clusterApps:
		return []string{"metadata.name", "metadata.namespace"}
	}
	return []string{"metadata.name", "metadata.namespace", "node", "application", "program", "hook", "state"}
}

// isTrue reports whether a parameter is set, as Kubernetes reads it.
func isTrue(from url.Values, name string) bool {
	return from.Has(name) && from.Get(name) != "0" && !strings.EqualFold(from.Get(name), "false")
}

// maxTerms bounds the terms of a selector, of which each is compared with each object.
const maxTerms = 32

// fewTerms rejects a selector of too many terms.
func fewTerms(name string, terms int) error {
	if terms > maxTerms {
		return noderequest.Fail(http.StatusBadRequest, "%s has %d terms, and at most %d are compared: select with fewer", name, terms, maxTerms)
	}
	return nil
}

// parseQuery reads parameters, of which a field selector may name some fields.
func parseQuery(from url.Values, selectable []string) (q query, err error) {
	if isTrue(from, "watch") {
		return q, noderequest.Fail(http.StatusMethodNotAllowed, "this API has no watch: list again")
	}
	switch q.include = metav1.IncludeObjectPolicy(from.Get("includeObject")); q.include {
	case "", metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
	default:
		return q, noderequest.Fail(http.StatusBadRequest, "includeObject=%.32q is none of None, Metadata and Object", q.include)
	}
	if q.limit, err = positive("limit", from.Get("limit")); err != nil {
		return q, err
	}
	if q.from, err = parsePosition(from.Get("continue")); err != nil {
		return q, err
	}
	if q.labels, err = labels.Parse(from.Get("labelSelector")); err != nil {
		return q, noderequest.Fail(http.StatusBadRequest, "labelSelector: %v", err)
	}
	terms, _ := q.labels.Requirements()
	if err := fewTerms("labelSelector", len(terms)); err != nil {
		return q, err
	}
	text := from.Get("fieldSelector")
	if node := from.Get("node"); node != "" {
		if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
			return q, noderequest.Fail(http.StatusBadRequest, "node %.64q is no name: %s", node, strings.Join(problems, "; "))
		}
		text = strings.TrimPrefix(text+",node="+node, ",")
	}
	if q.fields, err = fields.ParseSelector(text); err != nil {
		return q, noderequest.Fail(http.StatusBadRequest, "fieldSelector: %v", err)
	}
	if err := fewTerms("fieldSelector", len(q.fields.Requirements())); err != nil {
		return q, err
	}
	for _, r := range q.fields.Requirements() {
		if !slices.Contains(selectable, r.Field) {
			return q, noderequest.Fail(http.StatusBadRequest, "fieldSelector: there is no field %.64q; it is one of %s", r.Field, strings.Join(selectable, ", "))
		}
	}
	return q, nil
}

// exact is the value that a field must have, or the label of its name, if a selector says so.
func (q query) exact(field string) (string, bool) {
	are := []selection.Operator{selection.Equals, selection.DoubleEquals, selection.In}
	for _, r := range q.fields.Requirements() {
		if r.Field == field && slices.Contains(are, r.Operator) {
			return r.Value, true
		}
	}
	terms, _ := q.labels.Requirements()
	for _, r := range terms {
		if values := r.ValuesUnsorted(); r.Key() == view.Group+"/"+field && len(values) == 1 && slices.Contains(are, r.Operator()) {
			return values[0], true
		}
	}
	return "", false
}

// chooses reports whether an attachment is asked for.
func (q query) chooses(a *view.BpfAttachment) bool {
	return q.labels.Matches(labels.Set(a.Labels)) && q.fields.Matches(fields.Set{"metadata.name": a.Name, "metadata.namespace": a.Namespace,
		"node": a.Node, "application": a.Application.Name, "program": a.Program, "hook": a.Hook, "state": a.State})
}

// choosesObject reports whether an object of the API server is asked for; a node is one by the field node, too.
func (q query) choosesObject(o metav1.Object) bool {
	return q.labels.Matches(labels.Set(o.GetLabels())) &&
		q.fields.Matches(fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace(), "node": o.GetName()})
}

// page is how many objects a page has, of at most so many.
func (q query) page(most int) int { return min(cmp.Or(q.limit, most), most) }

// wantsTable reports whether a client prefers a Table to objects.
func wantsTable(accept string) (bool, error) {
	if accept == "" {
		return false, nil
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil || kind != "application/json" && kind != "*/*" && kind != "application/*" {
			continue
		}
		switch {
		case params["as"] == "":
			return false, nil
		case params["as"] == "Table" && params["g"] == metav1.GroupName && params["v"] == "v1":
			return true, nil
		}
	}
	return false, noderequest.Fail(http.StatusNotAcceptable, "this API answers application/json, as objects or as a Table of meta.k8s.io/v1")
}

// sortNodes orders nodes by name.
func sortNodes(nodes []*v1alpha1.BpfNode) {
	slices.SortFunc(nodes, func(a, b *v1alpha1.BpfNode) int { return cmp.Compare(a.Name, b.Name) })
}
