package usdt

import (
	"debug/elf"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

// maxArguments is how many arguments of a probe a program can read: BPF_USDT_MAX_ARG_CNT
// of usdt.bpf.h.
const maxArguments = 12

// kind is enum __bpf_usdt_arg_type of usdt.bpf.h: where an argument is.
type kind uint64

const (
	constant kind = iota
	inRegister
	inMemory
	// inArray is memory by a base, an index and a scale; usdt.bpf.h reads it since libbpf 1.7.
	inArray
)

// argument is struct __bpf_usdt_arg_spec of usdt.bpf.h.
type argument struct {
	kind kind
	// value is a constant, or what is added to the address in memory.
	value int64
	// register and index are offsets in struct pt_regs, and the index counts two to the
	// power of shift bytes.
	register, index, shift uint64
	signed                 bool
	// size is one of 1, 2, 4 and 8 bytes.
	size int
}

// Spec is where the arguments of one place of a probe are.
type Spec struct{ arguments []argument }

// Forms of arguments, each from the beginning of a text. The size comes first and is
// negative for signed values; blanks may stand between all parts, as in libbpf's usdt.c.
var (
	sizeForm = regexp.MustCompile(`^\s*(-?\d{1,2})\s*@\s*`)
	x86Forms = []form{
		{regexp.MustCompile(`^([-+]?\d+)?\s*\(\s*%(\w+)\s*(?:,\s*%(\w+)\s*(?:,\s*(\d+)\s*)?)?\)`), x86Memory},
		{regexp.MustCompile(`^%(\w+)`), x86Register},
		{regexp.MustCompile(`^\$([-+]?\d+)`), literal},
	}
	arm64Forms = []form{
		{regexp.MustCompile(`^\[\s*(\w+)\s*(?:,\s*([-+]?\d+)\s*)?\]`), arm64Memory},
		{regexp.MustCompile(`^([-+]?\d+)`), literal},
		{regexp.MustCompile(`^(\w+)`), arm64InRegister},
	}
)

// form is one form of an argument, and what fills in its parts.
type form struct {
	text *regexp.Regexp
	fill func(a *argument, parts []string) error
}

// Parse reads the arguments of a probe of a binary for the machine.
func Parse(machine elf.Machine, arguments string) (Spec, error) {
	var forms []form
	switch machine {
	case elf.EM_X86_64:
		forms = x86Forms
	case elf.EM_AARCH64:
		forms = arm64Forms
	default:
		return Spec{}, fmt.Errorf("arguments of probes on %s are not known here", machine)
	}
	var s Spec
	// Without arguments some compilers leave a colon.
	for rest := strings.TrimSpace(strings.TrimPrefix(arguments, ":")); rest != ""; rest = strings.TrimSpace(rest) {
		if len(s.arguments) == maxArguments {
			return Spec{}, fmt.Errorf("the probe has more than %d arguments", maxArguments)
		}
		a, length, err := parseOne(forms, rest)
		if err != nil {
			return Spec{}, fmt.Errorf("argument %d of the probe, of %.80q: %w", len(s.arguments)+1, arguments, err)
		}
		s.arguments, rest = append(s.arguments, a), rest[length:]
	}
	return s, nil
}

// parseOne reads the first argument, and returns its length in the text.
func parseOne(forms []form, rest string) (a argument, length int, err error) {
	size := sizeForm.FindStringSubmatch(rest)
	if size == nil {
		return a, 0, fmt.Errorf("it begins with no size and @")
	}
	if a.size, err = strconv.Atoi(size[1]); err != nil {
		return a, 0, err
	}
	if a.signed = a.size < 0; a.signed {
		a.size = -a.size
	}
	if a.size > 8 || bits.OnesCount(uint(a.size)) != 1 {
		return a, 0, fmt.Errorf("its size is %d, and not 1, 2, 4 or 8", a.size)
	}
	length = len(size[0])
	for _, f := range forms {
		if parts := f.text.FindStringSubmatch(rest[length:]); parts != nil {
			length += len(parts[0])
			if length < len(rest) && !strings.ContainsRune(" \t\n", rune(rest[length])) {
				break
			}
			return a, length, f.fill(&a, parts)
		}
	}
	return a, 0, fmt.Errorf("it is not in a form that usdt.bpf.h reads")
}

func literal(a *argument, parts []string) (err error) {
	a.kind = constant
	a.value, err = number(parts[1])
	return err
}

func x86Memory(a *argument, parts []string) (err error) {
	a.kind = inMemory
	if a.value, err = number(parts[1]); err != nil {
		return err
	}
	if a.register, err = x86Offset(parts[2]); err != nil || parts[3] == "" {
		return err
	}
	a.kind = inArray
	if a.index, err = x86Offset(parts[3]); err != nil {
		return err
	}
	scale, err := number("0" + parts[4])
	if parts[4] == "" {
		scale = 1
	}
	if err != nil || scale < 1 || scale > 8 || bits.OnesCount64(uint64(scale)) != 1 {
		return fmt.Errorf("its scale is %s, and not 1, 2, 4 or 8", parts[4])
	}
	a.shift = uint64(bits.TrailingZeros64(uint64(scale)))
	return nil
}

func x86Register(a *argument, parts []string) (err error) {
	a.kind = inRegister
	a.register, err = x86Offset(parts[1])
	return err
}

func arm64Memory(a *argument, parts []string) (err error) {
	a.kind = inMemory
	if a.value, err = number(parts[2]); err != nil {
		return err
	}
	a.register, err = arm64Offset(parts[1])
	return err
}

func arm64InRegister(a *argument, parts []string) (err error) {
	a.kind = inRegister
	a.register, err = arm64Offset(parts[1])
	return err
}

// number reads a decimal number, or 0 of nothing.
func number(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// x86Registers are the registers of 64 bits in the order of struct pt_regs
// (arch/x86/include/asm/ptrace.h); one without a name is none that a probe names.
var x86Registers = [...]string{"r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "", "rip", "", "", "rsp"}

// x86Wide is the register of 64 bits of which another one is a part.
var x86Wide = wideRegisters()

// wideRegisters names the parts of all registers.
func wideRegisters() map[string]string {
	wide := map[string]string{}
	for _, r := range x86Registers {
		if r == "" {
			continue
		}
		wide[r] = r
		if rest := r[1:]; rest[0] >= '0' && rest[0] <= '9' {
			wide[r+"d"], wide[r+"w"], wide[r+"b"] = r, r, r
		} else {
			wide["e"+rest], wide[rest] = r, r
		}
	}
	for _, letter := range []string{"a", "b", "c", "d"} {
		wide[letter+"l"] = "r" + letter + "x"
	}
	for _, name := range []string{"si", "di", "bp", "sp"} {
		wide[name+"l"] = "r" + name
	}
	return wide
}

func x86Offset(name string) (uint64, error) {
	for i, r := range x86Registers {
		if wide, ok := x86Wide[name]; ok && r == wide {
			return uint64(i) * 8, nil
		}
	}
	return 0, fmt.Errorf("%q is no register that usdt.bpf.h reads", name)
}

// arm64Offset is where a register is in struct user_pt_regs
// (arch/arm64/include/uapi/asm/ptrace.h).
func arm64Offset(name string) (uint64, error) {
	const general = 31
	if name == "sp" {
		return general * 8, nil
	}
	if n, err := strconv.ParseUint(strings.TrimLeft(name, "xw"), 10, 8); err == nil && n < general && len(name) > 1 && (name[0] == 'x' || name[0] == 'w') {
		return n * 8, nil
	}
	return 0, fmt.Errorf("%q is no register that usdt.bpf.h reads", name)
}
