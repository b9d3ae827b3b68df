// Package plain says errors of cilium/ebpf, debug/elf and the standard library in words that need
// no knowledge of them. It says what they say, and nothing of its own: it decides nothing.
package plain

import (
	"regexp"
	"strconv"
	"strings"
)

// said has the text of an error without the library's names.
type said struct {
	text string
	err  error
}

// Error implements error.
func (e *said) Error() string { return e.text }

// Unwrap returns the error as it was.
func (e *said) Unwrap() error { return e.err }

// Error returns the error with a text that has no name of a library's own: of its options,
// its types, and the Go types of values. An error without such names stays as it is, and the
// causes of others can still be found.
//
// Every error of cilium/ebpf goes through it before it leaves the package that called the library;
// see test/arch.
func Error(err error) error {
	if err == nil {
		return nil
	}
	was := err.Error()
	text, named := hide(was)
	for _, w := range words() {
		text = w.of.ReplaceAllString(text, w.plain)
	}
	if text = show(text, named); text == was {
		return err
	}
	return &said{text, err}
}

// ofUser matches what users named, whichever words it has: what stands in quotation marks, symbols and absolute paths. A path
// takes nothing of what is around it, such as the space before another one.
var ofUser = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"|\b(?:symbol|token) (\S+?)(?:: | in |$)|\B(/\S*[^\s:,;)])`)

// hide puts marks into the places of what users named, and returns that. show is the opposite.
func hide(text string) (hidden string, named []string) {
	var out strings.Builder
	at := 0
	for _, found := range ofUser.FindAllStringSubmatchIndex(text, -1) {
		for group := 2; group < len(found); group += 2 {
			if from, to := found[group], found[group+1]; from >= 0 {
				out.WriteString(text[at:from] + mark(len(named)))
				named, at = append(named, text[from:to]), to
			}
		}
	}
	return out.String() + text[at:], named
}

func show(text string, named []string) string {
	for i, name := range named {
		text = strings.ReplaceAll(text, mark(i), name)
	}
	return text
}

// mark is what no text of an error has.
func mark(i int) string { return "\x00" + strconv.Itoa(i) + "\x00" }

// Of returns the value of a call with its error said plainly.
func Of[T any](value T, err error) (T, error) { return value, Error(err) }
