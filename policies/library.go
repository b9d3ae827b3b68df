package policies

import (
	"embed"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The profiles that ship with Skep.
const (
	// ProfileBaseline is what applies everywhere, unless an admin switched it off.
	ProfileBaseline = "baseline"
	// ProfileRestricted is baseline and lists of what else is allowed.
	ProfileRestricted = "restricted"
)

// libraryFS holds the shipped Rego. Tests are not part of the binary.
//
//go:embed library/lib/lib.rego library/baseline/baseline.rego library/restricted/restricted.rego
//go:embed library/evidence/signers.rego library/evidence/slsa.rego library/evidence/vsa.rego library/evidence/sbom.rego library/evidence/vuln.rego
var libraryFS embed.FS

// Profiles returns the names of the profiles, sorted.
func Profiles() []string { return []string{ProfileBaseline, ProfileRestricted} }

// Source returns the shipped Rego by path, as library/baseline/baseline.rego,
// for authors to read and to start from. Tests of the library are left out.
func Source() map[string]string {
	all := Library()
	for _, profile := range Profiles() {
		maps.Copy(all, sources(profile))
	}
	return all
}

// Library returns the part of Source that policies import: data.skep.lib and
// data.skep.evidence.
func Library() map[string]string {
	all := sources("lib")
	maps.Copy(all, sources("evidence"))
	return all
}

// profileSources are the modules of a profile: restricted holds every rule of
// baseline.
func profileSources(profile string) map[string]string {
	all := map[string]string{}
	if profile == ProfileBaseline || profile == ProfileRestricted {
		maps.Copy(all, sources(ProfileBaseline))
	}
	if profile == ProfileRestricted {
		maps.Copy(all, sources(ProfileRestricted))
	}
	return all
}

// packageOf is the package of a file of Library.
func packageOf(file string) ast.Ref {
	folder, name := path.Split(strings.TrimSuffix(strings.TrimPrefix(file, "library/"), ".rego"))
	ref := ast.DefaultRootRef.Append(ast.StringTerm("skep")).Append(ast.StringTerm(path.Clean(folder)))
	if path.Clean(folder) == name {
		return ref
	}
	return ref.Append(ast.StringTerm(name))
}

// sources reads one folder of the library. The files are part of the binary, so
// that one which cannot be read is one that is not there.
func sources(folder string) map[string]string {
	all := map[string]string{}
	dir := path.Join("library", folder)
	entries, err := libraryFS.ReadDir(dir)
	if err != nil {
		return all
	}
	for _, entry := range entries {
		file := path.Join(dir, entry.Name())
		if body, err := libraryFS.ReadFile(file); err == nil {
			all[file] = string(body)
		}
	}
	return all
}

// sortedKeys are the keys of a map in their order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
