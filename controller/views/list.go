package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// The bounds of a page of attachments: of how many, of how many bytes as JSON, and of how many bytes one may be. Of one node, pages have
// maxOfNode: more than fit into its description, so that a list ends whatever an agent answers.
const (
	maxOfNode     = 1 << 16
	maxPage       = 1000
	maxPageBytes  = 4 << 20
	maxAttachment = 64 << 10
)

// errEnough says that no more of an answer is needed.
var errEnough = errors.New("enough")

// listAttachments answers a page of attachments. Nodes are asked in the order of their names, until the page is full.
func (v *views) listAttachments(ctx context.Context, r request) (any, warnings, error) {
	scope := view.Scope{Kind: r.kind(), Namespace: r.namespace}
	if name, only := r.query.exact("application"); only {
		scope.Name = name
	}
	nodes, err := v.nodes(ctx, scope, r.query)
	if err != nil {
		return nil, warnings{}, err
	}
	p := page{from: r.query.from, most: r.query.page(maxPage), items: []view.BpfAttachment{}}
	if err := v.gather(ctx, &p, nodes, scope, r); err != nil {
		return nil, p.about, err
	}
	list := view.BpfAttachmentList{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindBpfAttachment + "List"}, Items: p.items}
	if r.resource == clusterAttachments {
		list.Kind = view.KindClusterBpfAttachment + "List"
	}
	if p.next != (position{}) {
		list.Continue = p.next.token()
		if r.query.limit == 0 {
			p.about.cut = fmt.Sprintf("the list ends after %d objects: ask with the parameters limit and continue", len(p.items))
		}
	}
	if r.asTable {
		return attachmentTable(list.ListMeta, r.query.include, list.Items), p.about, nil
	}
	return list, p.about, nil
}

// gather fills a page with what nodes answer, some at once.
func (v *views) gather(ctx context.Context, p *page, nodes []*v1alpha1.BpfNode, scope view.Scope, r request) error {
	end := time.Now().Add(pageTime)
	for len(nodes) > 0 && p.next == (position{}) {
		if p.asked > 0 && time.Now().After(end) {
			p.next = position{At: nodes[0].Name}
			return nil
		}
		asked := nodes[:min(len(nodes), p.batch())]
		answers := make([]answered, len(asked))
		var all sync.WaitGroup
		for i, n := range asked {
			all.Go(func() { answers[i] = v.attachments(ctx, n.Name, scope, r, p.room()) })
		}
		all.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, a := range answers {
			node := nodes[0].Name
			nodes = nodes[1:]
			if p.add(a, node, nodes); p.next != (position{}) {
				return nil
			}
		}
	}
	return nil
}

// page gathers the attachments of a page.
type page struct {
	// from is where it begins.
	from position
	// most is how many it may have, and next where the next page begins; empty where there is none.
	most  int
	next  position
	items []view.BpfAttachment
	bytes int
	// asked counts nodes.
	asked int
	about warnings
}

// batch is how many nodes are asked next: as many as fill the page, by what those had that were asked.
func (p *page) batch() int {
	if p.asked == 0 {
		return ofRequest / 4
	}
	each := max(1, len(p.items)/p.asked)
	return max(1, min(ofRequest, p.room()/each))
}

// room is how many attachments the page has room for.
func (p *page) room() int { return p.most - len(p.items) }

// answered is what a node answered.
type answered struct {
	items []view.BpfAttachment
	bytes int
	// more says that the node has more than was asked for.
	more bool
	err  error
}

// add adds the attachments of a node, and ends the page where it is full; after are the next nodes.
func (p *page) add(a answered, node string, after []*v1alpha1.BpfNode) {
	p.asked++
	if a.err != nil {
		p.about.add(node, a.err)
	}
	took := a.items[:min(len(a.items), p.room())]
	p.items = append(p.items, took...)
	p.bytes += a.bytes
	full := p.room() == 0 || p.bytes >= maxPageBytes
	switch {
	case len(took) > 0 && (a.more || len(took) < len(a.items)):
		p.next = position{At: node, After: took[len(took)-1].Name, Seen: len(took)}
		if node == p.from.At {
			p.next.Seen += p.from.Seen
		}
	case len(a.items) > 0 && len(took) == 0:
		p.next = position{At: node}
	case full && len(after) > 0:
		p.next = position{At: after[0].Name}
	}
}

// attachments are those of a node that a request chooses, in the order of their names: at most so many, from where the page begins.
func (v *views) attachments(ctx context.Context, node string, scope view.Scope, r request, most int) (a answered) {
	after := ""
	if r.query.from.At == node {
		if after = r.query.from.After; r.query.from.Seen >= maxOfNode {
			a.err = noderequest.Fail(http.StatusBadGateway, "its agent has more than %d attachments: the rest is not shown", maxOfNode)
			return a
		}
	}
	last := ""
	a.err = v.ask(ctx, viewread.Request{Header: noderequest.NewHeader(node, r.user, time.Now()), Scope: scope, Attachments: true}, &v.asks, maxAttachment,
		func(value json.RawMessage) error {
			var one view.BpfAttachment
			if err := json.Unmarshal(value, &one); err != nil {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends what is no attachment")
			}
			if !scope.Has(one.Application) {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends attachments that were not asked for")
			}
			if !canBe(one.Application) {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends an attachment of what is no application")
			}
			one = rebuilt(node, one)
			if !view.IsOn(one.Name, node) || len(validation.IsDNS1123Subdomain(one.Name)) > 0 {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends an attachment with a name that none has")
			}
			if last >= one.Name {
				return noderequest.Fail(http.StatusBadGateway, "its agent sends attachments that are not in the order of their names")
			}
			last = one.Name
			switch {
			case one.Name <= after || !r.query.chooses(&one):
				return nil
			case len(a.items) == most || a.bytes > maxPageBytes/2 && len(a.items) > 0:
				a.more = true
				return errEnough
			}
			// What is written may be longer than what came.
			written, err := json.Marshal(one)
			a.items, a.bytes = append(a.items, one), a.bytes+len(written)
			return err
		})
	return a
}

// canBe reports whether the API server has such names.
func canBe(id v1alpha1.Identity) bool {
	isKind := id.Kind == v1alpha1.KindBpfApplication || id.Kind == v1alpha1.KindClusterBpfApplication
	isIn := id.IsNamespaced() && len(validation.IsDNS1123Label(id.Namespace)) == 0 || !id.IsNamespaced() && id.Namespace == ""
	return isKind && isIn && len(validation.IsDNS1123Subdomain(id.Name)) == 0
}

// rebuilt is what an agent says of an attachment, as this server writes it.
func rebuilt(node string, of view.BpfAttachment) view.BpfAttachment {
	b := view.NewAttachment(node, of.Application, of.Attachment)
	b.Name = of.Name
	return b
}

// maxAnswer bounds all that an agent sends for one request, in bytes: the attachments of a description have more bytes than it.
const maxAnswer = 4 * viewread.MaxView

// ask has the agent of a node answer within its time, and calls do with each value, of at most so many bytes.
func (v *views) ask(ctx context.Context, request viewread.Request, at *places, most int, do func(json.RawMessage) error) error {
	leave, err := at.acquire(ctx, request.Node, request.User, v.NodeTime)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, v.NodeTime)
	defer cancel()
	answer, err := v.Asker.Ask(ctx, request)
	if err == nil {
		defer answer.Close()
		// A read of the answer ends with the context.
		defer context.AfterFunc(ctx, func() { _ = answer.Close() })()
		err = noderequests.Each(io.LimitReader(answer, maxAnswer), most, func(value json.RawMessage) error {
			if len(value) == 0 {
				return nil
			}
			return do(value)
		})
	}
	switch {
	case err == nil, errors.Is(err, errEnough):
		return nil
	case ctx.Err() != nil:
		return noderequest.Fail(http.StatusGatewayTimeout, "its agent did not answer within %s", v.NodeTime)
	}
	return err
}

// getAttachment answers an attachment, by the node that its name has.
func (v *views) getAttachment(ctx context.Context, r request) (any, warnings, error) {
	scope := view.Scope{Kind: r.kind(), Namespace: r.namespace}
	only := request{user: r.user, query: query{labels: labels.Everything(), fields: fields.OneTermEqualSelector("metadata.name", r.name)}}
	nodes, err := v.nodes(ctx, scope, only.query)
	if err != nil {
		return nil, warnings{}, err
	}
	var failed error
	for _, n := range nodes {
		found := v.attachments(ctx, n.Name, scope, only, 1)
		switch {
		case len(found.items) > 0 && r.asTable:
			return attachmentTable(metav1.ListMeta{}, r.query.include, found.items), warnings{}, nil
		case len(found.items) > 0:
			return found.items[0], warnings{}, nil
		case found.err != nil:
			failed = onNode(n.Name, found.err)
		}
	}
	if failed == nil {
		failed = noderequest.Fail(http.StatusNotFound, "%s.%s %q not found", r.resource, view.Group, r.name)
	}
	return nil, warnings{}, failed
}
