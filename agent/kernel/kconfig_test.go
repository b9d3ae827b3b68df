package kernel

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/programs"
)

const (
	version = "LINUX_KERNEL_VERSION"
	present = "CONFIG_BPF_SYSCALL"
	lacking = "CONFIG_OF_NO_KERNEL"
	xdpTx   = 3
)

func TestProgramsReadTheKernelsConfiguration(t *testing.T) {
	store(t)
	for sentence, c := range map[string]struct {
		weak []string
		// want is what the program returns, or a part of the error.
		want   uint32
		refuse string
	}{
		"a weak option that the kernel lacks is zero":   {weak: []string{lacking}, want: xdpTx},
		"a weak option that the kernel has is set":      {weak: []string{present, lacking}, want: xdpTx},
		"a weak version is the kernel's":                {weak: []string{version, lacking}, want: xdpTx},
		"an option that the kernel lacks is no default": {refuse: lacking},
	} {
		t.Run(sentence, func(t *testing.T) {
			p, err := Prepare(opened(t, intent.Payload{Programs: program("reads_config", "xdp", "")}), programs.Weak(programs.Object("xdp_kconfig"), c.weak...))
			if err != nil {
				t.Fatal(err)
			}
			coll, err := ebpf.NewCollection(p.Spec)
			if c.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), c.refuse) {
					t.Fatalf("loading = %v, want an error with %s", err, c.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer coll.Close()
			got, err := coll.Programs["reads_config"].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
			if err != nil || got != c.want {
				t.Errorf("the program returns %d, %v, want %d", got, err, c.want)
			}
		})
	}
}

func TestASectionThatSaysNothingIsVerifiedAsTheHooksType(t *testing.T) {
	s, _ := store(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("unspecified", "xdp", "")}), programs.Object("plain_sections"))
	if err != nil {
		t.Fatal(err)
	}
	if got := load(t, s, p, nil).Programs["unspecified"].Type(); got != ebpf.XDP {
		t.Errorf("the kernel has it as %s", got)
	}
}
