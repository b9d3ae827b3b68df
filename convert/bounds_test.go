package convert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/convert"
)

// application is a ClusterBpfApplication with more fields of its spec, as flow YAML.
func application(spec string) string {
	return "{apiVersion: bpfman.io/v1alpha1, kind: ClusterBpfApplication, metadata: {name: app}, spec: {byteCode: {image: {url: " +
		"'registry.example.com/app:v1'}}, " + spec + "}}"
}

// one converts a manifest that is one document.
func one(t *testing.T, in string) convert.Document {
	t.Helper()
	r, err := convert.Convert(t.Context(), []byte(in), convert.Options{})
	if err != nil || len(r.Documents) != 1 {
		t.Fatalf("%v, %d documents, want 1; left: %v", err, len(r.Documents), r.Left)
	}
	return r.Documents[0]
}

// todo reports whether a document has a TODO with a text.
func todo(d convert.Document, text string) bool {
	return slices.ContainsFunc(d.Notes, func(n convert.Note) bool { return n.Todo && strings.Contains(n.Path+": "+n.Text, text) })
}

func TestNotesOfADocumentAreBounded(t *testing.T) {
	var links strings.Builder
	for range 900 {
		links.WriteString("{priority: a, unknown: b, other: c},")
	}
	d := one(t, application("programs: [{name: a, type: xdp, xdp: {links: ["+links.String()+"]}}]"))
	if len(d.Notes) != 1001 || !todo(d, "more than 1000 notes") {
		t.Errorf("%d notes, want 1000 and one that says so", len(d.Notes))
	}
	if got := strings.Count(string(d.YAML), "# TODO"); got != 1001 {
		t.Errorf("%d comments, want as many as notes", got)
	}
}

func TestNotesAreShort(t *testing.T) {
	long := strings.Repeat("a", 1000)
	in := "fields: {" + long + ": {" + long + ": 1}}, nodeSelector: {matchLabels: 1}, programs: [{name: a, type: xdp, xdp: {links: [{proceedOn: [" +
		strings.Repeat("b", 1<<16) + "], " + long + ": 1}]}}]"
	for _, n := range one(t, application(in)).Notes {
		if len(n.Path) > 512 || len(n.Text) > 1024 {
			t.Errorf("the path has %d bytes and the text %d, want 512 and 1024 at most", len(n.Path), len(n.Text))
		}
	}
}

func TestAttachmentsOfADocumentAreBounded(t *testing.T) {
	names := "[" + strings.Repeat("a, ", 1001) + "]"
	targets := "[" + strings.Repeat("/bin/a, ", 900) + "]"
	pods := "{pods: {matchLabels: {app: " + strings.Repeat("a", 1<<14) + "}}}"
	programs := "[" + strings.Repeat("{},", 1001) + "]"
	for name, c := range map[string]struct{ in, want string }{
		"count": {"programs: [{name: a, type: tracepoint, tracepoint: {links: [{names: " + names + "}]}}]", "more than 1000"},
		"bytes": {
			"programs: [{name: a, type: uprobe, uprobe: {links: [{target: " + targets + ", function: f, containers: " + pods + "}]}}]", "more than 1024 KiB",
		},
		"programs": {"programs: " + programs, "longer than what is read of it, which is 1000"},
		"links":    {"programs: [{name: a, type: xdp, xdp: {links: " + programs + "}}]", "longer than what is read of it, which is 1000"},
	} {
		d := one(t, application(c.in))
		if !todo(d, c.want) || len(d.YAML) > 4<<20 {
			t.Errorf("%s: no %q in the notes, or %d bytes are too many", name, c.want, len(d.YAML))
		}
	}
}

// What is left of such an object could choose more than it did.
func TestObjectsThatAreTooLargeAreLeftOut(t *testing.T) {
	var many strings.Builder
	for i := range 1025 {
		fmt.Fprintf(&many, "k%d: v,", i)
	}
	for name, c := range map[string]struct{ in, want string }{
		"a long key":  {"{? " + strings.Repeat("k", 1025) + " : v}", "is longer than 1024 bytes"},
		"many fields": {"{" + many.String() + "}", "more than 1024 fields"},
	} {
		r, err := convert.Convert(t.Context(), []byte(application("nodeSelector: {matchLabels: "+c.in+"}")+"\n---\n"+application("")), convert.Options{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(r.Documents) != 1 || len(r.Left) != 1 || !r.Left[0].Todo || !strings.Contains(r.Left[0].Text, c.want) {
			t.Errorf("%s: %d documents, left %v; want 1 and a TODO with %q", name, len(r.Documents), r.Left, c.want)
		}
	}
}

func TestConversionEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	o := convert.Options{Variables: func(string, map[string][]byte) (map[string]apiextensionsv1.JSON, map[string]error, error) {
		calls++
		cancel()
		return nil, nil, context.Canceled
	}}
	in := application("globalData: {a: AQ==}")
	r, err := convert.Convert(ctx, []byte(in+"\n---\n"+in), o)
	if !errors.Is(err, context.Canceled) || calls != 1 || len(r.Documents) != 0 {
		t.Errorf("error %v, %d images read, %d documents; want that it ends at the first", err, calls, len(r.Documents))
	}
}

// Two labels may differ in what two spellings of one field differ in.
func TestTheOtherSpellingOfAFieldIsNoted(t *testing.T) {
	d := one(t, application("nodeSelector: {matchLabels: {a_b: c, aB: d}}, node_selector: {}, programs: []"))
	if !todo(d, "spec.node_selector: ") || !strings.Contains(string(d.YAML), "a_b: c") || !strings.Contains(string(d.YAML), "aB: d") {
		t.Errorf("the other spelling is not noted, or a label is gone:\n%s", d.YAML)
	}
}

// Vet rejects each of these; the TODO says so where the document is written.
func TestWhatIsOverTheSchemaIsATODO(t *testing.T) {
	times := func(n int, format string) string {
		var all strings.Builder
		for i := range n {
			all.WriteString(strings.ReplaceAll(format, "%", fmt.Sprint(i)) + ",")
		}
		return all.String()
	}
	program := "{name: p%, type: tracepoint, tracepoint: {links: [{name: a/b}]}}"
	uprobe := func(pods string) string {
		return "programs: [{name: a, type: uprobe, uprobe: {links: [{target: /bin/a, function: f, containers: " + pods + "}]}}]"
	}
	xdp := func(selector string) string {
		return "programs: [{name: a, type: xdp, xdp: {links: [{interfaceSelector: " + selector + "}]}}]"
	}
	requirement := "{key: a, operator: In, values: [" + times(1000, "v") + "]}"
	for want, spec := range map[string]string{
		"spec.programs: 65 are listed":              "programs: [" + times(65, program) + "]",
		"spec.programs[0].attach: 17 are listed":    "programs: [{name: a, type: tracepoint, tracepoint: {links: [{names: [" + times(17, "a/b%") + "]}]}}]",
		"spec.programs[].attach: 257 are listed":    "programs: [{name: a, type: tracepoint, tracepoint: {links: [{names: [" + times(257, "a/b%") + "]}]}}]",
		"attach[0].interfaces.names: 17 are listed": xdp("{interfaces: [" + times(17, "e%") + "]}"),
		"attach[0].interfaces.exclude: 17 are listed": xdp("{interfacesDiscoveryConfig: {interfaceAutoDiscovery: true, excludeInterfaces: [" +
			times(17, "e%") + "]}}"),
		"attach[0].functions.names: 17 are listed":           "programs: [{name: a, type: kprobe, kprobe: {links: [{function: [" + times(17, "f%") + "]}]}}]",
		"attach[0].pods.containers: 5 are listed":            uprobe("{containerNames: [" + times(5, "c%") + "]}"),
		"attach[0].pods.selector.matchLabels: 9 are listed":  uprobe("{pods: {matchLabels: {" + times(9, "l%: v") + "}}}"),
		"spec.nodeSelector.matchLabels: 65 are listed":       "nodeSelector: {matchLabels: {" + times(65, "l%: v") + "}}",
		"matchExpressions[0].values: 1000 are listed":        "nodeSelector: {matchExpressions: [" + requirement + "]}",
		"spec.nodeSelector.matchExpressions: 900 are listed": "nodeSelector: {matchExpressions: [" + times(900, "{key: a, operator: Exists}") + "]}",
	} {
		if d := one(t, application(spec)); !todo(d, want) {
			t.Errorf("no TODO with %q in %v", want, d.Notes)
		}
	}
}
