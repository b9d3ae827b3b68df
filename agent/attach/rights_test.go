package attach_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/drop"
)

func TestARefusedAttachmentNamesTheMissingCapability(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root and a kernel to load into")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for sentence, tc := range map[string]struct {
		lost   []int
		object string
		at     plan.Attachment
		want   string
	}{
		"a uprobe": {[]int{unix.CAP_SYS_ADMIN}, "uprobe_count",
			plan.Attachment{Hook: "uprobe", Target: plan.Target{Binary: self, Offset: 0x1000}}, "lacks CAP_SYS_ADMIN; grant it"},
		"a tracepoint": {[]int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON}, "tracepoint_count",
			plan.Attachment{Hook: "tracepoint", Target: plan.Target{Tracepoint: "syscalls/sys_enter_getpgid"}}, "lacks CAP_PERFMON; grant it"},
	} {
		t.Run(sentence, func(t *testing.T) {
			spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programs.Object(tc.object)))
			if err != nil {
				t.Fatal(err)
			}
			coll, err := ebpf.NewCollection(spec)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(coll.Close)
			r := attach.Request{Attachment: tc.at, Program: coll.Programs[tc.object]}
			try := func() error {
				l, err := attach.To(r)
				if err != nil {
					return err
				}
				return l.Close()
			}
			if err := try(); err != nil {
				t.Fatalf("with every right: %v", err)
			}
			drop.Capabilities(t, func() { err = try() }, tc.lost...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("To = %v, want %q", err, tc.want)
			}
		})
	}
}
