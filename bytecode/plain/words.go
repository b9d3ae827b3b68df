package plain

import (
	"regexp"
	"sync"
)

// word is what a library says, and what it means.
type word struct {
	of    *regexp.Regexp
	plain string
}

// words are the libraries', in the order in which they are replaced.
var words = sync.OnceValue(func() []word {
	var all []word
	for _, list := range [][][2]string{advice, files, values, names} {
		for _, w := range list {
			all = append(all, word{regexp.MustCompile(w[0]), w[1]})
		}
	}
	return all
})

// advice is what the library tells programmers who call it. It is of no use to others, or wrong on
// the kernels that Skep runs on: since Linux 5.11 no limit on locked memory holds for BPF.
var advice = [][2]string{
	{` \(MEMLOCK may be too low, consider rlimit\.RemoveMemlock\)`, ""},
	{` \(hit verifier bug, increase LogSizeStart to fit the log and check dmesg\)`, ", and the verifier said no more"},
	{` \(bug: hit \d+ verifier attempts\)`, ", and the verifier's log did not end"},
	{` \(MaxEntries may be incorrectly set to zero\)`, " (max_entries may be 0)"},
	{` \((?:invalid pid, )?missing (?:kernel )?symbol or prog's AttachType not \w+\?\)`, " (a function is missing, or the program is of another hook)"},
	{`: missing MapOptions\.PinPath`, ": Skep pins maps itself; leave out LIBBPF_PIN_BY_NAME"},
	{` \(batch size too small\?\)`, ""},
}

// files are words about object files, of debug/elf first.
var files = [][2]string{
	{`bad magic number '[^']*' ?in record at byte 0x0`, "it is no ELF file"},
	{`unknown ELF version '0' ?in record at byte 0x0`, "its header names no version of ELF"},
	{` '([^']*)' ?in record at byte 0x[0-9a-f]+`, " ($1)"},
	{`in record at byte 0x[0-9a-f]+`, ""},
	{`reading ELF (\w+) panicked: .*`, "the $1 of the ELF file cannot be read"},
	{`\bunexpected EOF\b`, "it ends too early"},
	{`(^|: )EOF$`, "${1}it ends too early"},
	{`\b(?:ELF )?shoff\b`, "offset of the section headers"},
	{`\b(?:ELF )?phoff\b`, "offset of the program headers"},
	{`\b(?:ELF )?shnum\b`, "number of sections"},
	{`\b(?:ELF )?shstrndx\b`, "index of the section of names"},
	{`\b(?:ELF )?shentsize\b`, "size of a section header"},
	{`\b(?:ELF )?phentsize\b`, "size of a program header"},
	{`\bSym(?:64)?Size\b`, "the size of a symbol"},
	// Types of the library for parts of BTF.
	{`unmarshal type header: not enough bytes to unmarshal btf[A-Z]\w*`, "a type is cut short"},
	{`not enough bytes to (?:un)?marshal btf[A-Z]\w*`, "a type is cut short"},
	{`\bunknown kind: Unknown\b`, "a type is of no kind that BTF has"},
	{`\bTypeTag\b`, "type tag"},
	{`\b[Dd]eclTag\b`, "declaration tag"},
	{`\*?btf\.VarSecInfo doesn't point to a \*?btf\.Var: \*?(?:btf\.)?(\w+)`, "a record of a data section is of a $1, not of a variable"},
	{`\bvsi: `, ""},
	{`\bdatasec\b`, "data section"},
	{`\bextinfo\b`, "BTF.ext"},
	{`\bext_infos?\b`, "BTF.ext"},

	{`\bbtf[A-Z]\w*`, "BTF record"},
	{`\b(?:VarSecInfo|FuncInfo|LineInfo|FuncProto|declTag)\b`, "BTF record"},
}

// values are words about keys and values, which programs in Go give the library.
var values = [][2]string{
	{`\S+ doesn't marshal to (\d+) bytes`, "it is not of $1 bytes"},
	{`unmarshaling \S+ doesn't consume all data`, "it is of another size"},
	{`(?:can't )?(?:un)?marshal(?:ing)? (key|keys|value|next key)\b`, "the $1"},
	{`\bcan't (?:un)?marshal\b`, "cannot read"},
	{`\bper-CPU slice elements cannot be nil\b`, "a value for a CPU is missing"},
	{`\bper-(?:CPU|cpu) (?:value requires a )?slice\b`, "values per CPU"},
	{`value at first map key is (\S+), not \[\]byte`, "its contents are not bytes"},
	{`\bresource is read-only\b`, "it is read-only"},
	{`\bMaxEntries\b`, "max_entries"},
	{`\bKeySize\b`, "key_size"},
	{`\bValueSize\b`, "value_size"},
	{`\bInnerMap\b`, "an inner map"},
	{`\bunsafeMemory\b`, "shared memory"},
	{`\bMaxInt(\d+)\b`, "$1 bits"},
	{`\[\](?:byte|uint8|uint32|uint64)\b`, "bytes"},
}

// names are those of the library's types, fields and parts.
var names = [][2]string{
	{`\bmap spec is incompatible with existing map\b`, "the existing map is another"},
	{`\bmap spec\b`, "map"},
	{`\bProgramArray\b`, "BPF_MAP_TYPE_PROG_ARRAY"},
	{`\bProgramSpec and Program tags\b`, "tags of the object and of the program"},
	{`\bCollectionSpec\b`, "the object"},
	{`\bretprobeMaxActive\b`, "a number of concurrent return probes"},
	{`\bObjInfo\b`, "the kernel's answer"},
	{`\bfield RefCtrOffsets\b`, "the list of reference counters"},
	{`\btargetProg\b`, "target program"},
	{`\bAttachTo\b`, "the target"},
	{`\bfdArray\b`, "one program"},
	{`\bfixing up kfuncs\b`, "find the kernel functions that it calls"},
	{`\bfixup for\b`, "find the kernel function of"},
	{`\bkfuncMetaKey doesn't contain kfuncMeta\b`, "a call of a kernel function has no name"},
	{`\btoken (\S+): (not found|bad insn|failed|opening|older|writing|offset)`, "symbol $1: $2"},
	{`creating perf_(?:kprobe|uprobe) PMU \(arch-specific fallback for ("[^"]*")\)`, "create the probe $1"},
	{`creating perf_(?:kprobe|uprobe) PMU`, "create the probe"},
	{`\bbad insn boundary\b`, "it is not where an instruction begins"},
	// Types of Go: *btf.Struct, []asm.Instruction.
	{`(^|[^\w./-])\*?(?:btf|asm|ebpf|link|sys|internal|unix|elf|sysenc|perf|ringbuf|rlimit|features)\.([A-Z]\w*)`, "$1$2"},
}
