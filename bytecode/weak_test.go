package bytecode

import (
	"debug/elf"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// usdt is the object with the maps of libbpf's usdt.bpf.h as that header has
// them: weak.
func usdt(tb testing.TB) []byte {
	return programs.Weak(objectFile(tb, "usdt"), "__bpf_usdt_specs", "__bpf_usdt_ip_to_spec_id")
}

func TestWeakSymbolsAreThoseOfTheObject(t *testing.T) {
	kconfig := programs.Object("xdp_kconfig")
	for name, object := range map[string][2][]byte{
		"the maps of usdt.bpf.h": {objectFile(t, "usdt"), usdt(t)},
		"variables of kconfig":   {kconfig, programs.Weak(kconfig, "CONFIG_BPF_SYSCALL", "CONFIG_OF_NO_KERNEL")},
		"a version of kconfig":   {kconfig, programs.Weak(kconfig, "LINUX_KERNEL_VERSION")},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(facts(t, object[0]), facts(t, object[1])); diff != "" {
				t.Errorf("weak symbols give other facts (-global +weak):\n%s", diff)
			}
		})
	}
}

// TestWeakSymbolsDoNotHideCode: a table of symbols may lie over code, and the byte
// that makes a symbol weak is then the code of an instruction. 0x28 loads from a
// packet, and 0x18, which the same symbol bound globally leaves there, loads a map.
func TestWeakSymbolsDoNotHideCode(t *testing.T) {
	const maps, xdp, symtab = 1, 2, 3
	code := make([]byte, 56)
	copy(code, []byte{0xb7, 0, 0, 0, 0, 0, 0, 0, 0x28, 1 << 4, 0, 0, 0, 0, 0, 0})
	binary.LittleEndian.PutUint16(code[10:], maps)
	// The second symbol is a function that is all of the section.
	code[32] = elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC)
	binary.LittleEndian.PutUint16(code[34:], xdp)
	code[44] = byte(len(code))
	object := assembled(t,
		section{name: "maps", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: make([]byte, 32)},
		section{name: "xdp", kind: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: code},
		section{name: ".symtab", kind: elf.SHT_SYMTAB, data: make([]byte, 3*elf.Sym64Size), link: 4, entry: elf.Sym64Size},
		section{name: ".strtab", kind: elf.SHT_STRTAB, data: make([]byte, 1)})
	at := binary.LittleEndian.Uint64(header(object, xdp)[24:])
	binary.LittleEndian.PutUint64(header(object, symtab)[24:], at+8-4-elf.Sym64Size)
	if r := refusal(t, object); r.Rule != "bytecode/reference-by-number" {
		t.Errorf("refused by %s: %s", r.Rule, r.Reason)
	}
}
