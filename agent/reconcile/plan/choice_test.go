package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

func TestChoicesAreListedInTheirOrder(t *testing.T) {
	functions := func(hook string, names ...string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: hook, Functions: &v1alpha1.Functions{Names: names}}
	}
	program := func(name string, at ...v1alpha1.Attachment) v1alpha1.Program {
		return v1alpha1.Program{Name: name, Attach: at}
	}
	optional := func(at v1alpha1.Attachment) v1alpha1.Attachment {
		at.Optional = true
		return at
	}
	left := program("left", functions("kprobe", "a*"))
	left.Optional = true
	offset := functions("kprobe", "a")
	offset.Functions.Offset = 4
	for sentence, c := range map[string]struct {
		payload intent.Payload
		want    []string
	}{
		"nothing is left to the node": {intent.Payload{Programs: []v1alpha1.Program{
			program("a", functions("kprobe", "a")), program("b", functions("fentry", "a", "b")), program("c"), program("d", offset)}}, nil},
		"one link for many functions": {intent.Payload{Programs: []v1alpha1.Program{
			program("a", functions("kprobe", "a", "b"), functions("kretprobe", "a*"), functions("kprobe", "c"))}},
			[]string{" a@kprobe.multi a@kretprobe.multi a | a"}},
		"an optional program": {intent.Payload{Programs: []v1alpha1.Program{left}}, []string{" left@kprobe.multi | left |"}},
		"optional attachments": {intent.Payload{Programs: []v1alpha1.Program{
			program("a", functions("fentry", "a"), optional(functions("fentry", "b"))), program("b", functions("kprobe", "a"), optional(functions("kprobe", "b"))),
			program("c", optional(functions("kprobe", "a")))}},
			[]string{" a@fentry/b |", " c |"}},
		"optional attachments that share a program": {intent.Payload{Programs: []v1alpha1.Program{
			program("a", functions("kprobe", "a", "b"), optional(functions("kprobe", "c"))), program("b", functions("kprobe", "a"), optional(functions("kprobe", "b*"))),
			program("c", functions("fentry", "a"), optional(functions("fentry", "b", "a")))}},
			[]string{" a@kprobe.multi a | a", " b@kprobe.multi |", " c@fentry/b |"}},
		"alternatives": {intent.Payload{
			Programs:     []v1alpha1.Program{program("a", functions("fentry", "a")), program("b", functions("fexit", "a")), program("c", functions("kprobe", "a", "b"))},
			Alternatives: []v1alpha1.Alternative{{Name: "x", AnyOf: []v1alpha1.ProgramSet{{Programs: []string{"a", "b"}}, {Programs: []string{"c"}}}}}},
			[]string{"x a@fentry/a b@fexit/a | c@kprobe.multi | c"}},
	} {
		var got []string
		for _, choice := range plan.Choices(c.payload) {
			var sets []string
			for _, s := range choice.Sets {
				sets = append(sets, strings.Join(s.Instances, " "))
			}
			got = append(got, strings.TrimRight(fmt.Sprintf("%s %s", choice.Name, strings.Join(sets, " | ")), " "))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", sentence, diff)
		}
	}
}
