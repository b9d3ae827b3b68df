package nodeview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/viewread"
)

// MaxBytes bounds the JSON of a description.
const MaxBytes = viewread.MaxView

// DidNotFit ends what LeftOut says of what was left out for its size.
const DidNotFit = " did not fit"

// forLeftOut is the room that is kept for what fit adds to LeftOut.
const forLeftOut = 1 << 10

// fit leaves out what takes a description beyond so many bytes of JSON, and counts it in LeftOut. Applications, attachments, verifier logs,
// loads, interfaces, programs of Skep's and programs of others come in this order, and each gets half of the room that is left at most. Of each,
// namespaces have turns, with the smallest of theirs. So none with many places, or with long errors, hides another. It is pure, and leaves what it got as
// it is.
func fit(n view.NodeView, most int) view.NodeView {
	if size(n) <= most {
		return n
	}
	apps, loads, interfaces, programs := n.Applications, n.Loads, n.Interfaces, n.Programs
	n.Applications, n.Loads, n.Interfaces, n.Programs = []view.Application{}, nil, nil, nil
	r := &room{left: most - size(n) - forLeftOut}
	bare := make([]view.Application, len(apps))
	for i, a := range apps {
		a.Attachments, a.VerifierLog = []view.Attachment{}, ""
		bare[i] = a
	}
	var kept []view.Application
	for i, in := range r.share("applications", listOf(bare, tenantOf, whole)) {
		if in {
			n.Applications, kept = append(n.Applications, bare[i]), append(kept, apps[i])
		}
	}
	r.attachments(n.Applications, kept)
	for i, in := range r.share("verifier logs", listOf(kept, tenantOf, func(a view.Application) any { return a.VerifierLog })) {
		if in {
			n.Applications[i].VerifierLog = kept[i].VerifierLog
		}
	}
	n.Loads = keep(r, "loads", loads, func(l view.Load) string { return l.Application.Namespace })
	n.Interfaces = keep(r, "interfaces", interfaces, func(i view.Interface) string { return namespaceOf(i.Target.Pod) })
	var ours, others []view.Program
	for _, p := range programs {
		if p.Application == nil && !p.Chain {
			others = append(others, p)
		} else {
			ours = append(ours, p)
		}
	}
	n.Programs = append(keep(r, "programs of Skep's", ours, func(p view.Program) string {
		if p.Application == nil {
			return ""
		}
		return p.Application.Namespace
	}), keep(r, "programs of others", others, func(view.Program) string { return "" })...)
	slices.SortFunc(n.Programs, func(a, b view.Program) int { return cmp.Compare(a.ID, b.ID) })
	n.LeftOut = append(slices.Clip(n.LeftOut), r.out...)
	return n
}

// room is how many bytes are left, and what did not fit.
type room struct {
	left int
	out  []string
}

// list are the bytes of JSON of each of a list, and the namespaces that they are of.
type list struct {
	bytes   []int
	tenants []string
}

// listOf are the bytes of a part of each, with what separates them.
func listOf[T any](all []T, tenant func(T) string, part func(T) any) list {
	l := list{make([]int, len(all)), make([]string, len(all))}
	for i, one := range all {
		l.bytes[i], l.tenants[i] = size(part(one))+1, tenant(one)
	}
	return l
}

func whole[T any](one T) any { return one }

func tenantOf(a view.Application) string { return a.Namespace }

// namespaceOf is the namespace of a pod.
func namespaceOf(pod string) string {
	namespace, _, _ := strings.Cut(pod, "/")
	return namespace
}

// turns are the indexes of a list in the order in which they get room: of each namespace the smallest, then of each the next.
func (l list) turns() []int {
	order := make([]int, len(l.bytes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(l.bytes[a], l.bytes[b]) })
	turn, had := make([]int, len(l.bytes)), map[string]int{}
	for _, i := range order {
		turn[i] = had[l.tenants[i]]
		had[l.tenants[i]]++
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	return order
}

// choose says which of a list fit in what is left, and how many do not.
func (l list) choose(left *int) (in []bool, out int) {
	in, out = make([]bool, len(l.bytes)), len(l.bytes)
	for _, i := range l.turns() {
		if *left >= l.bytes[i] {
			*left -= l.bytes[i]
			in[i] = true
			out--
		}
	}
	return in, out
}

// attachments gives applications theirs.
func (r *room) attachments(to, from []view.Application) {
	part, out := r.left/2, 0
	r.left -= part
	for _, i := range listOf(from, tenantOf, func(a view.Application) any { return a.Attachments }).turns() {
		in, without := listOf(from[i].Attachments, func(view.Attachment) string { return "" }, whole).choose(&part)
		out += without
		for j, is := range in {
			if is {
				to[i].Attachments = append(to[i].Attachments, from[i].Attachments[j])
			}
		}
	}
	r.left += part
	r.leave("attachments", out)
}

// share says which of a list fit in half of the room.
func (r *room) share(what string, l list) []bool {
	part := r.left / 2
	r.left -= part
	in, out := l.choose(&part)
	r.left += part
	r.leave(what, out)
	return in
}

// leave notes what did not fit.
func (r *room) leave(what string, n int) {
	if n > 0 {
		r.out = append(r.out, fmt.Sprintf("%d %s", n, what)+DidNotFit)
	}
}

// keep returns what fits of a list, in its order.
func keep[T any](r *room, what string, all []T, tenant func(T) string) (kept []T) {
	for i, in := range r.share(what, listOf(all, tenant, whole)) {
		if in {
			kept = append(kept, all[i])
		}
	}
	return kept
}

func size(v any) int {
	body, err := json.Marshal(v)
	if err != nil {
		// Its types have nothing that JSON lacks.
		return 0
	}
	return len(body)
}
