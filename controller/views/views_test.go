package views_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/controller/noderequests"
	"github.com/skep-dev/skep/controller/views"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/await"
)

// fleet is a cluster's API server and the agents of its nodes.
type fleet struct {
	client.Client
	key   seals.Key
	nodes map[string]view.NodeView
	apps  []v1alpha1.BpfApplication
	// clusterApps are those of the cluster.
	clusterApps []v1alpha1.ClusterBpfApplication
	// away are nodes that do not answer, and lines what one answers in place of what it should.
	away  map[string]error
	lines map[string]string
	// endless is a node that always has more, and sent counts that.
	endless string
	sent    atomic.Int64
	// slow nodes answer when the channel is closed.
	slow    func(node string) bool
	answers chan struct{}
	// pause is how long a node takes, and busy how many of the next requests nodes have no time for.
	pause time.Duration
	busy  atomic.Int64
	// reports changes what nodes report.
	reports func(*v1alpha1.BpfNodeStatus)
	// broken is what the API server answers to reads of applications.
	broken error
	// denied has the API server say no.
	denied bool
	// who asks; empty is another user each time.
	who   string
	users atomic.Int64

	mu      sync.Mutex
	asked   []viewread.Request
	reviews []authorizationv1.ResourceAttributes
	served  http.Handler
}

// newFleet has so many nodes, each with two applications of namespaces and one of the cluster, of so many attachments.
func newFleet(t testing.TB, nodes, attachments int) *fleet {
	t.Helper()
	f := &fleet{key: seals.New(t), nodes: map[string]view.NodeView{}, away: map[string]error{}, lines: map[string]string{}}
	for n := range nodes {
		name := fmt.Sprintf("node-%04d", n)
		node := view.NodeView{TypeMeta: metav1.TypeMeta{APIVersion: view.GroupVersion, Kind: view.KindNodeView}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Kernel: v1alpha1.KernelProfile{Release: "6.12.0"}, Interfaces: []view.Interface{{Hook: "tcx/ingress"}}, Programs: []view.Program{
				{ID: 1, Application: &v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "app"}}, {ID: 2, Name: "foreign"}}}
		for _, id := range []v1alpha1.Identity{
			{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "app"}, {Kind: v1alpha1.KindBpfApplication, Namespace: "team-b", Name: "app"},
			{Kind: v1alpha1.KindClusterBpfApplication, Name: "all"},
		} {
			app := view.Application{Identity: id, UID: uidOf(id), State: v1alpha1.NodeLoaded, VerifierLog: "processed 12 insns"}
			for i := range attachments {
				state := "Attached"
				if i%5 == 4 {
					state = "Failed"
				}
				app.Attachments = append(app.Attachments, view.Attachment{Program: fmt.Sprintf("prog%d", i%2), ProgramID: uint32(10 + i), Hook: "tcx/ingress",
					Target: view.Target{Text: fmt.Sprintf("eth%d", i), Interface: fmt.Sprintf("eth%d", i)}, State: state, Position: 1, Of: 2, Runs: new(uint64(i))})
			}
			node.Applications = append(node.Applications, app)
		}
		f.nodes[name] = node
	}
	f.served = f.api(views.Options{NodeTime: time.Minute})
	return f
}

// uidOf is the UID of an application.
func uidOf(id v1alpha1.Identity) string { return "uid of " + id.String() }

// api serves the API to users by a header.
func (f *fleet) api(o views.Options) http.Handler {
	o.Writer, o.Cache = f, f
	o.Asker = &noderequests.Asker{Hub: noderequests.NewHub(), Sealer: func() *intent.Sealer { return f.key.Sealer }, Relay: f.relay}
	return aggregated.Authenticated(func(r *http.Request) (user.Info, error) {
		return &user.DefaultInfo{Name: r.Header.Get("X-Remote-User")}, nil
	}, views.API(o))
}

// Create implements client.Client: it reviews.
func (f *fleet) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	review := o.(*authorizationv1.SubjectAccessReview)
	f.reviews = append(f.reviews, *review.Spec.ResourceAttributes)
	review.Status.Allowed = !f.denied
	return nil
}

// report is what a node reports.
func (f *fleet) report(name string) v1alpha1.BpfNode {
	n := f.nodes[name]
	r := v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
		Status: v1alpha1.BpfNodeStatus{Kernel: n.Kernel, Counts: v1alpha1.NodeCounts{Programs: 7}}}
	for _, a := range n.Applications {
		r.Status.Applications = append(r.Status.Applications,
			v1alpha1.NodeApplication{Kind: a.Kind, Namespace: a.Namespace, Name: a.Name, UID: a.UID, State: a.State})
	}
	if f.reports != nil {
		f.reports(&r.Status)
	}
	return r
}

// List implements client.Reader.
func (f *fleet) List(_ context.Context, o client.ObjectList, options ...client.ListOption) error {
	in := (&client.ListOptions{}).ApplyOptions(options).Namespace
	if _, nodes := o.(*v1alpha1.BpfNodeList); !nodes && f.broken != nil {
		return f.broken
	}
	switch list := o.(type) {
	case *v1alpha1.BpfNodeList:
		for name := range f.nodes {
			list.Items = append(list.Items, f.report(name))
		}
	case *v1alpha1.BpfApplicationList:
		list.Items = slices.DeleteFunc(slices.Clone(f.apps), func(a v1alpha1.BpfApplication) bool { return in != "" && a.Namespace != in })
	case *v1alpha1.ClusterBpfApplicationList:
		list.Items = slices.Clone(f.clusterApps)
	}
	return nil
}

// Get implements client.Reader.
func (f *fleet) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if f.broken != nil {
		return f.broken
	}
	switch o := o.(type) {
	case *v1alpha1.BpfNode:
		if _, there := f.nodes[key.Name]; there {
			return nil
		}
	case *v1alpha1.BpfApplication:
		for i := range f.apps {
			if client.ObjectKeyFromObject(&f.apps[i]) == key {
				f.apps[i].DeepCopyInto(o)
				return nil
			}
		}
	case *v1alpha1.ClusterBpfApplication:
		for i := range f.clusterApps {
			if f.clusterApps[i].Name == key.Name {
				f.clusterApps[i].DeepCopyInto(o)
				return nil
			}
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, key.Name)
}

// relay is a replica that the agents of all nodes poll.
func (f *fleet) relay(ctx context.Context, node, _ string, envelope []byte) (io.ReadCloser, error) {
	request, err := noderequest.Open[viewread.Request](f.key.Trust, envelope, node, time.Now())
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.asked = append(f.asked, request)
	f.mu.Unlock()
	if f.slow != nil && f.slow(node) {
		select {
		case <-f.answers:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := f.away[node]; err != nil {
		return nil, err
	}
	<-time.After(f.pause)
	if f.busy.Add(-1) >= 0 {
		return io.NopCloser(strings.NewReader(fmt.Sprintf("{\"error\":\"asked too often\",\"code\":%d}\n", noderequest.TooMany))), nil
	}
	if node == f.endless {
		var out strings.Builder
		for range 2000 {
			fmt.Fprintf(&out, `{"value":{"metadata":{"name":"app.%s.%010x"},"application":{"kind":"BpfApplication","namespace":"team-a","name":"app"}}}`+"\n",
				node, f.sent.Add(1))
		}
		return io.NopCloser(strings.NewReader(out.String())), nil
	}
	if lines, odd := f.lines[node]; odd {
		return io.NopCloser(strings.NewReader(lines)), ctx.Err()
	}
	var out bytes.Buffer
	n := f.nodes[node]
	n.Applications = slices.DeleteFunc(slices.Clone(n.Applications), func(a view.Application) bool { return !request.Scope.Has(a.Identity) })
	values := []any{n}
	if request.Attachments {
		values = nil
		for _, a := range view.Attachments(n) {
			values = append(values, a)
		}
	}
	for _, v := range values {
		value, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		line, err := json.Marshal(noderequest.Answer{Value: value})
		if err != nil {
			return nil, err
		}
		out.Write(append(line, '\n'))
	}
	out.WriteString(`{"end":true}` + "\n")
	return io.NopCloser(&out), nil
}

// asks forgets what was asked before, and counts what is asked meanwhile.
func (f *fleet) asks(do func()) []viewread.Request {
	f.mu.Lock()
	f.asked = nil
	f.mu.Unlock()
	do()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

const base = "/apis/" + view.GroupVersion

// asTable is how kubectl asks.
const asTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// get asks over a connection, which has deadlines, and reads the answer into an object.
func (f *fleet) get(t testing.TB, path, accept string, into any) *http.Response {
	t.Helper()
	server := httptest.NewServer(f.served)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Remote-User", cmp.Or(f.who, fmt.Sprint("user-", f.users.Add(1))))
	r.Header.Set("Accept", accept)
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", path, err, body)
	}
	return response
}

func (f *fleet) list(t testing.TB, path string) (list view.BpfAttachmentList, response *http.Response) {
	t.Helper()
	response = f.get(t, path, "application/json", &list)
	return list, response
}

func TestAListComesInPagesThatHaveEachAttachmentOnce(t *testing.T) {
	f := newFleet(t, 9, 5)
	for path, want := range map[string]int{
		"/bpfattachments": 90, "/namespaces/team-a/bpfattachments": 45, "/clusterbpfattachments": 45, "/namespaces/none/bpfattachments": 0,
	} {
		for _, limit := range []int{1, 4, 5, 7, 20, 45, 90, 1000} {
			seen, last, token := map[string]bool{}, "", ""
			for {
				list, _ := f.list(t, fmt.Sprintf("%s%s?limit=%d&continue=%s", base, path, limit, token))
				if len(list.Items) > limit {
					t.Fatalf("%s: %d on a page of %d", path, len(list.Items), limit)
				}
				for _, a := range list.Items {
					at := a.Node + " " + a.Name
					if seen[a.Namespace+"/"+a.Name] || at < last {
						t.Fatalf("%s, limit %d: %s again, or after %s", path, limit, at, last)
					}
					seen[a.Namespace+"/"+a.Name], last = true, at
				}
				if token = list.Continue; token == "" {
					break
				}
			}
			if len(seen) != want {
				t.Errorf("%s, limit %d: %d attachments, not %d", path, limit, len(seen), want)
			}
		}
	}
}

func TestATableFitsATerminalAndTellsMoreWhereItIsWide(t *testing.T) {
	f := newFleet(t, 1, 1)
	var table metav1.Table
	f.get(t, base+"/bpfattachments?limit=1", asTable, &table)
	var columns []string
	for _, c := range table.ColumnDefinitions {
		columns = append(columns, fmt.Sprintf("%s %d", c.Name, c.Priority))
	}
	want := []string{"Node 0", "Application 0", "Program 0", "Hook 0", "Target 0", "State 0", "ID 1", "Position 1", "Runs 1", "Message 1", "Name 1"}
	if diff := gocmp.Diff(want, columns); diff != "" {
		t.Error(diff)
	}
	if len(table.Rows) != 1 || table.Kind != "Table" || table.Continue == "" {
		t.Fatalf("%+v", table)
	}
	cells := table.Rows[0].Cells
	name := cells[len(cells)-1].(string)
	if diff := gocmp.Diff([]any{"node-0000", "app", "prog0", "tcx/ingress", "eth0", "Attached", "10", "1/2", "0", "", name}, cells); diff != "" {
		t.Error(diff)
	}
	var of metav1.PartialObjectMetadata
	if err := json.Unmarshal(table.Rows[0].Object.Raw, &of); err != nil || of.Name != name || of.Namespace == "" || !strings.HasPrefix(name, "app.node-0000.") {
		t.Errorf("%v %s", err, table.Rows[0].Object.Raw)
	}
	// kubectl get --sort-by sorts by fields of the objects.
	for include, want := range map[string]string{
		"None": "", "Metadata": `"kind":"PartialObjectMetadata"`, "Object": `"kind":"BpfAttachment",`,
	} {
		var table metav1.Table
		f.get(t, base+"/bpfattachments?limit=1&includeObject="+include, asTable, &table)
		var list view.BpfAttachmentList
		raw := string(table.Rows[0].Object.Raw)
		if one, _ := f.list(t, base+"/bpfattachments?limit=1"); include == "Object" {
			list.Items = []view.BpfAttachment{{}}
			if err := json.Unmarshal([]byte(raw), &list.Items[0]); err != nil || gocmp.Diff(one.Items, list.Items) != "" {
				t.Errorf("%v %s", err, gocmp.Diff(one.Items, list.Items))
			}
		}
		if !strings.Contains(raw, want) || want == "" && raw != "" {
			t.Errorf("%s: %s", include, raw)
		}
	}
	for path, want := range map[string]string{"/nodeviews": `"kind":"NodeView",`, "/nodeviews/node-0000": `"verifierLog":`} {
		f.get(t, base+path+"?includeObject=Object", asTable, &table)
		if raw := string(table.Rows[0].Object.Raw); !strings.Contains(raw, want) {
			t.Errorf("%s: %s", path, raw)
		}
	}
	for accept, want := range map[string]int{
		"application/json;as=Table;v=v2;g=meta.k8s.io": http.StatusNotAcceptable, "application/yaml": http.StatusNotAcceptable,
		"": http.StatusOK, "*/*": http.StatusOK,
	} {
		var object map[string]any
		if got := f.get(t, base+"/bpfattachments", accept, &object); got.StatusCode != want {
			t.Errorf("%q: %d", accept, got.StatusCode)
		}
	}
}

func TestSelectorsChooseAttachments(t *testing.T) {
	f := newFleet(t, 3, 5)
	for selector, want := range map[string]struct{ items, asked, code int }{
		"fieldSelector=node=node-0001":                         {10, 1, 200},
		"node=node-0001":                                       {10, 1, 200},
		"fieldSelector=state=Failed":                           {6, 3, 200},
		"fieldSelector=state!=Failed,program=prog1":            {12, 3, 200},
		"fieldSelector=application=app,hook=tcx/ingress":       {30, 3, 200},
		"fieldSelector=application=other":                      {0, 0, 200},
		"fieldSelector=hook=xdp":                               {0, 3, 200},
		"fieldSelector=metadata.namespace=team-a":              {15, 3, 200},
		"labelSelector=view.skep.dev/program=prog0":            {18, 3, 200},
		"labelSelector=view.skep.dev/node%20in%20(node-0002)":  {10, 1, 200},
		"labelSelector=view.skep.dev/node=node-0002":           {10, 1, 200},
		"labelSelector=view.skep.dev/node!=node-0002":          {20, 3, 200},
		"labelSelector=view.skep.dev/application=other":        {0, 0, 200},
		"fieldSelector=node!=node-0002":                        {20, 3, 200},
		"fieldSelector=metadata.name=app.node-0002.0123456789": {0, 1, 200},
		"includeObject=All":                                    {0, 0, 400},
		"fieldSelector=secret=x":                               {0, 0, 400},
		"labelSelector=(":                                      {0, 0, 400},
		"limit=-1":                                             {0, 0, 400},
		"continue=eyJhdCI6Ii4uIn0":                             {0, 0, 400},
		"continue=x":                                           {0, 0, 400},
		"node=..":                                              {0, 0, 400},
		"watch=true":                                           {0, 0, 405},
		"watch=1":                                              {0, 0, 405},
		"watch=yes":                                            {0, 0, 405},
		"watch=false":                                          {30, 3, 200},
	} {
		var list view.BpfAttachmentList
		var response *http.Response
		asked := f.asks(func() { list, response = f.list(t, base+"/bpfattachments?"+selector) })
		if len(list.Items) != want.items || len(asked) != want.asked || response.StatusCode != want.code {
			t.Errorf("%s: %d of %d nodes, %d", selector, len(list.Items), len(asked), response.StatusCode)
		}
		if list.Items == nil && want.code == http.StatusOK {
			t.Errorf("%s: no list", selector)
		}
	}
	// What a resource has no field for chooses none of it silently.
	for path, want := range map[string]int{
		"/nodeviews?fieldSelector=state=Failed": 400, "/nodeviews?fieldSelector=node=node-0001": 200, "/nodeviews?fieldSelector=metadata.name=node-0001": 200,
		"/namespaces/team-a/bpfapplications/app/view?fieldSelector=state=Failed": 400, "/namespaces/team-a/bpfapplications/app/view?node=node-0001": 200,
	} {
		var list struct{ Items []any }
		if response := f.get(t, base+path, "", &list); response.StatusCode != want || want == 200 && len(list.Items) != 1 {
			t.Errorf("%s: %d, %d objects", path, response.StatusCode, len(list.Items))
		}
	}
}

// TestNodesThatDoNotAnswerAreNamedAndTheRestIsShown by warnings of a bounded number.
func TestNodesThatDoNotAnswerAreNamedAndTheRestIsShown(t *testing.T) {
	f := newFleet(t, 40, 2)
	for n := range 20 {
		f.away[fmt.Sprintf("node-%04d", n)] = noderequests.ErrNotHere
	}
	for n := range 10 {
		f.lines[fmt.Sprintf("node-%04d", 20+n)] = fmt.Sprintf(`{"error":"reason %d\n\u001b[31m","code":500}`+"\n", n)
	}
	list, response := f.list(t, base+"/namespaces/team-a/bpfattachments")
	if len(list.Items) != 20 || response.StatusCode != http.StatusOK {
		t.Errorf("%d %d", response.StatusCode, len(list.Items))
	}
	warnings := response.Header.Values("Warning")
	const first = `299 skep "nodes node-0000, node-0001, node-0002, node-0003, node-0004 and 15 more: its agent does not`
	if len(warnings) != 4 || !strings.HasPrefix(warnings[0], first) {
		t.Errorf("%d warnings: %q", len(warnings), warnings)
	}
	if len(fmt.Sprint(warnings)) > 2000 {
		t.Errorf("warnings of %d bytes", len(fmt.Sprint(warnings)))
	}
}

func TestWhatAnAgentAnswersBeyondTheScopeIsNotShown(t *testing.T) {
	f := newFleet(t, 2, 1)
	attachment := func(change func(*view.BpfAttachment)) string {
		a := view.Attachments(f.nodes["node-0000"])[0]
		for _, one := range view.Attachments(f.nodes["node-0000"]) {
			if one.Namespace == "team-a" {
				a = one
			}
		}
		change(&a)
		value, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("{\"value\":%s}\n", value)
	}
	const end = `{"end":true}` + "\n"
	for name, c := range map[string]struct {
		lines string
		shown int
		says  string
	}{
		"as it should be":         {attachment(func(*view.BpfAttachment) {}) + "{}\n" + end, 1, ""},
		"of another namespace":    {attachment(func(a *view.BpfAttachment) { a.Application.Namespace = "team-b" }) + end, 0, "not asked for"},
		"of the cluster":          {attachment(func(a *view.BpfAttachment) { a.Application.Kind = v1alpha1.KindClusterBpfApplication }) + end, 0, "not asked for"},
		"of another node by name": {attachment(func(a *view.BpfAttachment) { a.Name = "app.node-0001.0123456789" }) + end, 0, "a name that none has"},
		"of a name that is none":  {attachment(func(a *view.BpfAttachment) { a.Name = "../node-0000.0123456789" }) + end, 0, "a name that none has"},
		"twice":                   {attachment(func(*view.BpfAttachment) {}) + attachment(func(*view.BpfAttachment) {}) + end, 1, "order of their names"},
		"too long":                {attachment(func(a *view.BpfAttachment) { a.Message = strings.Repeat("x", 70<<10) }) + end, 0, "more than 65536 bytes"},
		"no JSON":                 {"<html>\n", 0, "no answer"},
		"not whole":               {attachment(func(*view.BpfAttachment) {}), 1, "before it was whole"},
		"another namespace and node in the metadata": {attachment(func(a *view.BpfAttachment) {
			a.Namespace, a.Node, a.Labels = "kube-system", "node-0001", map[string]string{"x": "y"}
		}) + end, 1, ""},
	} {
		f.lines["node-0000"] = c.lines
		list, response := f.list(t, base+"/namespaces/team-a/bpfattachments?node=node-0000")
		warned := fmt.Sprint(response.Header.Values("Warning"))
		if len(list.Items) != c.shown || !strings.Contains(warned, c.says) || (c.says == "") != (warned == "[]") {
			t.Errorf("%s: %d are shown, %s", name, len(list.Items), warned)
		}
		for _, a := range list.Items {
			if a.Namespace != "team-a" || a.Node != "node-0000" || a.Labels["x"] != "" {
				t.Errorf("%s: %+v", name, a.ObjectMeta)
			}
		}
	}
}

// TestAnAgentNamesNoApplicationThatCannotBe where the scope has no name or namespace to compare with.
func TestAnAgentNamesNoApplicationThatCannotBe(t *testing.T) {
	f := newFleet(t, 1, 1)
	for _, id := range []v1alpha1.Identity{
		{Kind: v1alpha1.KindBpfApplication, Namespace: "\x1b[2J", Name: "app"}, {Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "App\n"},
		{Kind: v1alpha1.KindBpfApplication, Name: "app"}, {Kind: v1alpha1.KindClusterBpfApplication, Namespace: "team-a", Name: "app"}, {Kind: "Pod", Name: "app"},
	} {
		attachment, err := json.Marshal(view.NewAttachment("node-0000", id, view.Attachment{}))
		if err != nil {
			t.Fatal(err)
		}
		f.lines["node-0000"] = fmt.Sprintf("{\"value\":%s}\n{\"end\":true}\n", attachment)
		for _, path := range []string{"/bpfattachments", "/clusterbpfattachments"} {
			list, response := f.list(t, base+path)
			if warned := response.Header.Get("Warning"); len(list.Items) > 0 ||
				!strings.Contains(warned, "no application") && !strings.Contains(warned, "not asked for") {
				t.Errorf("%s: %+v: %+v %s", path, id, list.Items, warned)
			}
		}
		application, err := json.Marshal(view.NodeView{Applications: []view.Application{{Identity: id}}})
		if err != nil {
			t.Fatal(err)
		}
		f.lines["node-0000"] = fmt.Sprintf("{\"value\":%s}\n{\"end\":true}\n", application)
		var status metav1.Status
		if f.get(t, base+"/nodeviews/node-0000", "", &status); status.Code != http.StatusBadGateway {
			t.Errorf("%+v: %+v", id, status)
		}
	}
}

func TestAnApplicationIsDescribedOnItsNodesAndNothingElse(t *testing.T) {
	f := newFleet(t, 3, 1)
	whole, err := json.Marshal(f.nodes["node-0001"])
	if err != nil {
		t.Fatal(err)
	}
	// An agent that says more than it is asked for.
	f.lines["node-0001"] = fmt.Sprintf("{\"value\":%s}\n{\"end\":true}\n", whole)
	f.away["node-0002"] = errors.New("away")
	var list view.NodeViewList
	response := f.get(t, base+"/namespaces/team-a/bpfapplications/app/view", "application/json", &list)
	if len(list.Items) != 2 || len(response.Header.Values("Warning")) != 1 {
		t.Fatalf("%d nodes, %v", len(list.Items), response.Header)
	}
	for _, n := range list.Items {
		if len(n.Applications) != 1 || n.Applications[0].Namespace != "team-a" || n.Applications[0].VerifierLog == "" || n.Interfaces != nil || len(n.Programs) != 1 {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	f.get(t, base+"/namespaces/team-a/bpfapplications/app/view?limit=1&node=node-0000", "application/json", &list)
	if list.Continue != "" {
		t.Errorf("more than the node: %+v", list.ListMeta)
	}
	list = view.NodeViewList{}
	f.get(t, base+"/clusterbpfapplications/all/view?limit=1", "application/json", &list)
	if len(list.Items) != 1 || list.Continue == "" || list.Items[0].Applications[0].Name != "all" {
		t.Errorf("%+v", list)
	}
}

func TestANodeIsDescribedWholeAndAListAsksNoNode(t *testing.T) {
	f := newFleet(t, 3, 1)
	var list view.NodeViewList
	asked := f.asks(func() { f.get(t, base+"/nodeviews?limit=2&labelSelector=zone=a", "", &list) })
	if len(asked) != 0 || len(list.Items) != 2 || list.Continue == "" {
		t.Errorf("%d are asked: %+v", len(asked), list)
	}
	var table metav1.Table
	f.get(t, base+"/nodeviews", asTable, &table)
	if diff := gocmp.Diff([]any{"node-0000", "3", "7", "6.12.0", ""}, table.Rows[0].Cells); diff != "" {
		t.Error(diff)
	}
	var node view.NodeView
	f.get(t, base+"/nodeviews/node-0002", "", &node)
	if len(node.Applications) != 3 || len(node.Interfaces) != 1 || len(node.Programs) != 2 {
		t.Errorf("%+v", node)
	}
	f.away["node-0001"] = noderequests.ErrNotHere
	for path, want := range map[string]int{
		"/nodeviews/node-0001": http.StatusGatewayTimeout, "/nodeviews/none": http.StatusNotFound, "/nodeviews/N_": http.StatusBadRequest,
	} {
		var status metav1.Status
		if f.get(t, base+path, "", &status); int(status.Code) != want {
			t.Errorf("%s: %+v", path, status)
		}
	}
}

func TestAnAttachmentIsFoundByItsName(t *testing.T) {
	f := newFleet(t, 12, 2)
	list, _ := f.list(t, base+"/namespaces/team-b/bpfattachments?node=node-0011")
	name := list.Items[1].Name
	var one view.BpfAttachment
	asked := f.asks(func() { f.get(t, base+"/namespaces/team-b/bpfattachments/"+name, "", &one) })
	if diff := gocmp.Diff(list.Items[1], one); diff != "" || len(asked) != 1 {
		t.Errorf("%d are asked: %s", len(asked), diff)
	}
	f.away["node-0010"] = noderequests.ErrNotHere
	f.lines["node-0009"] = fmt.Sprintf("{\"error\":\"asked too often\",\"code\":%d}\n", noderequest.TooMany)
	// A reader of a namespace learns nothing of nodes where nothing of it is.
	asked = f.asks(func() {
		if response := f.get(t, base+"/namespaces/none/bpfattachments/app.node-0010.0123456789", "", &one); response.StatusCode != http.StatusNotFound {
			t.Errorf("a node without an application of the namespace: %d", response.StatusCode)
		}
	})
	if len(asked) != 0 {
		t.Errorf("a node is asked for what it does not have: %+v", asked)
	}
	for path, want := range map[string]int{
		"/namespaces/team-a/bpfattachments/" + name: http.StatusNotFound, "/namespaces/team-b/bpfattachments/app.node-9.0123456789": http.StatusNotFound,
		"/clusterbpfattachments/" + name: http.StatusNotFound, "/namespaces/team-b/bpfattachments/app.node-0010.0123456789": http.StatusGatewayTimeout,
		"/namespaces/team-b/bpfattachments/app.node-0009.0123456789": http.StatusTooManyRequests,
	} {
		var status metav1.Status
		if f.get(t, base+path, "", &status); int(status.Code) != want {
			t.Errorf("%s: %+v", path, status)
		}
	}
}

func TestTheServerAsksOncePerPageWhetherAUserMay(t *testing.T) {
	f := newFleet(t, 20, 1)
	f.who = "ann"
	for path, want := range map[string]authorizationv1.ResourceAttributes{
		"/bpfattachments":                             {Verb: "list", Resource: "bpfattachments"},
		"/namespaces/team-a/bpfattachments":           {Verb: "list", Resource: "bpfattachments", Namespace: "team-a"},
		"/namespaces/team-a/bpfattachments/a":         {Verb: "get", Resource: "bpfattachments", Namespace: "team-a", Name: "a"},
		"/clusterbpfattachments":                      {Verb: "list", Resource: "clusterbpfattachments"},
		"/clusterbpfattachments/a":                    {Verb: "get", Resource: "clusterbpfattachments", Name: "a"},
		"/nodeviews":                                  {Verb: "list", Resource: "nodeviews"},
		"/bpfapplications":                            {Verb: "list", Resource: "bpfapplications"},
		"/namespaces/team-a/bpfapplications":          {Verb: "list", Resource: "bpfapplications", Namespace: "team-a"},
		"/clusterbpfapplications":                     {Verb: "list", Resource: "clusterbpfapplications"},
		"/namespaces/team-a/bpfapplications/app":      {Verb: "get", Resource: "bpfapplications", Namespace: "team-a", Name: "app"},
		"/clusterbpfapplications/all":                 {Verb: "get", Resource: "clusterbpfapplications", Name: "all"},
		"/nodeviews/node-0001":                        {Verb: "get", Resource: "nodeviews", Name: "node-0001"},
		"/namespaces/team-a/bpfapplications/app/view": {Verb: "get", Resource: "bpfapplications", Subresource: "view", Namespace: "team-a", Name: "app"},
		"/clusterbpfapplications/all/view":            {Verb: "get", Resource: "clusterbpfapplications", Subresource: "view", Name: "all"},
	} {
		want.Group, want.Version = view.Group, view.Version
		f.reviews, f.denied = nil, true
		var object map[string]any
		asked := f.asks(func() {
			if response := f.get(t, base+path, "", &object); response.StatusCode != http.StatusForbidden || object["kind"] != "Status" {
				t.Errorf("%s: %d %v", path, response.StatusCode, object)
			}
		})
		f.denied = false
		f.get(t, base+path, "", &object)
		f.get(t, base+path, "", &object)
		if diff := gocmp.Diff([]authorizationv1.ResourceAttributes{want, want}, f.reviews); diff != "" || len(asked) != 0 {
			t.Errorf("%s: %d nodes are asked without a right, and the API server: %s", path, len(asked), diff)
		}
	}
}

func TestAUserWhoAsksTooOftenIsAnsweredSo(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.who = "hasty"
	for range 1000 {
		var object map[string]any
		if response := f.get(t, base+"/nodeviews", "", &object); response.StatusCode == http.StatusTooManyRequests {
			if response.Header.Get("Retry-After") == "" {
				t.Error("it is not told when to ask again")
			}
			return
		}
	}
	t.Error("1000 requests are answered")
}

func TestADescriptionThatIsLargerThanItLooksIsRejected(t *testing.T) {
	f := newFleet(t, 1, 10_000)
	const node, application = base + "/nodeviews/node-0000", base + "/namespaces/team-a/bpfapplications/app/view"
	var whole view.NodeView
	if f.get(t, node, "", &whole); len(whole.Applications) != 3 || len(whole.Applications[0].Attachments) != 10_000 {
		t.Fatalf("a large description of an honest agent is not answered: %+v", whole.TypeMeta)
	}
	const start = `{"value":{"applications":[{"kind":"BpfApplication","namespace":"team-a","name":"app",`
	// Each has less than the bytes that a description may have.
	for says, descriptions := range map[string][]string{
		"too many parts": {
			`"attachments":[{}` + strings.Repeat(`,{}`, 300_000) + `]`, `"attachments":[1` + strings.Repeat(`,1`, 300_000) + `]`,
			`"attachments":["{"` + strings.Repeat(` , ""`, 300_000) + `]`, `"attachments":[[` + strings.Repeat(`],[`, 300_000) + `]]`,
			`"x\"":{}` + strings.Repeat(`,"x":{}`, 300_000),
		},
		"too long": {`"verifierLog":"` + strings.Repeat("<", 2_000_000) + `"`},
	} {
		for _, d := range descriptions {
			f.lines["node-0000"] = start + d + "}]}}\n{\"end\":true}\n"
			var status metav1.Status
			if f.get(t, node, "", &status); status.Code != http.StatusBadGateway || !strings.Contains(status.Message, says) {
				t.Errorf("%.120s: %d %s", d, status.Code, status.Message)
			}
			var list view.NodeViewList
			if r := f.get(t, application, "", &list); len(list.Items) != 0 || !strings.Contains(r.Header.Get("Warning"), says) {
				t.Errorf("%.120s: %d nodes, %s", d, len(list.Items), r.Header.Get("Warning"))
			}
		}
	}
}

func TestANodeThatAnswersWithoutEndIsNotReadWithoutEnd(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.lines["node-0000"] = strings.Repeat(`{"x":"`+strings.Repeat("x", 60<<10)+"\"}\n", 600) + `{"end":true}` + "\n"
	_, response := f.list(t, base+"/namespaces/team-a/bpfattachments")
	if warned := response.Header.Get("Warning"); warned == "" {
		t.Errorf("36 MiB are read for one request")
	}
}

func TestWhatAnAgentSaysOfAnErrorIsForATerminalAndSpeaksForTheAgentAlone(t *testing.T) {
	f := newFleet(t, 1, 1)
	for sent, want := range map[int]int{500: 500, 404: 404, 401: 502, 403: 502, 503: 502, 200: 502} {
		f.lines["node-0000"] = fmt.Sprintf(`{"error":"\u001b[31mlog in\n%s","code":%d}`+"\n", strings.Repeat("x", 1<<20), sent)
		var status metav1.Status
		f.get(t, base+"/nodeviews/node-0000", "", &status)
		if int(status.Code) != want || strings.ContainsAny(status.Message, "\x1b\n") || len(status.Message) > 8<<10 || !strings.Contains(status.Message, "log in") {
			t.Errorf("%d: %d %.80q of %d bytes", sent, status.Code, status.Message, len(status.Message))
		}
	}
}

// asksOfSlow counts what slow nodes were asked.
func (f *fleet) asksOfSlow() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.asked {
		if f.slow(r.Node) {
			n++
		}
	}
	return n
}

func TestANodeThatIsSlowKeepsNoPlacesFromOthers(t *testing.T) {
	f := newFleet(t, 2, 1)
	f.slow, f.answers = func(node string) bool { return node == "node-0000" }, make(chan struct{})
	var all sync.WaitGroup
	ask := func() {
		r := httptest.NewRequest(http.MethodGet, base+"/nodeviews/node-0000", nil)
		r.Header.Set("X-Remote-User", fmt.Sprint("user-", f.users.Add(1)))
		f.served.ServeHTTP(httptest.NewRecorder(), r)
	}
	for range 12 {
		all.Go(ask)
	}
	await.True(t, "the slow node is asked", time.Minute, func() bool { return f.asksOfSlow() > 0 })
	var other view.NodeView
	f.get(t, base+"/nodeviews/node-0001", "", &other)
	if n := f.asksOfSlow(); other.Name != "node-0001" || n > 1 {
		t.Errorf("the slow node has %d places, and another one describes itself as %q", n, other.Name)
	}
	close(f.answers)
	all.Wait()
}

// TestAUserOfManySlowNodesLeavesPlacesToOthers also at the nodes that answer, for which the user's requests wait.
func TestAUserOfManySlowNodesLeavesPlacesToOthers(t *testing.T) {
	f := newFleet(t, 60, 1)
	var all sync.WaitGroup
	// A list asks four nodes, which answer, and then sixteen at once, of which the last four answer.
	quick := func(n int) bool { return n%20 < 4 || n%20 >= 16 }
	f.slow = func(node string) bool {
		n, err := strconv.Atoi(strings.TrimPrefix(node, "node-"))
		return err == nil && !quick(n)
	}
	f.answers = make(chan struct{})
	defer func() {
		close(f.answers)
		all.Wait()
	}()
	for n := range 6 {
		start := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"at":"node-%04d"}`, n/2*20))
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, base+"/bpfattachments?continue="+start, nil)
			r.Header.Set("X-Remote-User", fmt.Sprint("system:serviceaccount:team-a:eager-", n))
			f.served.ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	const most = 24
	await.True(t, "slow nodes are asked", time.Minute, func() bool { return f.asksOfSlow() >= most })
	for n := range 60 {
		if !quick(n) {
			continue
		}
		list, _ := f.list(t, fmt.Sprintf("%s/bpfattachments?node=node-%04d", base, n))
		if asked := f.asksOfSlow(); len(list.Items) != 2 || asked > most {
			t.Fatalf("a user has %d places, and another one sees %d attachments of node %d", asked, len(list.Items), n)
		}
	}
}

func TestAListEndsThoughANodeAlwaysHasMore(t *testing.T) {
	f := newFleet(t, 2, 1)
	f.endless = "node-0000"
	token := ""
	for range 100 {
		list, response := f.list(t, base+"/namespaces/team-a/bpfattachments?continue="+token)
		if token = list.Continue; token == "" {
			if last := list.Items[len(list.Items)-1]; last.Node != "node-0001" || !strings.Contains(response.Header.Get("Warning"), "the rest is not shown") {
				t.Errorf("the last is on %s: %q", last.Node, response.Header.Get("Warning"))
			}
			return
		}
	}
	t.Error("the list has no end")
}

func TestASelectorHasFewTerms(t *testing.T) {
	f := newFleet(t, 1, 1)
	const path = base + "/namespaces/team-a/bpfattachments?"
	for query, want := range map[string]int{
		"labelSelector=%21a" + strings.Repeat(",%21a", 31):           http.StatusOK,
		"labelSelector=%21a" + strings.Repeat(",%21a", 32):           http.StatusBadRequest,
		"fieldSelector=hook%21=a" + strings.Repeat(",hook%21=a", 32): http.StatusBadRequest,
	} {
		var object map[string]any
		if response := f.get(t, path+query, "", &object); response.StatusCode != want {
			t.Errorf("%d terms: %d %v", strings.Count(query, ",")+1, response.StatusCode, object["message"])
		}
	}
}

// parked is a reader of an answer that takes none of it until released.
type parked struct {
	*httptest.ResponseRecorder

	waiting *atomic.Int64
	release chan struct{}
}

// Write implements io.Writer.
func (p parked) Write(b []byte) (int, error) {
	p.waiting.Add(1)
	<-p.release
	return p.ResponseRecorder.Write(b)
}

func TestAnAnswerCountsUntilItsReaderHasIt(t *testing.T) {
	f := newFleet(t, 1, 1)
	f.who = "slow"
	p := parked{nil, new(atomic.Int64), make(chan struct{})}
	var all sync.WaitGroup
	ask := func() {
		r := httptest.NewRequest(http.MethodGet, base+"/namespaces/team-a/bpfattachments", nil)
		r.Header.Set("X-Remote-User", f.who)
		f.served.ServeHTTP(parked{httptest.NewRecorder(), p.waiting, p.release}, r)
	}
	for range 6 {
		all.Go(ask)
	}
	await.True(t, "six answers wait for their reader", time.Minute, func() bool { return p.waiting.Load() == 6 })
	var status metav1.Status
	f.get(t, base+"/nodeviews", "", &status)
	if status.Code != http.StatusTooManyRequests {
		t.Errorf("one more is answered: %+v", status)
	}
	close(p.release)
	all.Wait()
}

func FuzzContinue(f *testing.F) {
	good := map[string]bool{"": true}
	for position, isGood := range map[string]bool{
		`{"at":"node-0001"}`: true, `{"at":"node-0001","after":"x"}`: true, `{"at":"team-a/app"}`: true, `{"at":".."}`: false, `{"at":"a/b/c"}`: false, "{}": false,
	} {
		good[base64.RawURLEncoding.EncodeToString([]byte(position))] = isGood
	}
	for token := range good {
		f.Add(token)
	}
	f.Add("%00")
	all := newFleet(f, 2, 1)
	all.hasApplications()
	f.Fuzz(func(t *testing.T, token string) {
		for _, path := range []string{"/namespaces/team-a/bpfattachments", "/namespaces/team-a/bpfapplications"} {
			r := httptest.NewRequest(http.MethodGet, base+path, nil)
			query := r.URL.Query()
			query.Set("continue", token)
			r.URL.RawQuery = query.Encode()
			r.Header.Set("X-Remote-User", fmt.Sprint("user-", all.users.Add(1)))
			w := httptest.NewRecorder()
			all.served.ServeHTTP(w, r)
			isGood, known := good[token]
			isOdd := w.Code != http.StatusOK && w.Code != http.StatusBadRequest || known && isGood != (w.Code == http.StatusOK)
			if isOdd || strings.Contains(w.Body.String(), "team-b") {
				t.Errorf("%s %q: %d %s", path, token, w.Code, w.Body)
			}
		}
	})
}

func FuzzAnswer(f *testing.F) {
	all := newFleet(f, 1, 1)
	all.hasApplications()
	whole, err := json.Marshal(view.Attachments(all.nodes["node-0000"])[0])
	if err != nil {
		f.Fatal(err)
	}
	for _, lines := range []string{
		fmt.Sprintf("{\"value\":%s}\n{\"end\":true}\n", whole), `{"value":{"applications":[{"kind":"x"}]}}`, `{"error":"\r\nX: y","code":7}`, "{}", "null\n",
	} {
		f.Add(lines)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		all.lines["node-0000"] = lines
		for _, path := range []string{"/namespaces/team-a/bpfattachments", "/namespaces/team-a/bpfapplications/app/view", "/nodeviews/node-0000",
			"/namespaces/team-a/bpfapplications/app"} {
			r := httptest.NewRequest(http.MethodGet, base+path, nil)
			r.Header.Set("X-Remote-User", fmt.Sprint("user-", all.users.Add(1)))
			w := httptest.NewRecorder()
			all.served.ServeHTTP(w, r)
			var list struct {
				Items []struct {
					Namespace    string
					Application  v1alpha1.Identity
					Applications []view.Application
				}
			}
			if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code < 200 {
				t.Fatalf("%s: %d %v %s", path, w.Code, err, w.Body)
			}
			for _, i := range list.Items {
				if i.Application.Namespace != "team-a" && len(i.Applications) == 0 || len(i.Applications) > 0 && i.Applications[0].Namespace != "team-a" {
					t.Errorf("%s: %s", path, w.Body)
				}
			}
		}
	})
}
