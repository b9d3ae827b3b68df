package kube

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

var _ cache.TransformingStore = (*namespaces)(nil)

func namespaceOf(name string, labels map[string]string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func TestLabelsOfNamespacesAreKnownOnceAllWereListed(t *testing.T) {
	changes := 0
	n := openNamespaces(filepath.Join(t.TempDir(), namespacesFile), func() { changes++ }, slog.New(slog.DiscardHandler))
	if err := n.Add(namespaceOf("early", nil)); err != nil {
		t.Fatal(err)
	}
	if labels, known, _ := n.labels("early"); known {
		t.Errorf("labels %v are known before the list", labels)
	}
	for _, step := range []struct {
		what    string
		do      func() error
		blue    map[string]string
		known   bool
		changes int
	}{
		{"the list", func() error {
			return n.Replace([]any{namespaceOf("blue", map[string]string{"team": "a"}), namespaceOf("green", nil)}, "1")
		}, map[string]string{"team": "a"}, true, 1},
		{"the same list again", func() error {
			return n.Replace([]any{namespaceOf("green", nil), namespaceOf("blue", map[string]string{"team": "a"})}, "2")
		}, map[string]string{"team": "a"}, true, 0},
		{
			"an update that changes no label", func() error { return n.Update(namespaceOf("blue", map[string]string{"team": "a"})) }, map[string]string{"team": "a"},
			true, 0,
		},
		{"another label", func() error { return n.Update(namespaceOf("blue", map[string]string{"team": "b"})) }, map[string]string{"team": "b"}, true, 1},
		{"a new namespace", func() error { return n.Add(namespaceOf("red", nil)) }, map[string]string{"team": "b"}, true, 1},
		{"its end", func() error { return n.Delete(namespaceOf("blue", nil)) }, nil, true, 1},
	} {
		before := changes
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		labels, known, current := n.labels("blue")
		if known != step.known || current != step.known || !maps.Equal(labels, step.blue) || changes-before != step.changes {
			t.Errorf("after %s: %v, known: %v, %d changes", step.what, labels, known, changes-before)
		}
	}
	if labels, known, _ := n.labels("early"); !known || len(labels) > 0 {
		t.Errorf("a namespace that is not in the list has labels %v, known: %v", labels, known)
	}
}

func TestOfANamespaceItsLabelsAreKept(t *testing.T) {
	n := openNamespaces(filepath.Join(t.TempDir(), namespacesFile), func() {}, slog.New(slog.DiscardHandler))
	full := namespaceOf("blue", map[string]string{"team": "a"})
	full.Annotations = map[string]string{"note": "long", metav1.InitialEventsAnnotationKey: "true"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.ResourceVersion = "7"
	got, err := n.Transformer()(full)
	if err != nil {
		t.Fatal(err)
	}
	m := got.(*metav1.PartialObjectMetadata)
	if len(m.ManagedFields) != 0 || m.Annotations["note"] != "" || m.Annotations[metav1.InitialEventsAnnotationKey] != "true" || m.ResourceVersion != "7" ||
		m.Labels["team"] != "a" {
		t.Errorf("kept %+v", m)
	}
}

func TestWhatIsNoNamespaceIsAnError(t *testing.T) {
	var changes atomic.Int64
	n := openNamespaces(filepath.Join(t.TempDir(), namespacesFile), func() { changes.Add(1) }, slog.New(slog.DiscardHandler))
	for what, err := range map[string]error{
		"Add": n.Add("x"), "Update": n.Update("x"), "Delete": n.Delete("x"), "Replace": n.Replace([]any{"x"}, "1"),
	} {
		if err == nil {
			t.Errorf("%s takes a string", what)
		}
	}
	if changes.Load() != 0 {
		t.Errorf("%d changes", changes.Load())
	}
}

// TestLabelsOfNamespacesComeBackWithoutAnAPIServer has an agent that starts anew before it reached
// the API server.
func TestLabelsOfNamespacesComeBackWithoutAnAPIServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), namespacesFile)
	open := func() *namespaces { return openNamespaces(path, func() {}, slog.New(slog.DiscardHandler)) }
	says := func(what string, n *namespaces, name, team string, known bool) {
		t.Helper()
		// Until the API server answered, what is kept may be old.
		answered := strings.Contains(what, "API server")
		if labels, ok, current := n.labels(name); labels["team"] != team || ok != known || current != answered {
			t.Errorf("%s: labels of %s are %v, known: %v, current: %v; want team %q, known: %v", what, name, labels, ok, current, team, known)
		}
	}
	n := open()
	says("at first", n, "blue", "", false)
	if err := n.Replace([]any{namespaceOf("blue", map[string]string{"team": "a"}), namespaceOf("green", map[string]string{"team": "b"})}, "1"); err != nil {
		t.Fatal(err)
	}
	says("from the API server", n, "blue", "a", true)
	if err := n.Update(namespaceOf("blue", map[string]string{"team": "c"})); err != nil {
		t.Fatal(err)
	}
	n.keep()

	n = open()
	says("after a start", n, "blue", "c", true)
	says("after a start, of one that nobody asked for", n, "green", "", false)
	if err := n.Replace([]any{namespaceOf("blue", map[string]string{"team": "d"}), namespaceOf("green", map[string]string{"team": "b"})}, "2"); err != nil {
		t.Fatal(err)
	}
	says("once the API server answered", n, "blue", "d", true)
	says("once the API server answered", n, "green", "b", true)
	if err := n.Delete(namespaceOf("blue", nil)); err != nil {
		t.Fatal(err)
	}
	n.keep()
	n = open()
	says("after a start, of one that ended", n, "blue", "", false)
	says("after a start", n, "green", "b", true)
}

// TestLabelsThatCannotBeKeptAreNotKnownLater has labels that do not fit the disk: none are there
// after a start, rather than older ones than the agent acted by.
func TestLabelsThatCannotBeKeptAreNotKnownLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), namespacesFile)
	open := func() *namespaces { return openNamespaces(path, func() {}, slog.New(slog.DiscardHandler)) }
	n := open()
	n.labels("blue")
	if err := n.Replace([]any{namespaceOf("blue", map[string]string{"firewall": "off"})}, "1"); err != nil {
		t.Fatal(err)
	}
	n.keep()

	wide := func(labels int) map[string]string {
		all := map[string]string{}
		for i := range labels {
			all[fmt.Sprint("label-", i)] = strings.Repeat("x", 63)
		}
		return all
	}
	if err := n.Add(namespaceOf("wide", wide(1000))); err != nil {
		t.Fatal(err)
	}
	n.labels("wide")
	n.keep()
	if labels, known, _ := open().labels("blue"); !known || labels["firewall"] != "off" {
		t.Errorf("beside a namespace with too many labels, blue has %v, known: %v", labels, known)
	}
	if labels, known, _ := open().labels("wide"); known {
		t.Errorf("%d labels of one namespace are kept", len(labels))
	}

	for i := range 300 {
		name := fmt.Sprint("team-", i)
		n.labels(name)
		if err := n.Add(namespaceOf(name, wide(200))); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Update(namespaceOf("blue", map[string]string{"firewall": "on"})); err != nil {
		t.Fatal(err)
	}
	n.keep()
	if labels, known, _ := open().labels("blue"); known {
		t.Errorf("labels that are not those of the last run are known after a start: %v", labels)
	}
}

func TestKeptLabelsOfNamespacesAreCheckedAndBounded(t *testing.T) {
	many := make([]string, maxKept+1)
	for i := range many {
		many[i] = fmt.Sprintf("%q:{}", fmt.Sprint("n", i))
	}
	for sentence, c := range map[string]struct{ body, says string }{
		"no JSON":             {"{", "unexpected end"},
		"another kind":        {"[1]", "cannot unmarshal"},
		"a name that is none": {`{"a/b":{}}`, `namespace \"a/b\"`},
		"a key that is none":  {`{"a":{"x y":"z"}}`, "labels of namespace a"},
		"a value too long":    {`{"a":{"x":"` + strings.Repeat("z", 64) + `"}}`, "labels of namespace a"},
		"too many":            {"{" + strings.Join(many, ",") + "}", "more than 4096"},
		"too much":            {`{"a":{}}` + strings.Repeat(" ", maxKeptBytes), "more than 4194304 bytes"},
	} {
		path := filepath.Join(t.TempDir(), namespacesFile)
		if err := os.WriteFile(path, []byte(c.body), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		n := openNamespaces(path, func() {}, slog.New(slog.NewTextHandler(&log, nil)))
		if labels, known, _ := n.labels("a"); known || !strings.Contains(log.String(), c.says) {
			t.Errorf("%s: labels %v, known: %v; logged %s", sentence, labels, known, log.String())
		}
	}
}
