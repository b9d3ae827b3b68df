package integration

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/demo/story"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// demoEnv has TestDemo tell what it does: make demo-cluster sets it.
const demoEnv = "SKEP_DEMO"

// show is three nodes and a story.
type show struct {
	story.Narrator
	*cluster
	nodes      []*machine
	kubeconfig string
	files      string
}

// TestDemo is the show of make demo-cluster: three nodes, from kubectl apply to
// counted packets and back to nothing. What it shows is tested by showing it.
func TestDemo(t *testing.T) {
	need.Kernel(t)
	s := &show{Narrator: story.Narrator{Out: io.Discard}, cluster: newCluster(t), files: t.TempDir()}
	if os.Getenv(demoEnv) != "" {
		info, err := os.Stdout.Stat()
		s.Out, s.Colour = os.Stdout, err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
	}
	webhook, admission := s.admission()
	served, _ := s.serve(t.TempDir(), admission)
	defer s.admits(webhook)()
	s.nodes, s.kubeconfig = s.machines(command.Build(t, "skep-agent"), served, 3), filepath.Join(s.files, "kubeconfig")
	if err := writeKubeconfig(s.plane.Config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}

	s.sets()
	first := s.applies()
	s.counted()
	s.refuses()
	s.stops(first)
	s.revokes()
}

// kubectl runs kubectl as you would, and shows it.
func (s *show) kubectl(args ...string) {
	s.t.Helper()
	out, err := s.types(args...)
	for line := range strings.Lines(out) {
		s.Say("%s", strings.TrimRight(line, " \n"))
	}
	if err != nil {
		s.t.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
}

// rejected is kubectl where the answer is to be no, of which all words are shown.
func (s *show) refused(words string, args ...string) {
	s.t.Helper()
	out, err := s.types(args...)
	if err == nil || !strings.Contains(out, "(Forbidden)") || !strings.Contains(out, words) {
		s.t.Fatalf("kubectl %v is not refused with %q: %v\n%s", args, words, err, out)
	}
	s.Bad("%s", strings.TrimSpace(out))
}

// types shows a command, and returns what kubectl writes.
func (s *show) types(args ...string) (string, error) {
	s.Say("%s", s.Paint(story.Bold, "$ kubectl "+typed(args)))
	cmd := exec.CommandContext(s.t.Context(), s.plane.Kubectl, append([]string{"--kubeconfig", s.kubeconfig}, args...)...)
	cmd.Dir = s.files
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// typed is how a person types arguments in a shell.
func typed(args []string) string {
	words := slices.Clone(args)
	for i, w := range words {
		if flag, value, found := strings.Cut(w, "="); found && strings.ContainsAny(value, `"{[`) {
			words[i] = flag + "='" + value + "'"
		}
	}
	return strings.Join(words, " ")
}

// file writes objects as YAML, and shows it.
func (s *show) file(name string, objects ...client.Object) {
	s.t.Helper()
	body := s.manifests(objects...)
	if err := os.WriteFile(filepath.Join(s.files, name), []byte(body), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.Quote(body)
}

func (s *show) sets() {
	s.Act("Three nodes on this kernel: each a network namespace, a BPF file system and an agent of its own",
		"Every node has a kernel to protect, and an agent that reports what runs there.")
	s.until("the nodes to report", func() error {
		var nodes v1alpha1.BpfNodeList
		if err := s.List(s.t.Context(), &nodes); err != nil || len(nodes.Items) < len(s.nodes) {
			return fmt.Errorf("%d nodes, %w", len(nodes.Items), err)
		}
		for _, n := range nodes.Items {
			if n.Status.Counts.Programs == 0 && n.Status.Counts.Unmanaged == 0 && n.Status.Kernel.Release == "" {
				return fmt.Errorf("%s has told nothing of its kernel", n.Name)
			}
		}
		return nil
	})
	s.kubectl("get", "nodes", "--output=custom-columns=NAME:.metadata.name,ROLE:.metadata.labels.role")
}

func (s *show) applies() *v1alpha1.ClusterBpfApplication {
	s.Act("An admin trusts a signer; a team applies a signed program",
		"A program on every node has as much power as root on every node.")
	s.file("signer.yaml", s.Signer("release"))
	s.kubectl("apply", "--filename=signer.yaml")
	image, _ := s.Push("counter:v1", programs.Object("xdp_count"), "release")
	app := fleet(image)
	app.Name = "counter"
	s.file("counter.yaml", app)
	s.until("the signer to count", func() error { return s.Create(s.t.Context(), app.DeepCopy(), client.DryRunAll) })
	s.kubectl("apply", "--filename=counter.yaml")
	if err := s.Get(s.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
		s.t.Fatal(err)
	}
	s.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	s.kubectl("get", "cbpfapp")
	s.kubectl("get", "bpfnodes")
	s.Good("validated, verified, inspected, allowed, loaded: on one node first, then on all")
	return app
}

func (s *show) counted() {
	s.Act("Real packets, counted in each node's kernel", "Ready has to mean that the program sees packets on every node.")
	for _, m := range s.nodes {
		before, _ := m.counted()
		m.counts()
		now, _ := m.counted()
		s.Good("%s: 100 packets sent, %d counted", m.name, now-before)
	}
}

func (s *show) refuses() {
	s.Act("A user applies an image that nobody signed", "One unsigned image would reach every node at once.")
	image, _ := s.Push("stray:v1", programs.Object("xdp_count"))
	app := fleet(image)
	app.Name = "stray"
	s.file("stray.yaml", app)
	s.refused("baseline/signed", "apply", "--filename=stray.yaml")
	if err := s.Get(s.t.Context(), client.ObjectKeyFromObject(app), app); !apierrors.IsNotFound(err) {
		s.t.Errorf("what was refused is stored: %v", err)
	}
	s.Say("%s", s.Paint(story.Faint, "the API server stored nothing, and no node was told of it"))
}

func (s *show) stops(app *v1alpha1.ClusterBpfApplication) {
	s.Act("A new version that the kernel's verifier rejects", "A bad version must stop at the first node and not reach the others.")
	image, _ := s.Push("counter:v2", programs.Object("xdp_rejected"), "release")
	patch := fmt.Sprintf(`{"spec":{"bytecode":{"image":%q},"programs":[{"name":"xdp_rejected","attach":[{"hook":"xdp","interfaces":{"names":["eth0"]}}]}]}}`,
		image)
	s.kubectl("patch", "cbpfapp", "counter", "--type=merge", "--patch="+patch)
	stopped := s.condition(app, v1alpha1.ConditionReady, metav1.ConditionFalse, "RolloutStopped")
	s.Bad("%s", stopped.Message)
	for _, m := range s.nodes {
		m.counts()
	}
	s.Good("all three nodes keep counting in the version before")
}

func (s *show) revokes() {
	s.Act("The key is stolen: the admin revokes it", "A thief can sign any program with it: its programs have to leave every node.")
	s.kubectl("patch", "bpfsigner", "release", "--type=merge", `--patch={"spec":{"revoked":true}}`)
	s.until("the programs to leave", func() error {
		if slices.ContainsFunc(s.nodes, func(m *machine) bool { return m.pins() > 0 }) {
			return errors.New("a node still has some")
		}
		return nil
	})
	for _, m := range s.nodes {
		s.Good("%s: no program, link or pin of Skep's is left", m.name)
	}
	s.kubectl("get", "cbpfapp", "counter")
	var nodes corev1.NodeList
	if err := s.List(s.t.Context(), &nodes); err != nil || len(nodes.Items) != len(s.nodes) {
		s.t.Errorf("%d nodes, %v", len(nodes.Items), err)
	}
}
