package integration

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/fixture/gitrepo"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/page"
)

// walk is a reader of docs/gitops.md.
type walk struct {
	*gitops
	page.Reader
	// here has the test's addresses in the place of the page's.
	here *strings.Replacer
	// look is the page's command that has Flux look at the repository; empty before the page shows it.
	look page.Step
}

// newWalk is a reader with an empty git repository and an empty home, of a cluster that renders CueArtifacts.
func newWalk(t *testing.T, g *gitops) *walk {
	t.Helper()
	w := &walk{gitops: g}
	roles, err := deployment.Chart{Namespace: "default"}.Render("roles.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range roles {
		w.create(o)
	}
	for _, m := range w.nodes {
		m.inNode("ip", "route", "add", "default", "via", m.hostAddress)
	}
	root := t.TempDir()
	gitrepo.Bare(t, filepath.Join(root, "team", "programs"))
	server := httptest.NewServer(gitrepo.Handler(t, root))
	t.Cleanup(server.Close)
	w.here = strings.NewReplacer("registry.example.com/team", w.Registry+"/team", "https://git.example.com", server.URL)
	w.Home = t.TempDir()
	w.Env = []string{
		"KUBECONFIG=" + filepath.Join(w.Home, "kubeconfig"),
		"PATH=" + strings.Join([]string{filepath.Dir(w.plane.Kubectl), filepath.Dir(command.Build(t, "skep")), os.Getenv("PATH")}, ":"),
		"GIT_AUTHOR_NAME=Dev", "GIT_AUTHOR_EMAIL=dev@example.com", "GIT_COMMITTER_NAME=Dev", "GIT_COMMITTER_EMAIL=dev@example.com",
		// A proxy of the machine's does not know the test's addresses.
		"NO_PROXY=*", "no_proxy=*",
	}
	if err := writeKubeconfig(w.plane.Config, filepath.Join(w.Home, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	return w
}

// reads does what a page says between two headings, and before each step what is for it.
func (w *walk) reads(name, from, to string, before func(page.Step)) {
	w.t.Helper()
	for _, s := range page.Steps(w.t, w.here.Replace(page.Read(w.t, name)), from, to) {
		if before != nil {
			before(s)
		}
		w.Do(w.t, s)
		switch {
		case strings.Contains(s.Command, "reconcile.fluxcd.io/requestedAt"):
			// Two commits may come in one second here.
			w.look = page.Step{Command: strings.Replace(s.Command, "date +%s", "git rev-parse HEAD", 1), Shown: s.Shown}
		case strings.Contains(s.Command, "git push") && w.look.Command != "":
			w.Do(w.t, w.look)
		}
	}
}

// all does what docs/gitops.md says, from an empty repository to programs in the kernels of all nodes, and compares
// what it shows. Agents are away while it shows what is not Ready.
func (w *walk) all() {
	w.t.Helper()
	w.At = module.Root()
	w.reads("getting-started-cluster.md", "## 2. Pack and sign", "## 3. Run it on every node", nil)
	w.At = w.Home
	for _, m := range w.nodes {
		m.kill()
	}
	w.reads("gitops.md", "## 1. The repository", "## 3. A denied commit, and a deletion", func(s page.Step) {
		if strings.HasPrefix(s.Command, "kubectl wait") {
			for _, m := range w.nodes {
				m.start()
			}
		}
	})
	w.count()
	w.reads("gitops.md", "## 3. A denied commit, and a deletion", "## 4. CUE", nil)
	w.clean()
	w.reads("gitops.md", "## 4. CUE", "## Without Flux", nil)
	w.count()
}

// count has every node count packets.
func (w *walk) count() {
	w.t.Helper()
	for _, m := range w.nodes {
		m.counts()
	}
}
