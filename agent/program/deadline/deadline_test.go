package deadline

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/harness/need"
)

// long is a program that the verifier walks for a second or more: 1,000,000 instructions that it has not seen before.
func long(turns int32) *ebpf.ProgramSpec {
	insns := asm.Instructions{asm.Mov.Imm(asm.R6, 0)}
	for i := range 400 {
		insn := asm.Add.Imm(asm.R6, 1)
		if i == 0 {
			insn = insn.WithSymbol("turn")
		}
		insns = append(insns, insn)
	}
	return &ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "GPL",
		Instructions: append(insns, asm.JLT.Imm(asm.R6, turns*400, "turn"), asm.Mov.Imm(asm.R0, 0), asm.Return())}
}

func load(spec *ebpf.ProgramSpec) error {
	program, err := ebpf.NewProgram(spec)
	if err == nil {
		return program.Close()
	}
	return err
}

func TestALongLoadEnds(t *testing.T) {
	need.Kernel(t)
	var first, second error
	began := time.Now()
	isOver, err := Within(20*time.Millisecond, func() { first, second = load(long(2400)), load(long(1)) })
	t.Logf("after %s: %v", time.Since(began), first)
	if err != nil || !isOver {
		t.Errorf("Within = %v, %v, want it to be over", isOver, err)
	}
	for _, err := range []error{first, second} {
		if !errors.Is(err, unix.ETIME) {
			t.Errorf("a load = %v, want ETIME", err)
		}
	}
	if err := load(long(2400)); err != nil {
		t.Errorf("without a bound: %v", err)
	}
	t.Logf("after %s", time.Since(began))
}

func TestShortLoadsAreAsEver(t *testing.T) {
	need.Kernel(t)
	for range 3 {
		isOver, err := Within(time.Minute, func() {
			for range 3 {
				if err := load(long(1)); err != nil {
					t.Error(err)
				}
			}
		})
		if isOver || err != nil {
			t.Errorf("Within = %v, %v", isOver, err)
		}
	}
}

// TestWhereNothingCanListen: what loads does so without a bound, and has ended when Within has.
func TestWhereNothingCanListen(t *testing.T) {
	may, ended := make(chan struct{}), false
	go func() { close(may) }()
	isOver, err := within(time.Nanosecond, func() {
		<-may
		for range 1000 {
			_ = unix.Getpid()
		}
		ended = true
	}, func() (int, error) { return 0, unix.EBUSY })
	if isOver || !errors.Is(err, unix.EBUSY) || !ended {
		t.Errorf("Within = %v, %v; f has ended: %v", isOver, err, ended)
	}
}

// TestTheFirstThreadHasNoFilter, whichever goroutine calls.
func TestTheFirstThreadHasNoFilter(t *testing.T) {
	need.Kernel(t)
	for range 20 {
		if _, err := Within(time.Minute, func() {
			if unix.Gettid() == unix.Getpid() {
				t.Error("it is called on the first thread")
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}
