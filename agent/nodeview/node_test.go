package nodeview_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/golden"
	"github.com/skep-dev/skep/test/harness/need"
)

// node is a node with something of each: an XDP chain of two, a program at TCX behind one of another tool, one in a pod, one that the
// verifier rejects, and one whose object does not come.
func node(t *testing.T) (*world.World, *nodeview.Viewer) {
	t.Helper()
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	world.Quiet(t)
	w := world.New(t)
	world.Veth(t, "cn0", "cn1")
	pods := world.NewRuntime(t)
	o := w.Options()
	o.Containers = pods.Source
	// The rejected one is not tried again.
	o.BackOff = agent.BackOff{First: time.Hour, Most: time.Hour}
	late := world.Member(w, "late", "xdp_count_v2", "count_packets", 900)
	fetch := o.Fetch
	o.Fetch = func(ctx context.Context, digest string) ([]byte, error) {
		if digest == late.ObjectDigest {
			<-ctx.Done()
		}
		return fetch(ctx, digest)
	}
	a := w.StartWith(o)
	pods.Start("team-a", "web", "app", nil).Connected("pd0")

	foreign := world.ForeignProgram(t, ebpf.SchedCLS)
	l, err := link.AttachTCX(link.TCXOptions{Program: foreign, Interface: world.Index(t, "cn0"), Attach: ebpf.AttachTCXIngress})
	world.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	probed := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
	leaving := world.OfTeam(w, "team-a", "tcx_count", "count_egress", v1alpha1.Attachment{Hook: "tcx/egress", Pods: &v1alpha1.Pods{},
		Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}})
	traffic := world.Version(w, "7", world.On("tcx/ingress", "cn0")[0])
	w.Must(a, world.Member(w, "a", "xdp_count", "count_packets", 500), world.Member(w, "b", "xdp_pass", "xdp_pass", 600), probed, leaving, traffic)
	w.Give(a, world.Member(w, "rejected", "xdp_rejected", "xdp_rejected", 100), late)
	world.Send(t, "cn1", 10)

	of := inventory.Of(w.BPFFS)
	v := nodeview.New(nodeview.Options{Node: "n1", Info: v1alpha1.AgentInfo{Version: "v1"}, Kernel: v1alpha1.KernelProfile{Release: "6"},
		Status: a.Status, Look: a.Look, Inventory: func(ctx context.Context) (inventory.Inventory, error) { return inventory.List(ctx, of) },
		Cost: func() map[uint32]view.Cost {
			return map[uint32]view.Cost{world.StatusOf(a, "a").Programs[0].ID: {Runs: 10, Nanoseconds: 100, WindowSeconds: 1}}
		}})
	return w, v
}

// see waits until a description shows what the node comes to.
func see(t *testing.T, v *nodeview.Viewer, scope view.Scope) (n view.NodeView) {
	t.Helper()
	world.Until(t, "the node to be described", time.Minute, func() bool {
		var err error
		n, err = v.View(t.Context(), scope)
		world.Must(t, err)
		return isDone(n)
	})
	return n
}

func isDone(n view.NodeView) bool {
	body, _ := json.Marshal(n)
	is := string(body)
	hasRun := !strings.Contains(is, `"xdp"`) || strings.Contains(is, `"runs":10`)
	return hasRun && (n.Others != nil || strings.Contains(is, "verifierLog") && len(n.Loads) == 1 && strings.Contains(is, `"state":"Failed"`))
}

func TestANodeIsDescribed(t *testing.T) {
	w, v := node(t)
	see(t, v, view.Scope{})
	for name, scope := range map[string]view.Scope{"whole": {}, "team": {Kind: v1alpha1.KindBpfApplication, Namespace: "team-a"},
		"application": {Kind: v1alpha1.KindClusterBpfApplication, Name: "a"}} {
		n := settle(t, see(t, v, scope))
		body, err := json.MarshalIndent(n, "", "  ")
		world.Must(t, err)
		golden.File(t, "testdata/"+name+".json", plain(w, string(body))+"\n", "write it by go test ./agent/nodeview -run TestANodeIsDescribed -update")
	}
}

// settle puts in order, and takes away, what differs from run to run.
func settle(t *testing.T, n view.NodeView) view.NodeView {
	t.Helper()
	n.Programs = slices.DeleteFunc(slices.Clone(n.Programs), func(p view.Program) bool {
		// Others of this machine.
		return p.Application == nil && p.Name != "foreign" && !slices.ContainsFunc(n.Interfaces, func(i view.Interface) bool { return i.ProgramID == p.ID })
	})
	slices.SortFunc(n.Programs, func(a, b view.Program) int { return strings.Compare(a.Name, b.Name) })
	for i, p := range n.Programs {
		if p.MemoryBytes == 0 || p.JITBytes == 0 || (p.Name == "foreign") != (len(p.Holders) > 0) {
			t.Errorf("program %+v", p)
		}
		n.Programs[i].MemoryBytes, n.Programs[i].JITBytes, n.Programs[i].Holders = 0, 0, nil
	}
	if n.Others != nil {
		if n.Others.Programs == 0 {
			t.Error("no program is counted as another's")
		}
		n.Others = &view.Others{Applications: n.Others.Applications}
	}
	return n
}

// plain replaces numbers of the kernel by their order, times, digests and logs.
func plain(w *world.World, s string) string {
	seen := map[string]string{}
	s = regexp.MustCompile(`"(programId|linkId|ifindex|networkNamespace|id|serial|version)": \d+`).ReplaceAllStringFunc(s, func(hit string) string {
		key, number, _ := strings.Cut(hit, ": ")
		kind := map[string]string{`"programId"`: "program", `"id"`: "program", `"linkId"`: "link", `"ifindex"`: "interface",
			`"networkNamespace"`: "namespace"}[key]
		if kind == "" {
			kind = "serial"
		}
		if seen[kind+number] == "" {
			seen[kind+number] = fmt.Sprintf("%s %d", kind, len(seen)+1)
		}
		return fmt.Sprintf("%s: %q", key, seen[kind+number])
	})
	for pattern, to := range map[string]string{
		`"\d{4}-\d\d-\d\dT[0-9:]+Z"`: `"TIME"`, `\(id \d+\)`: "(id N)", `"verifierLog": "[^"]+"`: `"verifierLog": "LOG"`,
		`"tag": "[0-9a-f]+"`: `"tag": "TAG"`,
	} {
		s = regexp.MustCompile(pattern).ReplaceAllString(s, to)
	}
	return strings.ReplaceAll(s, w.BPFFS, "BPFFS")
}
