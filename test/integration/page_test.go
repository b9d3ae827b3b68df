package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/skep-dev/skep/test/harness/browser"
	"github.com/skep-dev/skep/test/harness/command"
)

// opens has a user open the page of kubectl skep ui, by a client certificate.
func (w *mapsWorld) opens(in context.Context, t *testing.T, as *rest.Config, args ...string) *browser.Tab {
	t.Helper()
	dir := t.TempDir()
	plugin, kubeconfig := filepath.Join(dir, "kubectl-skep"), filepath.Join(dir, "config")
	if err := os.Symlink(command.Build(t, "skep"), plugin); err != nil {
		t.Fatal(err)
	}
	if err := writeKubeconfig(as, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(plugin, append([]string{"ui"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	return browser.Open(in, t, browser.Address(t, cmd))
}

// page looks at the page of an administrator, and of a user with the role edit in team-a.
func (w *mapsWorld) page(t *testing.T, editor *rest.Config) {
	in := browser.Start(t)
	t.Run("the page of an administrator", func(t *testing.T) { w.pageOfAdmin(t, w.opens(in, t, w.plane.Config)) })
	t.Run("the page of an editor", func(t *testing.T) { w.pageOfTenant(t, w.opens(in, t, editor, "-n", "team-a")) })
	t.Run("the page of an editor who names no namespace", func(t *testing.T) {
		p := w.opens(in, t, editor)
		p.Shows("#notes", "list bpfapplications.skep.dev in every namespace")
		p.Shows("main", "kubectl skep ui -n NAMESPACE shows those of one namespace.")
		p.Shot("real-editor-default")
	})
}

// asksNodes presses the button that has the nodes of an application asked.
func asksNodes(p *browser.Tab) {
	browser.Evaluate[bool](p, `[...document.querySelectorAll('button')].find((b) => b.textContent === 'Ask its nodes').click(); true`)
}

// pageOfAdmin finds on it what the commands of a day print.
func (w *mapsWorld) pageOfAdmin(t *testing.T, p *browser.Tab) {
	// What fails is first.
	p.Shows(".detail h1", "reader")
	p.Shows(".pipeline", "Loaded on 0 of 1")
	asksNodes(p)
	p.Shows(".detail pre", "; return data[64] ? XDP_PASS : XDP_DROP;")
	p.Shot("real-application-failed")
	p.View("#/applications/ClusterBpfApplication/-/guard")
	p.Shows(".detail h1", "guard")
	for _, want := range []string{"Signed", "by team-a", "Allowed", "Loaded on 1 of 1"} {
		p.Shows(".pipeline", want)
	}
	asksNodes(p)
	p.Shows(".detail table", "1 of 2")
	p.Shot("real-application")
	p.View("#/fleet")
	p.Shows("[role=gridcell]", " on "+w.node.name+": Failed")
	p.Shot("real-fleet")
	p.View("#/nodes/" + w.node.name)
	p.Shows("li.member", "drop_port")
	p.Shows(".verdicts", "Drop 20")
	p.Shows("main", "syscalls/sys_enter_execve")
	p.Shows("main", "team-b/exec-snoop")
	p.Shot("real-node")
	p.View("#/trust")
	p.Shows(".tile", "signed 6 applications")
	p.Shot("real-trust")
	p.View("#/cost/" + w.node.name)
	p.Shows("table", "skep_xdp_chain")
	p.Shot("real-cost")
}

// pageOfTenant finds nothing of others on it, in any view and in no answer, and says which right is missing.
func (w *mapsWorld) pageOfTenant(t *testing.T, p *browser.Tab) {
	defer p.Forgive("502")
	p.Shows(".detail h1", "team-a/exec-snoop")
	p.Shows(".pipeline", "Loaded on 1 of 1")
	p.Shot("real-editor-application")
	asksNodes(p)
	p.Shows(".detail table", "tracepoint")
	all := []string{browser.Evaluate[string](p, `document.body.innerText`)}
	for hash, want := range map[string]string{
		"#/fleet":                "list bpfnodes",
		"#/trust":                "list bpfsigners",
		"#/nodes/" + w.node.name: "get nodeviews.view.skep.dev",
		"#/cost/" + w.node.name:  "get nodeviews.view.skep.dev",
		"#/nodes":                "list bpfnodes",
		"#/applications/ClusterBpfApplication/-/guard": "There is no application",
	} {
		p.View(hash)
		p.Shows("main", want)
		p.Shot("real-editor-" + strings.Trim(strings.NewReplacer("/", "-", "#", "", w.node.name, "x").Replace(hash), "-"))
		all = append(all, browser.Evaluate[string](p, `document.body.innerText`))
	}
	for _, path := range []string{"data/overview", "data/application?kind=BpfApplication&namespace=team-b&name=exec-snoop",
		"data/application?kind=ClusterBpfApplication&name=guard", "data/node?name=" + w.node.name} {
		all = append(all, browser.Evaluate[string](p, `fetch(`+strconv.Quote(path)+`).then((r) => r.text())`))
	}
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(all, "\n\n"))
		}
	}()
	// What was asked for is named in errors.
	text := strings.NewReplacer("no application guard", "", "/view guard", "").Replace(strings.Join(all, "\n"))
	for _, not := range []string{"guard", "meter", "reader", "drop_port", "count_packets", "data[64]"} {
		if strings.Contains(text, not) {
			t.Errorf("it has %q", not)
		}
	}
	if slices.ContainsFunc(all[:len(all)-3], func(s string) bool { return strings.Contains(s, "team-b") }) {
		t.Error("it names another team")
	}
}
