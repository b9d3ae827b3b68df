package loader

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/drop"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestARefusedLoadNamesTheMissingCapability(t *testing.T) {
	for sentence, tc := range map[string]struct {
		lost         []int
		object, hook string
		want         string
	}{
		"a map without CAP_BPF":                 {[]int{unix.CAP_BPF, unix.CAP_SYS_ADMIN}, "xdp_count", "xdp", "lacks CAP_BPF; grant it"},
		"a tracing program without its right":   {[]int{unix.CAP_PERFMON, unix.CAP_SYS_ADMIN}, "raw_tp_count", "raw_tp", "lacks CAP_PERFMON; grant it"},
		"a network program without its right":   {[]int{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}, "xdp_pass", "xdp", "lacks CAP_NET_ADMIN; grant it"},
		"with CAP_SYS_ADMIN for all the others": {[]int{unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}, "xdp_count", "xdp", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			need.Kernel(t)
			name := map[string]string{"xdp_count": "count_packets"}[tc.object]
			if name == "" {
				name = tc.object
			}
			p, err := Prepare(opened(t, intent.Payload{Programs: program(name, tc.hook, "sys_enter")}), programs.Object(tc.object))
			if err != nil {
				t.Fatal(err)
			}
			// The library remembers what it finds out about the kernel.
			load(t, p, nil)
			drop.Capabilities(t, func() {
				var r *Revision
				if r, _, err = Load(p, nil, nil, nil); err == nil {
					t.Cleanup(func() { _ = r.Close() })
				}
			}, tc.lost...)
			if tc.want == "" {
				if err != nil {
					t.Errorf("Load = %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "MEMLOCK") || !strings.Contains(err.Error(), "load net/app: ") {
				t.Errorf("Load = %v, want %q", err, tc.want)
			}
			if !errors.Is(err, unix.EPERM) {
				t.Errorf("%v does not wrap its cause", err)
			}
		})
	}
}
