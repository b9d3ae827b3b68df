package chain

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/google/go-cmp/cmp"
)

func TestVerifierWordsBecomeLimits(t *testing.T) {
	members := []Member{{Key: "old"}, {Key: "new", New: true}, {Key: "older"}}
	for log, want := range map[string]Limit{
		"combined stack size of 3 calls is 544. Too large":                                      LimitStack,
		"tail_calls are not allowed when call stack of previous frames is 256 bytes. Too large": LimitStack,
		"The sequence of 8193 jumps is too complex.":                                            LimitInstructions,
		"BPF program is too large. Processed 1000001 insn":                                      LimitInstructions,
		"the call stack of 9 frames is too deep !":                                              LimitFrames,
		"R1 invalid mem access 'scalar'":                                                        LimitVerifier,
		"":                                                                                      LimitVerifier,
	} {
		t.Run(log, func(t *testing.T) {
			kernel := &ebpf.VerifierError{Cause: syscall.EACCES, Log: []string{"0: R1=ctx()", log, "processed 7 insns"}}
			err := explain(members, fmt.Errorf("program: %w", kernel))
			var refusal *Rejection
			if !errors.As(err, &refusal) {
				t.Fatalf("got error %v, want a refusal", err)
			}
			if refusal.Member != "new" || refusal.Limit != want {
				t.Errorf("got %q for %s, want %q for new", refusal.Limit, refusal.Member, want)
			}
			if refusal.Reason == "" || refusal.Fix == "" || !errors.Is(err, syscall.EACCES) {
				t.Errorf("refusal %+v lacks reason, fix or cause", refusal)
			}
		})
	}
}

func TestAnErrorThatIsNotTheVerifiersBlamesNobody(t *testing.T) {
	err := explain([]Member{{Key: "new", New: true}}, syscall.ENOMEM)
	var refusal *Rejection
	if errors.As(err, &refusal) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("got %v, want the kernel's error and no refusal", err)
	}
	if strings.Contains(err.Error(), "new") {
		t.Errorf("error %q names a member", err)
	}
}

func TestTheLatestNewMemberIsBlamed(t *testing.T) {
	for name, tc := range map[string]struct {
		members []Member
		want    string
	}{
		"the last where none is new": {[]Member{{Key: "a"}, {Key: "b"}}, "b"},
		"the new one":                {[]Member{{Key: "a", New: true}, {Key: "b"}}, "a"},
		"the last of two new ones":   {[]Member{{Key: "a", New: true}, {Key: "b", New: true}, {Key: "c"}}, "b"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := newcomer(tc.members).Key; got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestDepthOfCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		calls graph
		want  int
	}{
		"a leaf":                           {graph{}, 1},
		"the deeper of two":                {graph{"main": {"a", "b"}, "b": {"c"}}, 3},
		"one function by two ways":         {graph{"main": {"a", "b"}, "a": {"b"}, "b": {"c"}}, 4},
		"a function that reaches itself":   {graph{"main": {"a"}, "a": {"main"}}, MaxSubprograms + 2},
		"a function that is nowhere known": {graph{"main": {"extern"}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.calls.depth("main"); got != tc.want {
				t.Errorf("depth is %d, want %d", got, tc.want)
			}
		})
	}
}

func TestCallGraphReadsCallsAndCallbacks(t *testing.T) {
	call := func(name string) asm.Instruction {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference(name)
	}
	pointer := func(name string) asm.Instruction {
		return asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}.WithReference(name)
	}
	kfunc := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall}
	start := asm.Mov.Imm(asm.R0, 0)
	insns := asm.Instructions{
		start.WithSymbol("main"), call("loop"), start.WithSymbol("label"), call("timer"), asm.Return(),
		start.WithSymbol("loop"), pointer("turn"), asm.FnLoop.Call(), asm.Return(),
		start.WithSymbol("turn"), asm.Return(),
		start.WithSymbol("timer"), pointer("tick"), asm.FnTimerSetCallback.Call(), call("turn"), asm.Return(),
		start.WithSymbol("tick"), pointer("later"), kfunc, asm.Return(),
		start.WithSymbol("later"), asm.Return(),
	}
	starts := map[string]bool{"main": true, "loop": true, "turn": true, "timer": true, "tick": true, "later": true}
	want := graph{"main": {"loop", "timer"}, "loop": {"turn"}, "timer": {"turn"}}
	if diff := cmp.Diff(want, callGraph(insns, starts)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestIdentifiers(t *testing.T) {
	for name, want := range map[string]string{
		"count_packets": "count_packets", "a.cold": "a.cold", "0/a": "__a", "a-b c9": "a_b_c9",
		strings.Repeat("x", 200): strings.Repeat("x", 127),
	} {
		if got := identifier(name); got != want {
			t.Errorf("identifier of %q is %q, want %q", name, got, want)
		}
	}
}
