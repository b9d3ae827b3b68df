package nodeview

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// MaxBytes bounds the JSON of a description.
const MaxBytes = 8 << 20

// forLeftOut is the room that is kept for what fit adds to LeftOut.
const forLeftOut = 1 << 10

// fit leaves out what takes a description beyond so many bytes of JSON, and counts it in LeftOut. What is smallest stays: of
// applications, then of their attachments, of verifier logs, loads, interfaces, programs of Skep's and programs of others. So one application
// with many places, or with long errors, hides no other. It is pure, and leaves what it got as it is.
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
	in := r.choose("applications", sizes(bare))
	var kept []view.Application
	for i := range apps {
		if in[i] {
			n.Applications, kept = append(n.Applications, bare[i]), append(kept, apps[i])
		}
	}
	r.attachments(n.Applications, kept)
	logs := r.choose("verifier logs", sizesOf(kept, func(a view.Application) any { return a.VerifierLog }))
	for i := range kept {
		if logs[i] {
			n.Applications[i].VerifierLog = kept[i].VerifierLog
		}
	}
	n.Loads, n.Interfaces = keep(r, "loads", loads), keep(r, "interfaces", interfaces)
	isOthers := func(p view.Program) bool { return p.Application == nil && !p.Chain }
	ours, others := slices.DeleteFunc(slices.Clone(programs), isOthers), slices.DeleteFunc(slices.Clone(programs), func(p view.Program) bool { return !isOthers(p) })
	n.Programs = append(keep(r, "programs of Skep's", ours), keep(r, "programs of others", others)...)
	slices.SortFunc(n.Programs, func(a, b view.Program) int { return cmp.Compare(a.ID, b.ID) })
	n.LeftOut = append(slices.Clip(n.LeftOut), r.out...)
	return n
}

// room is how many bytes are left, and what did not fit.
type room struct {
	left int
	out  []string
}

// attachments gives applications theirs, first those that have least.
func (r *room) attachments(to, from []view.Application) {
	all := sizesOf(from, func(a view.Application) any { return a.Attachments })
	order := byNumber(all)
	before := r.out
	out := 0
	for _, i := range order {
		in := r.choose("", sizes(from[i].Attachments))
		for j, at := range from[i].Attachments {
			if in[j] {
				to[i].Attachments = append(to[i].Attachments, at)
			} else {
				out++
			}
		}
	}
	r.out = before
	r.leave("attachments", out)
}

// choose says of the sizes of a list which fit, the smallest first.
func (r *room) choose(what string, all []int) []bool {
	in, out := make([]bool, len(all)), len(all)
	for _, i := range byNumber(all) {
		if r.left < all[i] {
			break
		}
		r.left -= all[i]
		in[i], out = true, out-1
	}
	r.leave(what, out)
	return in
}

// leave notes what did not fit.
func (r *room) leave(what string, n int) {
	if n > 0 {
		r.out = append(r.out, fmt.Sprintf("%d %s did not fit", n, what))
	}
}

// keep returns what fits of a list, in its order.
func keep[T any](r *room, what string, all []T) (kept []T) {
	for i, in := range r.choose(what, sizes(all)) {
		if in {
			kept = append(kept, all[i])
		}
	}
	return kept
}

// byNumber are the indexes of numbers, of the least first.
func byNumber(all []int) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[a], all[b]) })
	return order
}

func sizes[T any](all []T) []int { return sizesOf(all, func(one T) any { return one }) }

// sizesOf are the bytes of JSON of a part of each, with what separates them.
func sizesOf[T any](all []T, part func(T) any) []int {
	bytes := make([]int, len(all))
	for i, one := range all {
		bytes[i] = size(part(one)) + 1
	}
	return bytes
}

func size(v any) int {
	body, err := json.Marshal(v)
	if err != nil {
		// Its types have nothing that JSON lacks.
		return 0
	}
	return len(body)
}
