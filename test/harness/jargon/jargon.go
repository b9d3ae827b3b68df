// Package jargon finds words in what users read that only those know who write Go with cilium/ebpf
// or debug/elf. It knows no sentence of Skep.
package jargon

import (
	"regexp"
	"slices"

	"github.com/cilium/ebpf"
)

// words are names in camel case, which C and the kernel do not have, those with a package's prefix,
// and what the libraries say of their own work.
var words = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*|\b[a-z]+[A-Z][a-z]\w*|\*?\b(?:btf|ebpf|asm|link|sys|unix|rlimit|elf|sysenc)\.[A-Z]\w*` +
	`|verifier bug|marshal|panicked|in record at byte|\bEOF\b|<nil>|\bnil\b|\[\]u?int|\[\]byte|runtime error`)

// In returns the first such word in a text; empty where it has none. The fields of a definition are
// the user's own, and so are the names of types of maps and programs (docs/calls.md).
func In(text string) string {
	own := []string{"maxEntries", "valueSize", "onUpdate", "nodeSelector"}
	for t := range ebpf.MapType(64) {
		own = append(own, t.String(), ebpf.ProgramType(t).String())
	}
	for _, word := range words.FindAllString(text, -1) {
		if !slices.Contains(own, word) {
			return word
		}
	}
	return ""
}
