package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/need"
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

// pid is that of a part of the control plane: a binary, and the word of its command
// line that no other plane's has.
func (c *cluster) pid(binary string) int {
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
		cmd := c.kill(c.pid(binary))
		if end := c.supervised[binary]; end != nil {
			end()
		}
		commands = append(commands, cmd)
	}
	return func() {
		for i, cmd := range slices.Backward(commands) {
			c.supervised[binaries[i]] = c.supervise(cmd)
		}
		c.until(fmt.Sprintf("%v to answer", binaries), func() error {
			return c.List(c.t.Context(), &v1alpha1.ClusterBpfApplicationList{})
		})
	}
}

// supervise starts a command, and starts it again whenever it ends, until end is called or the test ends: on a busy machine
// an API server may give up before its etcd answers.
func (c *cluster) supervise(cmd *exec.Cmd) (end func()) {
	c.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			one := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
			said, err := one.CombinedOutput()
			if ctx.Err() == nil {
				c.t.Logf("%s ended, and is started again: %v: %s", filepath.Base(cmd.Path), err, said[max(0, len(said)-1024):])
			}
		}
	}()
	end = func() { stop(); <-ended }
	c.t.Cleanup(end)
	return end
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

// flow is packets that go to a machine all the time.
type flow struct {
	m      *machine
	before uint64
	sent   atomic.Uint64
	// pause is held while nothing is to be sent.
	pause sync.Mutex
}

// flows sends packets to the machine, which counts by now, until the test ends.
func (m *machine) flows() *flow {
	t := m.c.t
	t.Helper()
	f := &flow{m: m}
	f.before, _ = m.counted()
	from, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", m.hostAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer from.Close()
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
			f.pause.Lock()
			if _, err := from.WriteTo([]byte("packet"), &net.UDPAddr{IP: net.ParseIP(m.inside), Port: 9}); err == nil {
				f.sent.Add(1)
			}
			f.pause.Unlock()
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return f
}

// counted waits for a hundred packets more, and until all that were ever sent are
// counted. None follows meanwhile, which would stand for one that was missed.
func (f *flow) counted() {
	f.m.c.t.Helper()
	enough := f.sent.Load() + 100
	f.m.c.until(f.m.name+" to be sent packets", func() error {
		if n := f.sent.Load(); n < enough {
			return fmt.Errorf("%d of %d were", n, enough)
		}
		return nil
	})
	f.pause.Lock()
	defer f.pause.Unlock()
	sent := f.sent.Load()
	f.m.c.until(f.m.name+" to count", func() error {
		if now, counters := f.m.counted(); now < f.before+sent || counters != 1 {
			return fmt.Errorf("%d of %d packets counted by %d programs", now-f.before, sent, counters)
		}
		return nil
	})
}

// kernelHas lists what is in the kernel of an application: the ids of its
// programs, wherever they are loaded, and the machines' interfaces with an XDP
// program on them.
func (c *cluster) kernelHas(app client.Object, nodes []*machine) (programs []uint32, interfaces []string) {
	c.t.Helper()
	all, err := inventory.List(c.t.Context(), inventory.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, p := range all.Programs {
		// A chain says whose programs it holds by name alone.
		if p.Owner != nil && (p.Owner.UID == string(app.GetUID()) || slices.Contains(strings.Split(p.Owner.App, ","), app.GetName())) {
			programs = append(programs, p.ID)
		}
	}
	for _, m := range nodes {
		out, err := m.enter("ip", "-json", "-details", "link", "show", "dev", "eth0").Output()
		if err != nil {
			c.t.Fatal(err)
		}
		if bytes.Contains(out, []byte(`"xdp"`)) {
			interfaces = append(interfaces, m.name)
		}
	}
	return programs, interfaces
}

// turns is what is killed in turn, and what is to go on meanwhile.
type turns struct {
	*cluster
	pair  []*deployment.Replica
	nodes []*machine
	flows []*flow
	app   *v1alpha1.ClusterBpfApplication
	// image and digest are of the version that is asked for.
	image, digest string
}

// newTurns has an application run on three nodes under two controllers.
func newTurns(t *testing.T) *turns {
	s := &turns{cluster: ownCluster(t)}
	var served served
	s.pair, served = s.deploys()
	s.create(s.Signer("team-a"))
	s.nodes = s.machines(command.Build(t, "skep-agent"), served, 3)
	s.image, s.digest = s.Push("count:v1", programs.Object("xdp_count"), "team-a")
	s.app = fleet(s.image)
	// Others on this kernel may run a fleet too.
	s.app.Name = fmt.Sprintf("killed-%d", os.Getpid())
	s.app.Spec.Rollout = &v1alpha1.Rollout{Steps: []intstr.IntOrString{intstr.FromString("100%")}}
	s.create(s.app)
	s.runs(s.nodes...)
	for _, m := range s.nodes {
		s.flows = append(s.flows, m.flows())
	}
	s.counted("all is well")
	return s
}

// counted says what is dead, and holds each node to count what comes.
func (s *turns) counted(what string) {
	s.t.Helper()
	s.t.Log(what)
	for _, f := range s.flows {
		f.counted()
	}
}

// asks changes the definition.
func (s *turns) asks(edit func(*v1alpha1.BpfApplicationSpec)) {
	s.t.Helper()
	s.change(s.app, func() { edit(&s.app.Spec) })
}

// prefers is another definition of the same image.
func prefers(priority int32) func(*v1alpha1.BpfApplicationSpec) {
	return func(s *v1alpha1.BpfApplicationSpec) { s.Programs[0].Attach[0].Priority = &priority }
}

// sealed waits until the newest definition of an application is.
func (c *cluster) sealed(app *v1alpha1.ClusterBpfApplication) {
	c.t.Helper()
	c.until("the newest definition to be sealed", func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if app.Status.ObservedGeneration != app.Generation || !apimeta.IsStatusConditionTrue(app.Status.Conditions, v1alpha1.ConditionAllowed) {
			return fmt.Errorf("generation %d, observed %d, conditions %v", app.Generation, app.Status.ObservedGeneration, app.Status.Conditions)
		}
		return nil
	})
}

// runs waits until machines run what is asked for, and nothing else.
func (s *turns) runs(on ...*machine) {
	s.t.Helper()
	s.sealed(s.app)
	for _, m := range on {
		m.runs(s.app, s.digest)
	}
	if len(on) == len(s.nodes) {
		s.summary(s.app, "3/3")
	}
}

// killLeader kills the controller that leads, and an agent while nobody does.
func (s *turns) killLeader() {
	leads, other := s.leader(s.pair)
	dead := s.holder()
	leads.Kill()
	s.asks(prefers(101))
	s.nodes[0].kill()
	s.counted("the leader is dead, and an agent with it")
	s.nodes[0].start()
	if s.holder() != dead {
		s.t.Error("the leader gave its lease away before it died")
	}
	s.runs(s.nodes...)
	if now, _ := s.leader(s.pair); now != other || s.holder() == dead {
		s.t.Error("it was not the other controller that took over")
	}
	leads.Again()
	s.until("the dead controller to be back", leads.Ready)
}

// killAgent kills an agent, and asks for something that it cannot hear of.
func (s *turns) killAgent() {
	s.nodes[1].kill()
	s.asks(prefers(102))
	s.runs(s.nodes[0], s.nodes[2])
	s.counted("an agent is dead, and the others have what is new")
	s.nodes[1].start()
	s.runs(s.nodes...)
}

// killPlane kills one half of the control plane and then the other, and starts an
// agent that finds nobody.
func (s *turns) killPlane() {
	again := s.crash("etcd")
	s.counted("etcd is dead")
	again()
	s.asks(prefers(103))
	s.runs(s.nodes...)

	again = s.crash("kube-apiserver")
	s.nodes[2].kill()
	s.nodes[2].start()
	s.counted("the API server is dead, and an agent started anew")
	again()
	s.asks(prefers(104))
	s.runs(s.nodes...)
}

// killRegistry kills the registry. What was verified before is loaded all the same,
// and what was not is when it is back.
func (s *turns) killRegistry() {
	known, first := s.Registry+"/bpf/count@"+s.digest, s.digest
	second, newer := s.Push("count:v2", programs.Object("xdp_count_v2"), "team-a")
	again := s.Kill()
	s.asks(toImage(second))
	s.condition(s.app, v1alpha1.ConditionVerified, metav1.ConditionUnknown, lifecycle.ReasonEvaluationFailed)
	s.nodes[1].kill()
	s.nodes[1].start()
	s.counted("the registry is dead, and an agent started anew")
	s.asks(func(to *v1alpha1.BpfApplicationSpec) { toImage(known)(to); prefers(105)(to) })
	s.runs(s.nodes...)
	s.asks(toImage(second))
	s.condition(s.app, v1alpha1.ConditionVerified, metav1.ConditionUnknown, lifecycle.ReasonEvaluationFailed)
	if p := s.opened(s.app); p.ImageDigest != first {
		s.t.Errorf("sealed %s, which nobody could look at", p.ImageDigest)
	}
	again()
	s.digest = newer
	s.runs(s.nodes...)
}

// over deletes the application and waits until nothing of it is left.
func (s *turns) over() {
	if programs, interfaces := s.kernelHas(s.app, s.nodes); len(programs) < len(s.nodes) || len(interfaces) != len(s.nodes) {
		s.t.Fatalf("the kernel has programs %v, XDP on %v; what is left over would not be seen", programs, interfaces)
	}
	if err := s.Delete(s.t.Context(), s.app); err != nil {
		s.t.Fatal(err)
	}
	s.until("nothing to be left over", func() error {
		var intents v1alpha1.BpfIntentList
		if err := s.List(s.t.Context(), &intents); err != nil {
			return err
		}
		live, pins := 0, 0
		for _, i := range intents.Items {
			if !i.Spec.Tombstone {
				live++
			}
		}
		for _, m := range s.nodes {
			pins += m.pins()
		}
		programs, interfaces := s.kernelHas(s.app, s.nodes)
		if live+pins+len(programs)+len(interfaces) > 0 {
			return fmt.Errorf("%d live intents, %d pins, programs %v, XDP on %v", live, pins, programs, interfaces)
		}
		return nil
	})
}

// TestEachPartIsKilledInTurn kills what cluster mode rests on, one after the
// other, as a power cut does. Every node counts every packet meanwhile, and what
// is asked for while a part is dead is there once it is back.
func TestEachPartIsKilledInTurn(t *testing.T) {
	need.Kernel(t)
	s := newTurns(t)
	s.killLeader()
	s.killAgent()
	s.killPlane()
	s.killRegistry()
	s.counted("all is well again")
	s.over()
}
