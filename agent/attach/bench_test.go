package attach_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/program/functions"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// BenchmarkManyFunctions attaches one program to functions of the kernel by a link for each,
// and by one link for all, one after the other.
func BenchmarkManyFunctions(b *testing.B) {
	for _, name := range []string{"kprobe", "kprobe.multi"} {
		if h, ok := hook.Lookup(name); !ok || attach.Probe(h) != nil {
			b.Skipf("SKIPPED: this kernel has no %s", name)
		}
	}
	limit := int32(v1alpha1.MaxFunctions)
	chosen, err := functions.New().Choose(&v1alpha1.Functions{Names: []string{"vfs_*", "tcp_*", "ip_*", "ip6_*", "udp_*"}, Limit: &limit})
	if err != nil {
		b.Fatal(err)
	}
	program := func(kind ebpf.AttachType) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, AttachType: kind, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = p.Close() })
		return p
	}
	single, multi := program(ebpf.AttachNone), program(ebpf.AttachTraceKprobeMulti)
	for _, n := range []int{2, 50, 500} {
		b.Run(fmt.Sprintf("%d functions", n), func(b *testing.B) {
			if len(chosen.Names) < n {
				b.Skipf("SKIPPED: the kernel has %d such functions", len(chosen.Names))
			}
			var each, atOnce time.Duration
			for b.Loop() {
				each += timeLinks(b, func() (links []link.Link, err error) {
					for _, name := range chosen.Names[:n] {
						l, err := link.Kprobe(name, single, nil)
						if err != nil {
							return links, err
						}
						links = append(links, l)
					}
					return links, nil
				})
				atOnce += timeLinks(b, func() ([]link.Link, error) {
					l, err := link.KprobeMulti(multi, link.KprobeMultiOptions{Symbols: chosen.Names[:n]})
					return []link.Link{l}, err
				})
			}
			b.ReportMetric(float64(each.Microseconds())/float64(b.N), "each-µs/op")
			b.ReportMetric(float64(atOnce.Microseconds())/float64(b.N), "at-once-µs/op")
			b.ReportMetric(float64(each)/float64(atOnce), "ratio")
		})
	}
}

// timeLinks tells how long it takes to make links and to close them.
func timeLinks(b *testing.B, attach func() ([]link.Link, error)) time.Duration {
	b.Helper()
	began := time.Now()
	links, err := attach()
	if err != nil {
		b.Fatal(err)
	}
	for _, l := range links {
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}
