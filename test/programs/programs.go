// Package programs holds the eBPF objects that the project's tests load: one C
// file and one committed object each, so that tests need no compiler.
//
// It owns the objects and nothing that acts on them. Every object but those
// with another purpose counts in a per-CPU array called counts. The first
// lines of each C file say what the object is for.
package programs

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:generate go run ./compile src .

//go:embed *.o
var objects embed.FS

// Object returns the ELF file compiled from the C file of that name, without
// its extension: Object("xdp_count"). It panics on a name that is not one of
// Names, because that is a mistake in the test that asks.
func Object(name string) []byte {
	body, err := objects.ReadFile(name + ".o")
	if err != nil {
		panic(fmt.Sprintf("programs: no object %q; there are %s", name, strings.Join(Names(), ", ")))
	}
	return body
}

// Names returns the names of all objects, sorted.
func Names() []string {
	files, err := fs.Glob(objects, "*.o")
	if err != nil {
		panic("programs: list objects: " + err.Error())
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".o")
	}
	return files
}
