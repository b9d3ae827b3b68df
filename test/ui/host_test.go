package ui_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/browser"
	"github.com/skep-dev/skep/test/harness/module"
)

// socket is a host's, which says what a test has it say.
type socket struct {
	status atomic.Pointer[nodemode.Status]
	node   atomic.Pointer[view.NodeView]
	// held has requests wait until it is unlocked.
	held sync.RWMutex
}

// put has the socket say something else.
func (s *socket) put(status *nodemode.Status, node *view.NodeView) {
	s.status.Store(status)
	s.node.Store(node)
}

// serveSocket serves a host's socket, and returns its state folder.
func serveSocket(t testing.TB, s *socket) string {
	t.Helper()
	dir := t.TempDir()
	var c net.ListenConfig
	l, err := c.Listen(t.Context(), "unix", filepath.Join(dir, nodemode.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	answer := func(read func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			s.held.RLock()
			defer s.held.RUnlock()
			_ = json.NewEncoder(w).Encode(read())
		}
	}
	mux.HandleFunc("GET /v1/status", answer(func() any { return s.status.Load() }))
	mux.HandleFunc("GET /v1/node", answer(func() any { return s.node.Load() }))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Shutdown(context.Background()) })
	return dir
}

var began = metav1.NewTime(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))

// when is a condition.
func when(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: began}
}

// cluster is a ClusterBpfApplication.
func cluster(name string) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: name}
}

const digest = "sha256:527ac5208b3149c7e2ec66f6ca31d0c2e56a5a38b1b8c3a6c4f23b5cf06e2d11"

// allowed is an application of a host that runs.
func allowed(name string, programs ...agent.ProgramStatus) nodemode.Application {
	deployed := when(v1alpha1.ConditionDeployed, metav1.ConditionTrue, "Deployed", "")
	return nodemode.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: name, Source: "definitions/" + name + ".cue",
		Image: "registry.example.com/bpf/" + name + ":v1", Digest: digest, Signers: []string{"release"},
		Reasons: []policies.Reason{}, Warnings: []policies.Reason{}, Audited: []policies.Reason{}, Programs: programs,
		Conditions: []metav1.Condition{
			when(v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed", "signed by release"),
			when(v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed", "allowed by baseline, front"), deployed,
			when(v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded", "loaded and attached as defined"),
		},
		Agent: &agent.ApplicationStatus{Application: cluster(name), Conditions: []metav1.Condition{deployed}, Revision: "1", Programs: programs}}
}

// denied is an application of a host that a policy denies.
func denied(name string) nodemode.Application {
	return nodemode.Application{Kind: v1alpha1.KindClusterBpfApplication, Name: name, Source: "definitions/" + name + ".cue",
		Image: "registry.example.com/bpf/" + name + ":v1", Digest: digest, Signers: []string{"release"},
		Reasons: []policies.Reason{{Rule: "front/priority", Path: "spec.programs[0].attach[0].priority",
			Message: name + " asks for priority 10; places before 100 are for firewalls", Fix: "give it a priority of 100 or more"}},
		Warnings: []policies.Reason{{Rule: "resolve/tag", Path: "spec.bytecode.image", Message: "the tag stands for another image", Fix: "change the definition"}},
		Audited:  []policies.Reason{}, Programs: []agent.ProgramStatus{},
		Conditions: []metav1.Condition{
			when(v1alpha1.ConditionVerified, metav1.ConditionTrue, "Signed", "signed by release"),
			when(v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied", "front/priority: …"),
			when(v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied", "front/priority: …"),
		}}
}

// oneHost is a host with what a person may meet there.
func oneHost(t testing.TB) (nodemode.Status, view.NodeView) {
	t.Helper()
	links := func(hook, target string) []agent.LinkStatus {
		return []agent.LinkStatus{{Hook: hook, Target: target, State: agent.Attached, ID: 7}}
	}
	s := nodemode.Status{Source: nodemode.SourceStatus{Address: "https://git.example.com/definitions", Revision: "527ac5208b3149c7e2ec66f6ca31d0c2e56a5a38"},
		Problems: nil, Synced: began.Time,
		Applications: []nodemode.Application{
			allowed("counter", agent.ProgramStatus{Name: "count_packets", ID: 101, Links: links("xdp", "eth0")}),
			denied("first"),
			allowed("guard", agent.ProgramStatus{Name: "guard_port", ID: 102, Links: links("xdp", "eth0")}),
			allowed("opens", agent.ProgramStatus{Name: "on_open", ID: 103, Links: links("tracepoint", "syscalls/sys_enter_openat")}),
		}}
	return s, nodeView(t, "web-1", 1_204_331)
}

// aNode has programs on interfaces, in a pod and at a tracepoint, Skep's and others'.
//
//go:embed testdata/node.json
var aNode []byte

// nodeView is a node whose first program on eth0 ran so often, and dropped each fifth packet.
func nodeView(t testing.TB, name string, runs uint64) view.NodeView {
	t.Helper()
	var n view.NodeView
	if err := json.Unmarshal(aNode, &n); err != nil {
		t.Fatal(err)
	}
	n.Name, n.Observed = name, metav1.Now()
	dropped, passed := runs/5, runs-runs/5
	members := n.Interfaces[0].Members
	members[0].Runs, members[0].Verdicts = &runs, map[string]uint64{"Pass": passed, "Drop": dropped}
	members[1].Runs, members[1].Verdicts = &passed, map[string]uint64{"Pass": passed}
	for i := range n.Programs {
		if cost := n.Programs[i].Cost; cost != nil {
			cost.Measured = n.Observed
		}
	}
	return n
}

// startHost serves a host, and opens its page, which runs the scripts first.
func startHost(t testing.TB, scripts ...string) (*socket, *browser.Tab) {
	t.Helper()
	s := &socket{}
	status, node := oneHost(t)
	s.status.Store(&status)
	s.node.Store(&node)
	return s, browser.Open(browser.Start(t), t, browser.UI(t, "--state", serveSocket(t, s)), scripts...)
}

func TestANodeShowsWhatAPacketMeetsAndCountsGoUp(t *testing.T) {
	s, p := startHost(t)
	p.View("#/nodes/web-1")
	p.Shows("li.member", "guard_port")
	p.Shows("li.member .runs", "1,204,331")
	more := nodeView(t, "web-1", 1_204_931)
	s.node.Store(&more)
	p.Shows("li.member .runs", "1,204,931")
	p.Shows("li.member .moving", "/s")
	p.Shot("node-light")
	p.Size(1280, 900, "dark")
	p.Shot("node-dark")
	p.Size(360, 800, "light")
	p.Shot("node-narrow")
}

func TestAnApplicationShowsItsWay(t *testing.T) {
	_, p := startHost(t)
	p.Shows(".detail h1", "first")
	p.Shows(".pipeline", "Denied")
	p.Shows(".pipeline", "firewalls")
	p.Shows(".pipeline", "give it a priority")
	p.Shows(".reasons", "give it a priority of 100 or more")
	p.Shot("application-denied")
	p.Size(1280, 900, "dark")
	p.View("#/applications/ClusterBpfApplication/-/guard")
	p.Shows(".detail h1", "guard")
	p.Shot("application-dark")
	p.Size(360, 800, "light")
	p.Shot("application-narrow")
}

func TestTheOtherViewsOfAHost(t *testing.T) {
	s, p := startHost(t)
	p.View("#/fleet")
	p.Shows("[role=grid]", "counter on")
	p.Shot("fleet-host")
	p.View("#/trust")
	p.Shows(".tile", "signed 4 applications")
	p.Shot("trust-host")
	p.View("#/cost")
	p.Shows("table", "cil_from_netdev")
	for i := range 4 {
		// Windows of the next minute.
		n := nodeView(t, "web-1", 1)
		for j := range n.Programs {
			if cost := n.Programs[j].Cost; cost != nil {
				cost.Measured = metav1.NewTime(n.Observed.Add(time.Duration(i+1) * 15 * time.Second))
				cost.Nanoseconds += cost.Nanoseconds * uint64((i*3+j*2)%5) / 8
			}
		}
		s.node.Store(&n)
		p.Holds("the window is in the plot", fmt.Sprintf(`document.querySelector('.plot path.series-0').getAttribute('d').split('L').length === %d`, i+2))
	}
	p.Shot("cost-host")
	p.Size(1280, 900, "dark")
	p.Shot("cost-host-dark")
	p.Size(320, 800, "light")
	p.Holds("the plot fits", `document.querySelector('.plot svg').getBoundingClientRect().width <= 320`)
	p.Shot("cost-narrow")
}

// maxPicture is how many bytes a picture of the documentation has at most.
const maxPicture = 150 << 10

// TestPicturesOfThePage makes those of the documentation, if SKEP_UPDATE is set, and looks whether they are there and small: fonts of
// machines differ.
func TestPicturesOfThePage(t *testing.T) {
	pictures := map[string]string{"ui-node.png": "#/nodes/web-1", "ui-application.png": "#/applications", "ui-fleet.png": "#/fleet"}
	dir := filepath.Join(module.Root(), "docs/images")
	if os.Getenv("SKEP_UPDATE") != "" {
		s, host := startHost(t)
		host.Size(1120, 780, "light")
		host.View(pictures["ui-node.png"])
		host.Shows("li.member .runs", "1,204,331")
		more := nodeView(t, "web-1", 1_208_731)
		s.node.Store(&more)
		host.Shows("li.member .moving", "/s")
		host.Picture(filepath.Join(dir, "ui-node.png"))
		cluster := startCluster(t, fleetOf(t, 100, 40))
		cluster.Size(1120, 640, "light")
		for _, name := range []string{"ui-application.png", "ui-fleet.png"} {
			cluster.View(pictures[name])
			cluster.Shows("h1", map[bool]string{true: "Fleet", false: "xdp-counter-06"}[name == "ui-fleet.png"])
			cluster.Picture(filepath.Join(dir, name))
		}
	}
	for name := range pictures {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Size() > maxPicture {
			t.Errorf("%s: %v, or it has more than %d bytes; make ui-pictures makes it", name, err, maxPicture)
		}
	}
}
