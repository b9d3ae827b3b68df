package views_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/noderequests"
)

// hasApplications adds the applications of the nodes to the API server.
func (f *fleet) hasApplications() {
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "u", Generation: 3, Labels: map[string]string{"team": "a"},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-2 * time.Hour).Truncate(time.Second)),
			Annotations:       map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "secret"},
			ManagedFields:     []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}}
	}
	status := v1alpha1.BpfApplicationStatus{Version: "v1", Nodes: &v1alpha1.NodesStatus{Summary: "2/3"},
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Message: "loaded on\n2 of 3 nodes"}}}
	for _, namespace := range []string{"team-b", "team-a"} {
		f.apps = append(f.apps, v1alpha1.BpfApplication{ObjectMeta: meta(namespace, "app"), Status: status})
	}
	f.clusterApps = append(f.clusterApps, v1alpha1.ClusterBpfApplication{ObjectMeta: meta("", "all"), Status: status})
	for i := range f.apps {
		f.apps[i].Spec.Programs = []v1alpha1.Program{{Name: "secret"}}
	}
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
	if diff := gocmp.Diff(authorizationv1.ResourceAttributes{Group: view.Group, Version: view.Version, Verb: "get", Resource: "bpfapplications", Namespace: "team-a",
		Name: "app"}, f.reviews[0]); diff != "" || len(f.reviews) != 1 {
		t.Errorf("%d reviews: %s", len(f.reviews), diff)
	}
	var of view.BpfApplication
	f.get(t, base+"/clusterbpfapplications/all", "application/json", &of)
	if of.Kind != v1alpha1.KindClusterBpfApplication || of.Name != "all" || of.UID != "u" || len(of.Attachments) != 2 {
		t.Errorf("%+v", of)
	}
	var none metav1.Status
	for _, path := range []string{"/namespaces/team-a/bpfapplications/other", "/namespaces/team-c/bpfapplications/app", "/clusterbpfapplications/app"} {
		if f.get(t, base+path, "application/json", &none); none.Reason != metav1.StatusReasonNotFound || !strings.HasSuffix(none.Message, " not found") {
			t.Errorf("%s: %+v", path, none)
		}
	}
}

func byNode(a, b view.NodeAttachment) int { return strings.Compare(a.Node, b.Node) }

// TestADescriptionHasTheFirstAttachments and the command that lists all: in a description each takes some ten lines.
func TestADescriptionHasTheFirstAttachments(t *testing.T) {
	f := newFleet(t, 30, 7)
	f.hasApplications()
	for path, want := range map[string]string{
		"/namespaces/team-a/bpfapplications/app": "only 100 attachments are shown: `kubectl get -n team-a bpfattachments --field-selector application=app` lists all",
		"/clusterbpfapplications/all":            "only 100 attachments are shown: `kubectl get clusterbpfattachments --field-selector application=all` lists all",
	} {
		var got view.BpfApplication
		asked := f.asks(func() { f.get(t, base+path, "application/json", &got) })
		if len(got.Attachments) != 100 || !slices.Equal(got.LeftOut, []string{want}) || len(asked) > 25 || !slices.IsSortedFunc(got.Attachments, byNode) {
			t.Errorf("%s: %d attachments, %d nodes asked, left out %q", path, len(got.Attachments), len(asked), got.LeftOut)
		}
	}
	// A node of another object of the name is not asked.
	f.apps[1].UID = "recreated"
	var got view.BpfApplication
	if asked := f.asks(func() { f.get(t, base+"/namespaces/team-a/bpfapplications/app", "application/json", &got) }); len(asked) > 0 || got.LeftOut != nil {
		t.Errorf("%d nodes asked: %+v", len(asked), got)
	}
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
	if diff := gocmp.Diff([]any{"app", "False", "2/3", "120m", `loaded on 2 of 3 nodes`}, table.Rows[0].Cells); diff != "" {
		t.Error(diff)
	}
	var failed metav1.Status
	if response := f.get(t, base+"/bpfapplications?fieldSelector=state%3DFailed", "", &failed); response.StatusCode != http.StatusBadRequest {
		t.Errorf("%+v", failed)
	}
}
