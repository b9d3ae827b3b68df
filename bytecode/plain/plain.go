// Package plain says errors of cilium/ebpf, debug/elf and the standard library in words that need
// no knowledge of them. It says what they say, and nothing of its own: it decides nothing.
package plain

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
	text := was
	for _, w := range words() {
		text = w.of.ReplaceAllString(text, w.plain)
	}
	if text == was {
		return err
	}
	return &said{text, err}
}

// Of returns the value of a call with its error said plainly.
func Of[T any](value T, err error) (T, error) { return value, Error(err) }
