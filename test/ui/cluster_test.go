package ui_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/test/harness/browser"
)

// apiServer answers for objects by their paths: lists page by page, and 404 for what it does not have.
type apiServer struct {
	lists   map[string][]json.RawMessage
	objects map[string]any
	// refuses is the status with which some requests are answered.
	refuses atomic.Pointer[func(*http.Request) int]
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if refuses := s.refuses.Load(); refuses != nil {
		if code := (*refuses)(r); code != 0 {
			reason := map[int]metav1.StatusReason{http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusUnauthorized: metav1.StatusReasonUnauthorized}[code]
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: reason, Code: int32(code)})
			return
		}
	}
	if one, known := s.objects[r.URL.Path]; known {
		_ = json.NewEncoder(w).Encode(one)
		return
	}
	all, known := s.lists[r.URL.Path]
	if !known || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	to := len(all)
	if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); limit > 0 {
		to = min(to, from+limit)
	}
	next := ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	// The server that tests ask is not what they measure: its objects are JSON already.
	_, _ = fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[`, next)
	for i, object := range all[from:to] {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}
		_, _ = w.Write(object)
	}
	_, _ = io.WriteString(w, "]}")
}

// serveCluster serves a cluster, and returns its kubeconfig.
func serveCluster(t testing.TB, s *apiServer) string {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return kubeconfigOf(t, server.URL, "{}")
}

// kubeconfigOf writes the kubeconfig of a cluster, with a user in JSON.
func kubeconfigOf(t testing.TB, address, user string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	anyServer := strconv.FormatBool(strings.HasPrefix(address, "https:"))
	config := `{"apiVersion":"v1","kind":"Config","current-context":"admin@prod-eu",
		"clusters":[{"name":"prod-eu","cluster":{"server":"` + address + `","insecure-skip-tls-verify":` + anyServer + `}}],
		"contexts":[{"name":"admin@prod-eu","context":{"cluster":"prod-eu","user":"admin"}}],"users":[{"name":"admin","user":` + user + `}]}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The names of applications, and of the teams whose namespaces some are in.
var (
	kinds = []string{"firewall", "latency", "flow-export", "syscall-audit", "dns-watch", "tcp-retrans", "xdp-counter", "file-opens"}
	teams = []string{"", "checkout", "search", "payments", "identity"}
)

// stateOf says how an application does on a node: as in a fleet, nearly all is well.
func stateOf(app, node int) (v1alpha1.NodeState, string) {
	switch n := app*31 + node*17 + app*node%13; {
	case app == 3 && node%9 == 4:
		return v1alpha1.NodeFailed, "load program on_exec: the verifier rejects it: R2 min value is negative"
	case app == 5 && node%50 == 7:
		return v1alpha1.NodeUnsupported, "the kernel 5.15 has no hook tcx/ingress"
	case n%997 == 0:
		return v1alpha1.NodeWaiting, "no interface matches bond*"
	case n%463 == 0:
		return v1alpha1.NodePending, ""
	case app%11 == 7 && node%3 != 0:
		return v1alpha1.NodeNotSelected, ""
	}
	return v1alpha1.NodeLoaded, ""
}

// fleetOf is a cluster of so many nodes and applications.
func fleetOf(t testing.TB, nodes, apps int) *apiServer {
	t.Helper()
	s := &apiServer{lists: map[string][]json.RawMessage{}, objects: map[string]any{}}
	path := func(resource string) string { return "/apis/" + v1alpha1.APIVersion + "/" + resource }
	for _, resource := range []string{"bpfapplications", "clusterbpfapplications", "bpfsigners", "clusterbpfpolicies", "bpfpolicies", "bpfnodes"} {
		s.lists[path(resource)] = nil
	}
	add := func(resource string, object any) {
		body, err := json.Marshal(object)
		if err != nil {
			body = []byte(err.Error())
		}
		s.lists[path(resource)] = append(s.lists[path(resource)], body)
	}
	var all []v1alpha1.Identity
	for i := range apps {
		team := teams[i%len(teams)]
		id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: team, Name: fmt.Sprintf("%s-%02d", kinds[i%len(kinds)], i)}
		if team == "" {
			id.Kind = v1alpha1.KindClusterBpfApplication
		}
		all = append(all, id)
		if team == "" {
			add("clusterbpfapplications", application(id, i))
		} else {
			add("bpfapplications", application(id, i))
		}
	}
	for j := range nodes {
		n := v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1", j/250, j/50%5, j%250)}}
		n.Status.Kernel.Release, n.Status.Agent.Version = "6.12.48-cloud-amd64", "v0.1.0"
		for i, id := range all {
			state, message := stateOf(i, j)
			uid := "uid-" + strconv.Itoa(i)
			if state == v1alpha1.NodeLoaded && message == "" {
				n.Status.Counts.Loaded++
				n.Status.Loaded = append(n.Status.Loaded, v1alpha1.LoadedAs(uid, 1))
				continue
			}
			n.Status.Applications = append(n.Status.Applications,
				v1alpha1.NodeApplication{Kind: id.Kind, Namespace: id.Namespace, Name: id.Name, UID: uid, Serial: 1, State: state, Message: message})
		}
		add("bpfnodes", n)
		v := nodeView(t, n.Name, uint64(1_000_000+j))
		s.objects["/apis/"+view.GroupVersion+"/nodeviews/"+n.Name] = v
	}
	// What the first nodes say of the application that fails on some.
	failing := view.NodeViewList{ListMeta: metav1.ListMeta{Continue: "more"}}
	for _, node := range []string{"ip-10-0-0-4.eu-central-1", "ip-10-0-0-13.eu-central-1"} {
		v := nodeView(t, node, 1)
		v.Applications = v.Applications[3:]
		failing.Items = append(failing.Items, v)
	}
	if apps > 3 {
		s.objects["/apis/"+view.GroupVersion+"/namespaces/payments/bpfapplications/syscall-audit-03/view"] = failing
	}
	add("bpfsigners", v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "release"}, Spec: v1alpha1.BpfSignerSpec{Key: &v1alpha1.KeySigner{}}})
	add("bpfsigners", v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "ci"}, Spec: v1alpha1.BpfSignerSpec{Keyless: &v1alpha1.KeylessSigner{
		Identities: []v1alpha1.IdentityMatch{{Issuer: "https://token.actions.example.com", Subject: "https://git.example.com/platform/bpf/.ci@refs/heads/main"}}}}})
	add("bpfsigners", v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "alice-laptop"},
		Spec: v1alpha1.BpfSignerSpec{Key: &v1alpha1.KeySigner{}, Revoked: true}})
	add("clusterbpfpolicies", v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "front"}})
	add("bpfpolicies", v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: "own-pods", Namespace: "checkout"}, Spec: v1alpha1.BpfPolicySpec{Mode: "Audit"}})
	return s
}

// application is one of a cluster, as the API server stores it.
func application(id v1alpha1.Identity, i int) any {
	a := v1alpha1.ClusterBpfApplication{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: id.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: id.Name, Namespace: id.Namespace, UID: types.UID("uid-" + strconv.Itoa(i)), Generation: 3,
			Labels: map[string]string{"kustomize.toolkit.fluxcd.io/name": "bpf", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}}
	a.Spec.Bytecode.Image = "registry.example.com/bpf/" + id.Name + ":v2"
	a.Spec.Programs = []v1alpha1.Program{{Name: "on_packet", Attach: []v1alpha1.Attachment{{Hook: "tcx/ingress"}}}}
	s := &a.Status
	s.Digest, s.Serial, s.Policies = digest, 1, []string{"baseline", "front"}
	s.Signers = [][]string{{"release"}, {"ci"}, {"release", "ci"}}[i%3]
	s.Conditions = []metav1.Condition{
		when(v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed", "signed by "+strings.Join(s.Signers, ", ")),
		when(v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed", "allowed by baseline, front"),
		when(v1alpha1.ConditionDeployed, metav1.ConditionTrue, "Deployed", ""), when(v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded", ""),
	}
	switch i {
	case 3:
		s.Rollout = &v1alpha1.RolloutStatus{State: v1alpha1.RolloutStopped, Step: 2, Steps: 4, Nodes: 250, Message: "it failed on 111 nodes"}
		s.Conditions[2] = when(v1alpha1.ConditionDeployed, metav1.ConditionFalse, "Failed", "failed on 111 nodes")
		s.Conditions[3] = when(v1alpha1.ConditionReady, metav1.ConditionFalse, "Failed", "failed on 111 nodes")
	case 6:
		s.Conditions[1] = when(v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied",
			"front/priority at spec.programs[0].attach[0].priority: it asks for priority 10; places before 100 are for firewalls (give it a priority of 100 or more)")
		s.Conditions[3] = when(v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied", "front/priority")
	}
	return a
}

// startCluster serves a cluster, and opens its page, which runs the scripts first.
func startCluster(t testing.TB, s *apiServer, scripts ...string) *browser.Tab {
	t.Helper()
	return browser.Open(browser.Start(t), t, browser.UI(t, "--kubeconfig", serveCluster(t, s)), scripts...)
}

func TestAFleetOfAnySize(t *testing.T) {
	for _, nodes := range []int{1, 100, 1000} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			p := startCluster(t, fleetOf(t, nodes, min(200, 4*nodes+8)))
			p.View("#/fleet")
			p.Shows("[role=gridcell]", " on ip-10-0-0-")
			p.Shot(fmt.Sprintf("fleet-%d", nodes))
			p.View("#/applications")
			p.Shows(".detail h1", "-")
			p.Shot(fmt.Sprintf("applications-%d", nodes))
			p.View("#/nodes")
			p.Shows("h1", "ip-10-0-0-0")
			p.Shows("li.member", "guard_port")
			p.View("#/trust")
			p.Shows(".tile", "revoked")
			p.Shot(fmt.Sprintf("trust-%d", nodes))
			p.View("#/cost")
			p.Shows("table", "cil_from_netdev")
		})
	}
}

func TestTheArrowKeysMoveInTheFleet(t *testing.T) {
	p := startCluster(t, fleetOf(t, 100, 40))
	p.View("#/fleet")
	p.Shows("[role=gridcell]", " on ")
	browser.Evaluate[bool](p, `document.querySelector('[role=grid]').focus(); true`)
	at := func() string {
		return browser.Evaluate[string](p, `document.querySelector('[role=gridcell]').textContent`)
	}
	place := func() string {
		return browser.Evaluate[string](p, `(() => {
			const cell = document.querySelector('[role=gridcell]');
			return cell.parentElement.getAttribute('aria-rowindex') + ' ' + cell.getAttribute('aria-colindex');
		})()`)
	}
	first := at()
	p.Keys("ArrowRight", "ArrowRight", "ArrowDown")
	p.Holds("the focus moved", `document.querySelector('[role=gridcell]').getAttribute('aria-colindex') === '3'`)
	if got := place(); got != "2 3" || at() == first {
		t.Errorf("the focus is at %s, %q", got, at())
	}
	p.Keys("End")
	p.Holds("the focus is in the last column", `document.querySelector('[role=gridcell]').getAttribute('aria-colindex') === '100'`)
	p.Holds("it is seen", `document.querySelector('[role=grid]').scrollLeft > 100`)
	p.Shot("fleet-end")
	name, _, _ := strings.Cut(at(), " on ")
	p.Keys("Enter")
	p.Shows(".detail h1", name)
	p.View("#/fleet")
	p.Holds("the cell is chosen that was, and seen", `(() => {
		const cell = document.querySelector('[role=gridcell]');
		return cell.getAttribute('aria-colindex') === '100' && document.querySelector('[role=grid]').scrollLeft > 100 &&
			cell.textContent.startsWith(document.querySelector('.chosen-cell a').textContent + ' ');
	})()`)
	p.Size(320, 800, "light")
	p.Shot("fleet-narrow")
	p.Size(1280, 900, "dark")
	p.Shot("fleet-dark")
	browser.Evaluate[bool](p, `[...document.querySelectorAll('.toggle button')].find((b) => b.textContent === 'Small').click(); true`)
	p.Shot("fleet-small")
	browser.Evaluate[bool](p, `[...document.querySelectorAll('.toggle button')].find((b) => b.textContent === 'Table').click(); true`)
	p.Shows("table", "Failed")
	p.Shot("fleet-table")
}

func TestTheNodesOfAnApplicationAreAskedOnDemand(t *testing.T) {
	p := startCluster(t, fleetOf(t, 20, 10))
	p.View("#/applications/BpfApplication/payments/syscall-audit-03")
	p.Shows(".detail h1", "payments/syscall-audit-03")
	if got := browser.Evaluate[bool](p, `document.querySelector('.detail').textContent.includes('verifier rejects')`); !got {
		t.Error("what the nodes reported is not there")
	}
	browser.Evaluate[bool](p, `[...document.querySelectorAll('button')].find((b) => b.textContent === 'Ask its nodes').click(); true`)
	p.Shows(".detail pre", "R1 invalid mem access")
	p.Shows(".detail table", "eth0 in pod shop/checkout-7d9f")
	p.Shows(".detail", "There are more than these")
	p.Shot("application-nodes")
	// Another application cannot be asked, and says why.
	p.View("#/applications/ClusterBpfApplication/-/firewall-00")
	p.Shows(".detail h1", "firewall-00")
	browser.Evaluate[bool](p, `[...document.querySelectorAll('button')].find((b) => b.textContent === 'Ask its nodes').click(); true`)
	p.Shows(".detail .error", "no API view.skep.dev")
	// The browser says of each answer that is an error that it is one.
	p.Forgive("502")
}
