package views_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/controller/views"
	"github.com/skep-dev/skep/test/harness/hostile"
)

// hasApplications adds the applications of the nodes to the API server.
func (f *fleet) hasApplications() {
	meta := func(namespace, name string) metav1.ObjectMeta {
		uid := types.UID(uidOf(v1alpha1.Identity{Namespace: namespace, Name: name}))
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, Generation: 3, Labels: map[string]string{"team": "a"},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * time.Hour).Truncate(time.Second)),
			Annotations:       map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "secret"},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	}
	status := v1alpha1.BpfApplicationStatus{Version: "v1", SignedBy: "release", Nodes: &v1alpha1.NodesStatus{Summary: "2/3"},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Message: "loaded on\n2 of 3 nodes"}}}
	for _, namespace := range []string{"team-b", "team-a"} {
		f.apps = append(f.apps, v1alpha1.BpfApplication{ObjectMeta: meta(namespace, "app"), Status: status})
	}
	f.clusterApps = append(f.clusterApps, v1alpha1.ClusterBpfApplication{ObjectMeta: meta("", "all"), Status: status})
	for i := range f.apps {
		f.apps[i].Spec.Programs = []v1alpha1.Program{{Name: "secret"}}
	}
}

// attachmentLine is a line of a node's answer, as an agent of an older version sends it: without the application's UID.
func (f *fleet) attachmentLine(t *testing.T) string {
	t.Helper()
	a := view.Attachments(f.nodes["node-0000"])
	one := a[slices.IndexFunc(a, func(a view.BpfAttachment) bool { return a.Namespace == "team-a" })]
	one.ApplicationUID = ""
	value, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("{\"value\":%s}\n", value)
}

// described asks for an application; asked counts the requests to nodes.
func (f *fleet) described(t *testing.T, path string) (got view.BpfApplication, asked int) {
	t.Helper()
	all := f.asks(func() { f.get(t, base+path, "application/json", &got) })
	return got, len(all)
}

// on names the attachments of an application by node.
func on(a view.BpfApplication) (nodes []string) {
	for _, at := range a.Attachments {
		nodes = append(nodes, at.Node+" "+at.Program+" "+at.Target.Text)
	}
	return nodes
}

// TestAnApplicationIsDescribedWithItsAttachments: kubectl describe shows them below its name and UID, by which it finds the events.
func TestAnApplicationIsDescribedWithItsAttachments(t *testing.T) {
	f := newFleet(t, 3, 1)
	f.hasApplications()
	f.nodes["node-0002"].Applications[0].State = v1alpha1.NodeFailed
	f.away["node-0001"] = noderequests.ErrNotHere
	var got view.BpfApplication
	response := f.get(t, base+"/namespaces/team-a/bpfapplications/app", "application/json", &got)
	want := f.apps[1].ObjectMeta
	want.Annotations, want.ManagedFields = nil, nil
	if diff := gocmp.Diff(want, got.ObjectMeta); diff != "" || got.Kind != v1alpha1.KindBpfApplication || got.APIVersion != view.GroupVersion {
		t.Errorf("%s %s: %s", got.APIVersion, got.Kind, diff)
	}
	if diff := gocmp.Diff(f.apps[1].Status, got.Status); diff != "" {
		t.Error(diff)
	}
	if diff := gocmp.Diff([]string{"node-0002 prog0 eth0", "node-0000 prog0 eth0"}, on(got)); diff != "" {
		t.Errorf("attachments, those of a node with a problem first: %s", diff)
	}
	if len(got.LeftOut) != 1 || !strings.HasPrefix(got.LeftOut[0], "node node-0001: ") || response.Header.Get("Warning") != "" {
		t.Errorf("left out: %q, warnings: %q", got.LeftOut, response.Header.Values("Warning"))
	}
	right := authorizationv1.ResourceAttributes{Group: view.Group, Version: view.Version, Verb: "get", Resource: "bpfapplications",
		Namespace: "team-a", Name: "app"}
	if diff := gocmp.Diff(right, f.reviews[0]); diff != "" || len(f.reviews) != 1 {
		t.Errorf("%d reviews: %s", len(f.reviews), diff)
	}
	var of view.BpfApplication
	f.get(t, base+"/clusterbpfapplications/all", "application/json", &of)
	if of.Kind != v1alpha1.KindClusterBpfApplication || of.Name != "all" || of.UID != "uid of all" || len(of.Attachments) != 2 {
		t.Errorf("%+v", of)
	}
	var none metav1.Status
	for _, path := range []string{"/namespaces/team-a/bpfapplications/other", "/namespaces/team-c/bpfapplications/app", "/clusterbpfapplications/app"} {
		if f.get(t, base+path, "application/json", &none); none.Reason != metav1.StatusReasonNotFound || !strings.HasSuffix(none.Message, " not found") {
			t.Errorf("%s: %+v", path, none)
		}
	}
}

// TestADescriptionHasTheFirstAttachments of a share for each node, and the command that lists all: in a description each takes some ten lines.
func TestADescriptionHasTheFirstAttachments(t *testing.T) {
	f := newFleet(t, 30, 12)
	f.hasApplications()
	for path, want := range map[string]string{
		"/namespaces/team-a/bpfapplications/app": "`kubectl get -n team-a bpfattachments --field-selector application=app` lists all",
		"/clusterbpfapplications/all":            "`kubectl get clusterbpfattachments --field-selector application=all` lists all",
	} {
		got, asked := f.described(t, path)
		ofNode := map[string]int{}
		for _, a := range got.Attachments {
			ofNode[a.Node]++
		}
		if len(got.Attachments) != 100 || len(ofNode) != 10 || ofNode["node-0000"] != 10 || asked > 25 {
			t.Errorf("%s: %d attachments, %v, %d nodes asked", path, len(got.Attachments), ofNode, asked)
		}
		// The last state of newFleet's five is Failed.
		if got.Attachments[0].State != "Failed" || got.Attachments[1].State != "Failed" || got.Attachments[2].State != "Attached" {
			t.Errorf("%s: what is not attached does not come first: %+v", path, got.Attachments[:3])
		}
		if diff := gocmp.Diff([]string{"at most 100 attachments are shown, and of one node 10: " + want}, got.LeftOut); diff != "" {
			t.Error(diff)
		}
	}
	// One node may fill a description that has no other.
	one := newFleet(t, 1, 99)
	one.hasApplications()
	if got, _ := one.described(t, "/clusterbpfapplications/all"); len(got.Attachments) != 99 || got.LeftOut != nil {
		t.Errorf("%d attachments of the only node, left out %q", len(got.Attachments), got.LeftOut)
	}
}

// TestTheNodeThatFailedIsDescribedFirst, before those that a rollout has not come to, however many there are of these.
func TestTheNodeThatFailedIsDescribedFirst(t *testing.T) {
	f := newFleet(t, 200, 1)
	f.hasApplications()
	for name, n := range f.nodes {
		n.Applications[0].State = v1alpha1.NodePending
		f.nodes[name] = n
	}
	f.nodes["node-0150"].Applications[0].State = v1alpha1.NodeUnsupported
	f.nodes["node-0151"].Applications[0].State = v1alpha1.NodeLoaded
	f.nodes["node-0152"].Applications[0].State = v1alpha1.NodeWaiting
	got, _ := f.described(t, "/namespaces/team-a/bpfapplications/app")
	want := []string{"node-0150 prog0 eth0", "node-0152 prog0 eth0", "node-0151 prog0 eth0", "node-0000 prog0 eth0"}
	if all := on(got); len(all) != 100 || !slices.Equal(all[:4], want) {
		t.Errorf("%d attachments: %q", len(all), all[:4])
	}
}

// TestANodeHasItsShareOfADescription, whatever it sends: of its attachments, of their texts, and of what is read of it.
func TestANodeHasItsShareOfADescription(t *testing.T) {
	f := newFleet(t, 2, 0)
	f.hasApplications()
	long := view.Attachment{Hook: "xdp", State: view.StateAttached, Message: strings.Repeat("x", 5000), Notes: make([]string, 5000), Verdicts: map[string]uint64{}}
	for i := range 100 {
		long.Verdicts[fmt.Sprint(i)] = 1
	}
	for i := range 30 {
		failed := view.Attachment{Hook: "tcx/egress", State: "Failed", Target: view.Target{Ifindex: i}}
		f.nodes["node-0000"].Applications[0].Attachments = append(f.nodes["node-0000"].Applications[0].Attachments, failed)
		long.Target.Ifindex = i
		f.nodes["node-0000"].Applications[0].Attachments = append(f.nodes["node-0000"].Applications[0].Attachments, long)
	}
	f.nodes["node-0001"].Applications[0].Attachments = []view.Attachment{{Hook: "tcx/egress", State: view.StateAttached}}
	got, _ := f.described(t, "/namespaces/team-a/bpfapplications/app")
	if all := on(got); len(all) != 51 || !strings.HasPrefix(all[50], "node-0001") || got.Attachments[29].State != "Failed" ||
		len(got.LeftOut) != 2 || !strings.HasSuffix(got.LeftOut[1], " lists all") {
		t.Errorf("%d attachments, left out %q", len(all), got.LeftOut)
	}
	of := f.nodes["node-0000"].Applications[0]
	of.Attachments = []view.Attachment{long}
	f.nodes["node-0000"].Applications[0] = of
	got, _ = f.described(t, "/namespaces/team-a/bpfapplications/app")
	one := got.Attachments[0]
	if len(got.LeftOut) != 1 || !strings.HasPrefix(got.LeftOut[0], "of an attachment, 1000 characters") ||
		len(one.Notes) != 10 || len(one.Verdicts) != 20 || len([]rune(one.Message)) != 1000 {
		t.Errorf("left out %q, %d notes, %d verdicts", got.LeftOut, len(one.Notes), len(one.Verdicts))
	}
	var endless strings.Builder
	for i := range 70_000 {
		const one = `{"value":{"metadata":{"name":"app.node-0000.%010x"},"application":{"kind":"BpfApplication","namespace":"team-a","name":"app"}}}`
		fmt.Fprintf(&endless, one+"\n", i)
	}
	f.lines["node-0000"] = endless.String() + `{"error":"this is not read"}`
	got, _ = f.described(t, "/namespaces/team-a/bpfapplications/app")
	if len(got.Attachments) != 51 || len(got.LeftOut) != 1 || !strings.HasSuffix(got.LeftOut[0], " lists all") {
		t.Errorf("of a node that sends too much, %d attachments, left out %q", len(got.Attachments), got.LeftOut)
	}
}

// TestADescriptionIsOfOneObject: a deleted application of the same name may still be unloaded.
func TestADescriptionIsOfOneObject(t *testing.T) {
	f := newFleet(t, 3, 1)
	f.hasApplications()
	n := f.nodes["node-0000"]
	old := n.Applications[0]
	old.UID, old.Attachments = "deleted", []view.Attachment{{Program: "of_the_deleted", Hook: "xdp", State: view.StateAttached}}
	n.Applications = append(n.Applications, old)
	f.nodes["node-0000"] = n
	f.nodes["node-0001"].Applications[0].UID = "deleted"
	gone := f.nodes["node-0002"]
	was := gone.Applications[0]
	was.UID, was.State = "deleted", v1alpha1.NodeRemoved
	gone.Applications = append(gone.Applications, was)
	gone.Applications[len(gone.Applications)-1].Attachments = nil
	f.nodes["node-0002"] = gone
	got, asked := f.described(t, "/namespaces/team-a/bpfapplications/app")
	if diff := gocmp.Diff([]string{"node-0000 prog0 eth0", "node-0002 prog0 eth0"}, on(got)); diff != "" || asked != 2 {
		t.Errorf("%d nodes asked: %s", asked, diff)
	}
	if diff := gocmp.Diff([]string{"an application of this name that was deleted is still being unloaded on 2 nodes"}, got.LeftOut); diff != "" {
		t.Error(diff)
	}
}

// TestANodeThatReportsLittleIsAsked: that it runs an application may be said in short, or have had no room in its report.
func TestANodeThatReportsLittleIsAsked(t *testing.T) {
	for sentence, change := range map[string]func(*v1alpha1.BpfNodeStatus){
		"in short": func(s *v1alpha1.BpfNodeStatus) {
			s.Applications, s.Loaded = nil, []string{v1alpha1.LoadedAs("uid of team-a/app", 3)}
		},
		"no room": func(s *v1alpha1.BpfNodeStatus) { s.Applications, s.Counts.NotReported = nil, 1 },
	} {
		f := newFleet(t, 1, 1)
		f.hasApplications()
		f.reports = change
		if got, asked := f.described(t, "/namespaces/team-a/bpfapplications/app"); len(got.Attachments) != 1 || asked != 1 {
			t.Errorf("%s: %d nodes asked, %+v", sentence, asked, got)
		}
	}
}

// TestANodeThatIsBusyIsAskedAgain, since kubectl describe of many objects asks one node for each: by a new request, as an agent answers each
// once, and not beyond the time of a node.
func TestANodeThatIsBusyIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		f.hasApplications()
		served := f.api(views.Options{})
		for sentence, c := range map[string]struct {
			busy, asked, attachments int
			slow                     time.Duration
			lines                    string
		}{
			"twice":               {busy: 2, asked: 3, attachments: 1},
			"without end":         {busy: 1000, asked: 4},
			"slow":                {busy: 1000, slow: 4900 * time.Millisecond, asked: 1},
			"after a first value": {lines: f.attachmentLine(t) + `{"error":"busy","code":429}`, asked: 1, attachments: 1},
		} {
			f.busy.Store(int64(c.busy))
			f.pause = c.slow
			if delete(f.lines, "node-0000"); c.lines != "" {
				f.lines["node-0000"] = c.lines
			}
			var got view.BpfApplication
			began := time.Now()
			asked := f.asks(func() {
				r := httptest.NewRequest(http.MethodGet, base+"/namespaces/team-a/bpfapplications/app", nil)
				r.Header.Set("X-Remote-User", sentence)
				w := httptest.NewRecorder()
				served.ServeHTTP(w, r)
				if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
					t.Fatal(err, w.Body)
				}
			})
			ids := map[string]bool{}
			for _, one := range asked {
				ids[one.ID] = true
			}
			if len(asked) != c.asked || len(ids) != c.asked || len(got.Attachments) != c.attachments || time.Since(began) > 5*time.Second {
				t.Errorf("%s: asked %d times by %d requests within %s: %+v", sentence, len(asked), len(ids), time.Since(began), got)
			}
		}
	})
}

// TestNoTextOfANodeBeginsALineOfADescription, where it could be taken for that of another node, or for an event.
func TestNoTextOfANodeBeginsALineOfADescription(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.hasApplications()
	hostile.Fill(&f.nodes["node-0000"].Applications[0].Attachments[0])
	var body map[string]any
	f.get(t, base+"/namespaces/team-a/bpfapplications/app", "", &body)
	texts := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			if texts++; strings.ContainsAny(v, "\x1b\x07\u009b\u202e\n\t") {
				t.Errorf("%q", v)
			}
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			for key, one := range v {
				walk(key)
				walk(one)
			}
		}
	}
	if walk(body["attachments"]); texts < 40 {
		t.Errorf("%d texts: %+v", texts, body)
	}
}

// TestADescriptionHasNothingOfADefinition: values of variables are in the spec and in an annotation of kubectl apply.
func TestADescriptionHasNothingOfADefinition(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.hasApplications()
	for _, accept := range []string{"", asTable} {
		for path, want := range map[string][]string{
			"/namespaces/team-a/bpfapplications/app?includeObject=Object": {"apiVersion", "attachments", "kind", "metadata", "status"},
			"/namespaces/team-a/bpfapplications?includeObject=Object":     {"apiVersion", "items", "kind", "metadata"},
		} {
			var body map[string]any
			f.get(t, base+path, accept, &body)
			text, err := json.Marshal(body)
			if err != nil || strings.Contains(string(text), "secret") {
				t.Errorf("%v %s", err, text)
			}
			if keys := slices.Sorted(maps.Keys(body)); accept == "" && !slices.Equal(keys, want) {
				t.Errorf("%s has %q", path, keys)
			}
		}
	}
}

// TestWhatIsNotReadIsSaid: no answer of the API server's cache means no application, and time that ended no attachment.
func TestWhatIsNotReadIsSaid(t *testing.T) {
	f := newFleet(t, 300, 1)
	f.hasApplications()
	f.broken = errors.New("away")
	for _, path := range []string{"/namespaces/team-a/bpfapplications/app", "/namespaces/team-a/bpfapplications", "/clusterbpfapplications"} {
		var status metav1.Status
		if f.get(t, base+path, "", &status); status.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %+v", path, status)
		}
	}
	f.broken = nil
	synctest.Test(t, func(t *testing.T) {
		f.answers = make(chan struct{})
		f.slow = func(node string) bool { return node < "node-0200" }
		served := f.api(views.Options{})
		r := httptest.NewRequest(http.MethodGet, base+"/namespaces/team-a/bpfapplications/app", nil)
		r.Header.Set("X-Remote-User", "ann")
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		var got view.BpfApplication
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err, w.Body)
		}
		if len(got.LeftOut) != 2 || !strings.HasPrefix(got.LeftOut[0], "nodes node-0000, ") || got.Status.Version != "v1" ||
			!strings.HasPrefix(got.LeftOut[1], "time ended after 25s; not asked: 2") || !strings.HasSuffix(got.LeftOut[1], " nodes") {
			t.Errorf("%q", got.LeftOut)
		}
	})
}

// TestApplicationsAreListedWithoutAskingNodes, in pages and by selectors, so that kubectl finds those to describe.
func TestApplicationsAreListedWithoutAskingNodes(t *testing.T) {
	f := newFleet(t, 2, 1)
	f.hasApplications()
	f.apps[0].Labels = nil
	for i := range 3 {
		f.apps = append(f.apps, v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprint("more-", i)}})
	}
	for path, want := range map[string][]string{
		"/bpfapplications":                                          {"team-a/app", "team-a/more-0", "team-a/more-1", "team-a/more-2", "team-b/app"},
		"/namespaces/team-b/bpfapplications":                        {"team-b/app"},
		"/namespaces/none/bpfapplications":                          nil,
		"/clusterbpfapplications":                                   {"all"},
		"/bpfapplications?labelSelector=team%3Da":                   {"team-a/app"},
		"/bpfapplications?fieldSelector=metadata.name%3Dapp":        {"team-a/app", "team-b/app"},
		"/bpfapplications?fieldSelector=metadata.namespace!=team-a": {"team-b/app"},
	} {
		for limit := 1; limit < 7; limit++ {
			var got []string
			for token := ""; ; {
				var list view.BpfApplicationList
				join := "?"
				if strings.Contains(path, "?") {
					join = "&"
				}
				asked := f.asks(func() {
					f.get(t, fmt.Sprint(base, path, join, "limit=", limit, "&continue=", token), "application/json", &list)
				})
				if len(asked) > 0 || list.Items == nil || len(list.Items) > limit {
					t.Fatalf("%s: %d nodes asked, %+v", path, len(asked), list)
				}
				for _, a := range list.Items {
					got = append(got, v1alpha1.Identity{Namespace: a.Namespace, Name: a.Name}.String())
				}
				if token = list.Continue; token == "" {
					break
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s, limit %d: %s", path, limit, diff)
			}
		}
	}
	var table metav1.Table
	f.get(t, base+"/namespaces/team-a/bpfapplications/app", asTable, &table)
	if diff := gocmp.Diff([]any{"app", "False", "2/3", "release", "v1", "120m", `loaded on 2 of 3 nodes`}, table.Rows[0].Cells); diff != "" {
		t.Error(diff)
	}
	var failed metav1.Status
	if response := f.get(t, base+"/bpfapplications?fieldSelector=state%3DFailed", "", &failed); response.StatusCode != http.StatusBadRequest {
		t.Errorf("%+v", failed)
	}
}

// TestAPageOfApplicationsHasItsBounds: by number, by bytes, and without a limit by bytes alone, since kubectl get --sort-by sorts one page.
func TestAPageOfApplicationsHasItsBounds(t *testing.T) {
	f := newFleet(t, 0, 0)
	for i := range 1200 {
		f.apps = append(f.apps, v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprintf("more-%04d", i)}})
	}
	var list view.BpfApplicationList
	if got := f.get(t, base+"/bpfapplications", "", &list); len(list.Items) != 1200 || list.Continue != "" || got.Header.Get("Warning") != "" {
		t.Errorf("%d applications without a limit", len(list.Items))
	}
	if f.get(t, base+"/bpfapplications?limit=1000", "", &list); len(list.Items) != 500 || list.Continue == "" {
		t.Errorf("%d applications with a high limit", len(list.Items))
	}
	for i := range f.apps {
		f.apps[i].Status.Conditions = []metav1.Condition{{Message: strings.Repeat("x", 10<<10)}}
	}
	list = view.BpfApplicationList{}
	said := f.get(t, base+"/bpfapplications", "", &list).Header.Get("Warning")
	if len(list.Items) > 450 || list.Continue == "" || !strings.Contains(said, "ends after") {
		t.Errorf("%d large applications, with warning %q", len(list.Items), said)
	}
	var table metav1.Table
	if f.get(t, base+"/bpfapplications", asTable, &table); len(table.Rows) != 1200 || table.Continue != "" {
		t.Errorf("%d rows, which have none of the large messages", len(table.Rows))
	}
	table = metav1.Table{}
	if f.get(t, base+"/bpfapplications?includeObject=Object", asTable, &table); len(table.Rows) > 450 || table.Continue == "" {
		t.Errorf("%d rows with large objects", len(table.Rows))
	}
}
