package image

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// The kinds of error of this package, for errors.Is. Only ErrMalformed says
// something that stays true of a digest, so only it may be remembered.
var (
	// ErrUnavailable: the registry could not be reached, timed out, was
	// overloaded, or answered with something that is not what was asked for; or
	// a layout on disk is damaged. Another time it may go well.
	ErrUnavailable = errors.New("registry unavailable")
	// ErrNotFound: the registry, layout or cache has no such image.
	ErrNotFound = errors.New("image not found")
	// ErrUnauthorized: the registry wants other credentials. Many registries
	// also say so of repositories that do not exist.
	ErrUnauthorized = errors.New("registry denied access")
	// ErrMalformed: the bytes have the digest that was asked for and are no
	// bytecode image within the limits; or the reference itself is malformed.
	ErrMalformed = errors.New("not a bytecode image")
	// ErrSize: a blob has the digest that was asked for and another size than its
	// descriptor says, so what is wrong is the manifest and not the registry. It
	// comes with ErrUnavailable.
	ErrSize = errors.New("blob of another size")
	// ErrTooLong: an answer is longer than the limit. It comes with
	// ErrUnavailable.
	ErrTooLong = errors.New("answer longer than the limit")
	// ErrSilent: the registry stopped sending. It comes with ErrUnavailable.
	ErrSilent = errors.New("the registry stopped sending")
	// ErrNotAllowed: Options.AllowedRegistries does not allow the registry, or the
	// repository there.
	ErrNotAllowed = errors.New("registry not allowed")
	// ErrCache: the cache on disk could not be written or read, as when the
	// disk is full.
	ErrCache = errors.New("bytecode cache unusable")
	// ErrNotAsked: the context is one of registry.CacheOnly, and only a registry
	// knows the answer.
	ErrNotAsked = errors.New("registry not asked")
)

// kindError is an error of one of the kinds above. The kind shows in errors.Is
// and not in the text.
type kindError struct {
	kind error
	err  error
}

func (e *kindError) Error() string   { return e.err.Error() }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

// OfKind makes an error one of a kind, which its text does not name.
func OfKind(kind, err error) error { return &kindError{kind: kind, err: err} }

// withheldError is an error that does not name its cause.
type withheldError struct {
	error
	cause string
}

func (e *withheldError) Unwrap() error { return e.error }

// Withhold returns err with a cause that its text does not name, since people who name images read that. It must have no
// secret.
func Withhold(err error, cause string) error { return &withheldError{err, cause} }

// WithheldCause returns the cause that the text of an error does not name, for administrators; empty if there is none.
func WithheldCause(err error) string {
	var withheld *withheldError
	if !errors.As(err, &withheld) {
		return ""
	}
	return withheld.cause
}

// Malformed is an error of the kind ErrMalformed.
func Malformed(format string, args ...any) error {
	return OfKind(ErrMalformed, fmt.Errorf(format, args...))
}

// NotFound is an error of the kind ErrNotFound.
func NotFound(format string, args ...any) error {
	return OfKind(ErrNotFound, fmt.Errorf(format, args...))
}

// Unavailable is an error of the kind ErrUnavailable.
func Unavailable(format string, args ...any) error {
	return OfKind(ErrUnavailable, fmt.Errorf(format, args...))
}

// TooLong is an answer, or a file, longer than the bound in bytes.
func TooLong(bound int64) error {
	return OfKind(ErrTooLong, fmt.Errorf("it is longer than the limit of %d bytes", bound))
}

// HasKind reports whether an error has one of the kinds above.
func HasKind(err error) bool {
	for _, kind := range []error{ErrUnavailable, ErrNotFound, ErrUnauthorized, ErrMalformed, ErrCache, ErrNotAllowed, ErrNotAsked} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// errorTextLimit bounds, in bytes, what is shown of a registry's own words.
const errorTextLimit = 512

var (
	// user finds what precedes the host of a URL.
	user = regexp.MustCompile(`//[^\s/?#"']*@`)
	// query finds what may be a query string, whether or not a URL is before it:
	// a broken Location header need not look like one.
	query = regexp.MustCompile(`\?[^\s"']*`)
)

// Scrub removes query strings and user information from a text, and control
// characters, and bounds its length.
func Scrub(text string) string {
	text = query.ReplaceAllString(user.ReplaceAllString(text, "//"), "")
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
	if len(text) > errorTextLimit {
		text = strings.ToValidUTF8(text[:errorTextLimit], "") + "…"
	}
	return text
}
