package programs

import (
	"bytes"
	"debug/elf"
	"slices"
)

// Weak is an object with weak symbols of these names, as libbpf's headers declare
// some. bpf2go, which compiles the objects, takes none. It panics on what is no
// object of this package.
func Weak(object []byte, names ...string) []byte {
	const info = 4
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		panic("programs: read object: " + err.Error())
	}
	symbols, err := f.Symbols()
	if err != nil {
		panic("programs: read symbols: " + err.Error())
	}
	object = bytes.Clone(object)
	table := f.SectionByType(elf.SHT_SYMTAB).Offset
	for i, s := range symbols {
		if slices.Contains(names, s.Name) {
			object[table+uint64(i+1)*elf.Sym64Size+info] = elf.ST_INFO(elf.STB_WEAK, elf.ST_TYPE(s.Info))
		}
	}
	return object
}
