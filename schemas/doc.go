// Package schemas reads what people write: CUE packages, CUE files, YAML and
// JSON, checked against the CUE module skep.dev/schemas@v1 that stands in the
// folder module and in the binary.
//
// It is the only package that imports CUE. What it reads is not trusted: the files
// are copied into memory, without symbolic links and within bounds, and a child
// process of the same binary renders them with a memory limit and a kill on
// timeout (see MaybeRenderChild). It resolves no image, evaluates no policy and
// fetches nothing, but for VendorDependencies, which authors call.
//
// # What counts as a definition
//
// Every struct whose apiVersion begins with "skep.dev/" and that has a kind is
// a definition. They are found by walking the regular fields, lists and structs
// of a package, a file or a document from the top; hidden fields (_x),
// definitions (#X), optional fields and what lies inside a definition found are
// not walked. So templates belong into hidden fields or definitions, and a
// comprehension may yield any number of definitions under any name. A
// value that is walked and is not known, such as one made from a template that
// does not exist, is a problem: any number of definitions may have stood there.
// So is a struct that has one of our kinds and metadata or a spec, and another
// apiVersion or none: its author meant a definition. Kinds of bpfman.io, which
// has the same names, are not ours.
//
// In a folder, every CUE package below it is rendered, and every .yaml, .yml
// and .json file that says "skep.dev/" is read; one that only says one of our
// kinds is looked through for such structs, and may be malformed. Folders and CUE files whose
// names begin with "." or "_", folders named cue.mod and, as CUE has it, files
// that end in _tool.cue or _test.cue do not count. A file named by itself is
// always read.
//
// # What a source may use
//
// Its own packages, those below cue.mod/pkg, gen and usr, and @embed of files
// with one of the endings .cue, .yaml, .yml, .json, .jsonl, .toml, .xml, .txt,
// .csv, .pem, .pub, .crt and .rego. Where only a part of the source is read,
// the rest gives CUE packages to import and no embedded files. The schema is always the binary's own,
// whatever is vendored or named as a dependency. There is no registry: what lies
// below cue.mod takes the place of a dependency of module.cue, and
// cue.mod/local-module.cue does not count. A source without a module file is
// read as CUE v0.14.0.
//
// Size: rendering and the explanation of its errors both work on CUE's values, which no
// other package may import.
package schemas

import "embed"

//go:generate sh -c "go run ./genhooks cue > module/hooks_gen.cue"
//go:generate sh -c "go run ./genhooks page > ../docs/hooks.md"

// ModulePath is the path of the CUE module, with its major version.
const ModulePath = "skep.dev/schemas@v1"

// importPath is ModulePath without the version, which is where CUE looks for
// it below cue.mod/pkg.
const importPath = "skep.dev/schemas"

//go:embed module
var moduleFiles embed.FS
