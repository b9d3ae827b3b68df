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
	"github.com/skep-dev/skep/text"
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
	err = v.gather(ctx, &p, nodes, func(node string, room int) answered { return v.attachments(ctx, node, scope, r, room) })
	if err != nil {
		return nil, p.about, err
	}
	list := view.BpfAttachmentList{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindBpfAttachment + "List"}, Items: p.items}
	if r.resource == clusterAttachments {
		list.Kind = view.KindClusterBpfAttachment + "List"
	}
	if p.next != (position{}) {
		list.Continue = p.next.token()
		if r.query.limit == 0 {
			p.about.cut = cutAfter(len(p.items))
		}
	}
	if r.asTable {
		return attachmentTable(list.ListMeta, r.query.include, list.Items), p.about, nil
	}
	return list, p.about, nil
}

// cutAfter warns a client that set no limit.
func cutAfter(objects int) string {
	return fmt.Sprintf("the list ends after %d objects: ask with the parameters limit and continue", objects)
}

// gather fills a page with what nodes answer, some at once; ask asks one for as many as there is room for.
func (v *views) gather(ctx context.Context, p *page, nodes []*v1alpha1.BpfNode, ask func(node string, room int) answered) error {
	end := time.Now().Add(pageTime)
	for len(nodes) > 0 && p.next == (position{}) {
		if p.asked > 0 && time.Now().After(end) {
			p.next, p.late = position{At: nodes[0].Name}, len(nodes)
			return nil
		}
		asked := nodes[:min(len(nodes), p.batch())]
		answers := make([]answered, len(asked))
		var all sync.WaitGroup
		for i, n := range asked {
			all.Go(func() { answers[i] = ask(n.Name, p.room()) })
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
	// asked counts nodes, and late those that were not asked since time ended.
	asked, late int
	// left and short are those of the nodes.
	left, short bool
	about       warnings
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
	// left says that a description leaves out attachments of the node, and short that it has parts of some.
	left, short bool
	err         error
}

// keep adds an attachment.
func (a *answered) keep(one view.BpfAttachment) error {
	// What is written may be longer than what came.
	written, err := json.Marshal(one)
	a.items, a.bytes = append(a.items, one), a.bytes+len(written)
	return err
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
	p.left, p.short = p.left || a.left, p.short || a.short
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
	a.err = v.each(ctx, node, scope, r.user, func(one view.BpfAttachment) error {
		switch {
		case one.Name <= after || !r.query.chooses(&one):
			return nil
		case len(a.items) == most || a.bytes > maxPageBytes/2 && len(a.items) > 0:
			a.more = true
			return errEnough
		}
		return a.keep(one)
	})
	return a
}

// each calls do with the attachments of a node, in the order of their names, and checks what its agent sends.
func (v *views) each(ctx context.Context, node string, scope view.Scope, user string, do func(view.BpfAttachment) error) error {
	last := ""
	return v.ask(ctx, viewread.Request{Header: noderequest.NewHeader(node, user, time.Now()), Scope: scope, Attachments: true}, &v.asks, maxAttachment,
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
			return do(one)
		})
}

// canBe reports whether the API server has such names.
func canBe(id v1alpha1.Identity) bool {
	isKind := id.Kind == v1alpha1.KindBpfApplication || id.Kind == v1alpha1.KindClusterBpfApplication
	isIn := id.IsNamespaced() && len(validation.IsDNS1123Label(id.Namespace)) == 0 || !id.IsNamespaced() && id.Namespace == ""
	return isKind && isIn && len(validation.IsDNS1123Subdomain(id.Name)) == 0
}

// texts are all texts of an attachment but names of verdicts.
func texts(a *view.Attachment) []*string {
	all := []*string{&a.Program, &a.Hook, &a.State, &a.Message, (*string)(&a.Mode), &a.Target.Text, &a.Target.Interface, &a.Target.Pod,
		&a.Target.Container, &a.Target.Function, &a.Target.Tracepoint, &a.Target.Cgroup, &a.Target.Binary, &a.Target.Symbol}
	for i := range a.Notes {
		all = append(all, &a.Notes[i])
	}
	return all
}

// rebuilt is what an agent says of an attachment, as this server writes it: each text on one line, since kubectl describe prints lines of
// many nodes as they come.
func rebuilt(node string, of view.BpfAttachment) view.BpfAttachment {
	at := of.Attachment
	for _, s := range texts(&at) {
		*s = text.Line(*s)
	}
	var verdicts map[string]uint64
	for name, n := range at.Verdicts {
		if verdicts == nil {
			verdicts = map[string]uint64{}
		}
		verdicts[text.Line(name)] += n
	}
	at.Verdicts = verdicts
	b := view.NewAttachment(node, of.Application, at)
	b.Name, b.ApplicationUID = of.Name, text.Line(of.ApplicationUID)
	return b
}

// maxTries is how often a node is asked that has answered the user too often, and askAgain how long that waits.
const (
	maxTries = 4
	askAgain = time.Second
)

// maxAnswer bounds all that an agent sends for one request, in bytes: the attachments of a description have more bytes than it.
const maxAnswer = 4 * viewread.MaxView

// ask is askOnce, again after a while where the node has answered the user too often: kubectl describe of many objects asks one node for each.
// Between two tries it has no place, so that it keeps others from the node no longer; no try begins after the time of the node.
func (v *views) ask(ctx context.Context, request viewread.Request, at *places, most int, do func(json.RawMessage) error) error {
	end, hasAnswered := time.Now().Add(v.NodeTime), false
	once := func(ctx context.Context) error {
		return v.askOnce(ctx, request, at, most, func(value json.RawMessage) error {
			hasAnswered = true
			return do(value)
		})
	}
	err := once(ctx)
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for try := 1; try < maxTries && isBusy(err) && !hasAnswered; try++ {
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return err
		}
		// An agent answers each request once.
		request.Header = noderequest.NewHeader(request.Node, request.User, time.Now())
		if next := once(ctx); ctx.Err() == nil {
			err = next
		}
	}
	return err
}

// isBusy reports whether a node has answered the user, or all, too often.
func isBusy(err error) bool {
	var known noderequest.Failure
	return errors.As(err, &known) && known.Code == http.StatusTooManyRequests
}

// askOnce has the agent of a node answer within its time, and calls do with each value, of at most so many bytes.
func (v *views) askOnce(ctx context.Context, request viewread.Request, at *places, most int, do func(json.RawMessage) error) error {
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
