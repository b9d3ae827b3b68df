package usdt

import (
	"debug/elf"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestArgumentsAreThoseOfLibbpf(t *testing.T) {
	for text, want := range map[string][]argument{
		"":                      nil,
		":":                     nil,
		"-4@%edi":               {{kind: inRegister, register: 112, signed: true, size: 4}},
		"8@%rax 1@%al 2@%ax":    {{kind: inRegister, register: 80, size: 8}, {kind: inRegister, register: 80, size: 1}, {kind: inRegister, register: 80, size: 2}},
		"8@%r8 4@%r15d 1@%r10b": {{kind: inRegister, register: 72, size: 8}, {kind: inRegister, size: 4}, {kind: inRegister, register: 56, size: 1}},
		"8@%rip 8@%rsp 1@%spl": {
			{kind: inRegister, register: 128, size: 8}, {kind: inRegister, register: 152, size: 8}, {kind: inRegister, register: 152, size: 1},
		},
		"8@-16(%rbp)":            {{kind: inMemory, value: -16, register: 32, size: 8}},
		"-8@(%rsp)":              {{kind: inMemory, register: 152, signed: true, size: 8}},
		"8@$5 -4@$-9":            {{value: 5, size: 8}, {value: -9, signed: true, size: 4}},
		"8@(%rdx,%rax,8)":        {{kind: inArray, register: 96, index: 80, shift: 3, size: 8}},
		"1@-96(%rbp,%rax)":       {{kind: inArray, value: -96, register: 32, index: 80, size: 1}},
		" 4 @ 8 ( %rbx , %rcx ,": nil,
		" -4 @ -8 ( %rbx ) 8@$1": {{kind: inMemory, value: -8, register: 40, signed: true, size: 4}, {value: 1, size: 8}},
	} {
		got, err := Parse(elf.EM_X86_64, text)
		if broken := strings.HasSuffix(text, ","); broken != (err != nil) {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got.arguments, cmp.AllowUnexported(argument{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	for text, want := range map[string]argument{
		"-8@x4":       {kind: inRegister, register: 32, signed: true, size: 8},
		"4@w30":       {kind: inRegister, register: 240, size: 4},
		"8@sp":        {kind: inRegister, register: 248, size: 8},
		"-4@[sp, 12]": {kind: inMemory, value: 12, register: 248, signed: true, size: 4},
		"8@[x29,-8]":  {kind: inMemory, value: -8, register: 232, size: 8},
		"4@[x0]":      {kind: inMemory, size: 4},
		"8@-5":        {value: -5, size: 8},
	} {
		got, err := Parse(elf.EM_AARCH64, text+" 8@1")
		if err != nil || len(got.arguments) != 2 || got.arguments[0] != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

func TestArgumentsThatNobodyReadsAreErrors(t *testing.T) {
	for machine, all := range map[elf.Machine][]string{
		elf.EM_X86_64: {"4f@%xmm0", "%rax", "3@%rax", "16@%rax", "8@%rxx", "8@%ah", "8@(%rax", "8@counter(%rip)", "8@(%rax,%rbx,3)", "8@(%rax,%rbx,16)", "8@$",
			"8@$0x10",
			"8@x0", "8@%", "@%rax", "-0@%rax", "8@$99999999999999999999", strings.Repeat("8@$1 ", 13)},
		elf.EM_AARCH64: {"8@x31", "8@%rax", "8@[x0", "8@y1", "8@x", "8@[x1,x2]"},
		elf.EM_RISCV:   {"8@a0"},
	} {
		for _, text := range all {
			if got, err := Parse(machine, text); err == nil {
				t.Errorf("%s: %q is %+v", machine, text, got)
			}
		}
	}
	if _, err := Parse(elf.EM_X86_64, "8@%rax 4f@%xmm0"); err == nil || !strings.Contains(err.Error(), "argument 2 of the probe") {
		t.Errorf("the error names no argument: %v", err)
	}
}

// FuzzParse reads arguments that may be anything, and writes those that it read.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"-4@%edi 8@-16(%rbp) 8@$5 8@(%rdx,%rax,8)", "-4@[sp, 12] 8@x4 8@-5"} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, x86 bool) {
		machine := elf.EM_AARCH64
		if x86 {
			machine = elf.EM_X86_64
		}
		s, err := Parse(machine, text)
		if err != nil {
			return
		}
		if len(s.arguments) > maxArguments {
			t.Fatalf("%d arguments", len(s.arguments))
		}
		for _, a := range s.arguments {
			// Of struct pt_regs of x86-64, and struct user_pt_regs of arm64.
			if last := map[bool]uint64{true: 168 - 8, false: 272 - 8}[x86]; a.register > last || a.index > last || a.shift > 3 {
				t.Fatalf("an argument lies outside of the registers: %+v", a)
			}
		}
		if value, err := s.Encode(nil); err != nil || len(value) != 208 {
			t.Fatalf("%d bytes, %v", len(value), err)
		}
	})
}
