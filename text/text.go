// Package text makes text of anybody's fit for a limit, a line or a terminal.
//
// It knows neither what the text is about nor who may read it: secrets are taken out before.
package text

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// mark stands at the end of what was longer.
const mark = "…"

// Cut shortens to at most so many bytes, which includes a mark where something went. The
// result is valid UTF-8.
func Cut(s string, bytes int) string { return CutTo(s, bytes, mark) }

// CutTo is Cut with another mark, which says more of where the rest is.
func CutTo(s string, bytes int, mark string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= bytes {
		return s
	}
	if bytes < len(mark) {
		return ""
	}
	end := bytes - len(mark)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + mark
}

// CutRunes shortens to at most so many characters, which includes a mark where something
// went. The result is valid UTF-8.
func CutRunes(s string, runes int) string {
	r := []rune(strings.ToValidUTF8(s, string(utf8.RuneError)))
	switch {
	case len(r) <= runes:
		return string(r)
	case runes < 1:
		return ""
	}
	return string(r[:runes-1]) + mark
}

// Printable replaces what a terminal would obey and not show, such as an escape sequence.
// Lines and tabs stay.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// Indented is Printable with lines after the first further to the right than any of a command's own, so that none is taken for one.
func Indented(s string) string { return strings.ReplaceAll(Printable(s), "\n", "\n            ") }

// Line is Printable on one line: line ends and tabs become spaces.
func Line(s string) string { return strings.NewReplacer("\n", " ", "\t", " ").Replace(Printable(s)) }

// plainWord matches what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[\w./:@%+=,-]+$`)

// Word quotes a word of a command for a shell, where that would take it for anything else.
func Word(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// inner is where a word begins inside of a name such as EvaluationFailed.
var inner = regexp.MustCompile(`([a-z])([A-Z])`)

// Words writes a name such as EvaluationFailed as words: evaluation failed.
func Words(name string) string { return strings.ToLower(inner.ReplaceAllString(name, "$1 $2")) }
