// Package jargon finds words in what users read that only those know who write Go with cilium/ebpf
// or debug/elf. It knows no sentence of Skep.
package jargon

import "regexp"

// words are names in camel case, which C and the kernel do not have, those with a package's prefix,
// and what the libraries say of their own work.
var words = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*|\b[a-z]+[A-Z][a-z]\w*|\*?\b(?:btf|ebpf|asm|link|sys|unix|rlimit|elf|sysenc)\.[A-Z]\w*` +
	`|verifier bug|marshal|panicked|in record at byte|\bEOF\b|<nil>|\bnil\b|\[\]u?int|\[\]byte|runtime error`)

// In returns the first such word in a text; empty where it has none.
func In(text string) string { return words.FindString(text) }
