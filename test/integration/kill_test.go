package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/controlplane"
	"github.com/skep-dev/skep/test/programs"
)

// ownCluster is a cluster whose control plane may be killed.
func ownCluster(t *testing.T) *cluster {
	t.Helper()
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	return newClusterOn(t, plane)
}

// process is a part of the control plane: a binary, and the word of its command
// line that no other plane's has.
func (c *cluster) process(binary string) int {
	c.t.Helper()
	etcd := c.plane.Env.ControlPlane.Etcd.URL.String()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range all {
		line, err := os.ReadFile(name)
		command, _, _ := bytes.Cut(line, []byte{0})
		if err == nil && filepath.Base(string(command)) == binary && bytes.Contains(line, []byte(etcd)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	c.t.Fatalf("no %s runs", binary)
	return 0
}

// crash ends parts of the control plane as a power cut would, and returns what
// starts them again, the last one first.
func (c *cluster) crash(binaries ...string) (again func()) {
	c.t.Helper()
	var commands []*exec.Cmd
	for _, binary := range binaries {
		commands = append(commands, c.kill(c.process(binary)))
	}
	return func() {
		for _, cmd := range slices.Backward(commands) {
			if err := cmd.Start(); err != nil {
				c.t.Fatal(err)
			}
			c.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		}
		c.until(fmt.Sprintf("%v to answer", binaries), func() error {
			return c.List(c.t.Context(), &v1alpha1.ClusterBpfApplicationList{})
		})
	}
}

// kill ends a process, and returns the command that it was.
func (c *cluster) kill(pid int) *exec.Cmd {
	c.t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		c.t.Fatal(err)
	}
	var args []string
	for word := range bytes.SplitSeq(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
		args = append(args, string(word))
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		c.t.Fatal(err)
	}
	return exec.Command(args[0], args[1:]...)
}

// TestEachPartIsKilledInTurn kills what cluster mode rests on, one after the
// other. Programs stay, and a change made afterwards reaches every node.
func TestEachPartIsKilledInTurn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: making nodes and loading programs needs root")
	}
	c := ownCluster(t)
	elected := func(o *controller.Options) { o.LeaderElection = true }
	served, leader := c.serve(t.TempDir(), elected)
	c.create(c.Signer("team-a"))
	nodes := c.machines(buildAgent(t), served, 2)
	ref, _ := c.Push("count:v1", programs.Object("xdp_count"), "team-a")
	app := fleet(ref)
	c.create(app)
	c.summary(app, "2/2")
	stays := func(what string) {
		t.Helper()
		t.Log(what)
		for _, m := range nodes {
			m.counts()
		}
	}
	// converges makes a change and waits until every node has it.
	converges := func(priority int32) {
		t.Helper()
		serial := app.Status.Serial
		c.change(app, func() { app.Spec.Programs[0].Attach[0].Priority = &priority })
		c.until("a change to reach every node", func() error {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
				return err
			}
			if n := app.Status.Nodes; app.Status.Serial == serial || n == nil || n.Summary != "2/2" {
				return fmt.Errorf("serial %d, nodes %+v, conditions %v", app.Status.Serial, n, app.Status.Conditions)
			}
			return nil
		})
	}

	again := c.crash("kube-apiserver")
	stays("the API server is dead")
	nodes[0].kill()
	nodes[0].start()
	stays("the API server is dead, and an agent started anew")
	again()
	converges(101)

	again = c.crash("etcd")
	stays("etcd is dead")
	again()
	converges(102)

	c.Down.Store(true)
	stays("the registry is dead")
	nodes[1].kill()
	nodes[1].start()
	stays("the registry is dead, and an agent started anew")
	c.Down.Store(false)

	c.control(elected)
	leader()
	stays("the leader is gone")
	converges(103)

	if err := c.Delete(t.Context(), app); err != nil {
		t.Fatal(err)
	}
	for _, m := range nodes {
		c.until(m.name+" to be clean", func() error {
			if n := m.pins(); n != 0 {
				return fmt.Errorf("%d pins", n)
			}
			return nil
		})
	}
}
