package agent_test

import (
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/pods/containers"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/tasks"
)

// BenchmarkPods attaches a program in many pods: to a cgroup each, and to one file that all
// share. It reports how long that takes and the agent's heap, and measures what follows at rest:
// a full reconcile, the change of a pod that is chosen, and that of another one.
func BenchmarkPods(b *testing.B) {
	for _, hook := range []string{"cgroup_skb/egress", "uprobe"} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/pods=%d", hook, n), func(b *testing.B) {
				w, r := world.New(b), world.NewRuntime(b)
				first := r.Start("team-a", "web", "app", nil)
				andOthers(first, n-1)
				o := w.Options()
				o.Log, o.Containers, o.SweepInterval = slog.New(slog.NewTextHandler(io.Discard, nil)), r.Source, time.Hour
				a, err := agent.New(o)
				if err != nil {
					b.Fatal(err)
				}
				a.HintsAtOnce()
				b.Cleanup(func() { _ = a.Close() })
				before := heap()
				p := world.OfTeam(w, "team-a", "uprobe_count", "uprobe_count", world.InPods(v1alpha1.Pods{}))
				places := 1
				if hook != "uprobe" {
					p, places = world.OfTeam(w, "team-a", "cgroup_skb", "cgroup_egress", v1alpha1.Attachment{Hook: hook, Pods: &v1alpha1.Pods{}}), n
				}
				w.Give(a, p)
				began := time.Now()
				for world.LinkPins(w, p.UID) < places {
					a.Reconcile(b.Context())
				}
				attached, used := time.Since(began), heap()-before
				b.Run("full", func(b *testing.B) {
					for b.Loop() {
						a.Reconcile(b.Context())
					}
					b.ReportMetric(float64(attached.Milliseconds()), "attach-ms")
					b.ReportMetric(float64(used)/1024, "heap-KiB")
				})
				for what, changed := range map[string]containers.Pod{"chosen": first.Pod, "other": {Namespace: "team-b", Name: "web", SandboxID: "other"}} {
					b.Run(what, func(b *testing.B) {
						for a.Lookups() > 0 || a.ReconcileIfWoken(b.Context()) {
							continue
						}
						for b.Loop() {
							r.Wake(changed)
							a.ReconcileIfWoken(b.Context())
						}
					})
				}
			})
		}
	}
}

// andOthers has the pod run n times more, each in a cgroup of its own with no process.
func andOthers(p *world.Pod, n int) {
	p.R.T.Helper()
	for i := range n {
		pod := p.Container
		cgroup := tasks.Cgroup(p.R.T, filepath.Join(p.R.Root, fmt.Sprintf("bench-%d-%d", time.Now().UnixNano(), i)))
		pod.ID, pod.Pod.UID, pod.Pod.SandboxID, pod.Pod.Name = fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint(i), fmt.Sprint("web-", i)
		pod.CgroupPath, pod.CgroupID = p.R.Below(cgroup), world.Inode(p.R.T, cgroup)
		pod.Pod.CgroupPath, pod.Pod.CgroupID = pod.CgroupPath, pod.CgroupID
		p.R.All[pod.ID] = pod
	}
}

// heap is what is in use of it.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
