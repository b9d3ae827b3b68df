package transport

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/skep-dev/skep/image"
)

const (
	// maxShown is how many secrets are kept: those shown last.
	maxShown = 16
	// shownPiece is how many bytes of a secret, from its beginning, give it away.
	shownPiece = 48
	// shownInWords and shownInContent are the lengths, in bytes, from which a secret
	// is looked for. A shorter one stands in words by chance, and a password of some
	// letters in a statement about an image.
	shownInWords   = 4
	shownInContent = 16
	// maxEscapes is how many times over a text may be escaped.
	maxEscapes = 3
)

// Secrets are the secrets that a client has shown to registries and token services.
// Whoever runs one may repeat them, and errors, logs and statuses are read by people
// who may see no credentials.
type Secrets struct {
	mu sync.Mutex
	// secrets are sorted by when they were shown, the last at the end.
	secrets []secret
}

// secret is what was shown, and the forms in which it is recognised: as it is, and
// in hex and base64 wherever it begins there.
type secret struct {
	plain string
	forms []string
}

// Note keeps what a request shows.
func (s *Secrets) Note(req *http.Request) {
	for _, plain := range shownBy(req) {
		s.keep(plain)
	}
}

// keep remembers a secret as the last that was shown.
func (s *Secrets) keep(plain string) {
	if len(plain) < shownInWords {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := secret{plain: plain}
	if i := slices.IndexFunc(s.secrets, func(known secret) bool { return known.plain == plain }); i >= 0 {
		one = s.secrets[i]
		s.secrets = slices.Delete(s.secrets, i, i+1)
	} else {
		one.forms = formsOf(plain)
	}
	s.secrets = append(s.secrets, one)
	s.secrets = s.secrets[max(len(s.secrets)-maxShown, 0):]
}

// Repeats reports whether a text, such as a server's answer, repeats one of up to 16
// secrets of at least 4 bytes: as it is, escaped, in hex or in base64.
func Repeats(text string, secrets ...string) bool {
	var s Secrets
	for _, plain := range secrets {
		s.keep(plain)
	}
	return s.inWords(text)
}

// formsOf are the forms of a secret.
func formsOf(plain string) []string {
	piece := plain[:min(len(plain), shownPiece)]
	encoded := hex.EncodeToString([]byte(piece))
	forms := []string{piece, encoded, strings.ToUpper(encoded)}
	for before := range 3 {
		for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := alphabet.EncodeToString([]byte(strings.Repeat("\x00", before) + piece))
			// Characters that also hold a bit of what is beside the secret are left out.
			forms = append(forms, text[(before*8+5)/6:(before+len(piece))*8/6])
		}
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

// all are the forms of the secrets of at least some length.
func (s *Secrets) all(atLeast int) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var forms []string
	for _, one := range s.secrets {
		if len(one.plain) >= atLeast {
			forms = append(forms, one.forms...)
		}
	}
	return forms
}

// inWords reports whether a text repeats a secret, escaped or not. One that is cut
// off with an ellipsis may end within it.
func (s *Secrets) inWords(text string) bool {
	forms := s.all(shownInWords)
	for range maxEscapes + 1 {
		ends := strings.TrimSuffix(text, "…")
		for _, form := range forms {
			if strings.Contains(text, form) || ends != text && endsWithin(ends, form) {
				return true
			}
		}
		plain := unescape(text)
		if plain == text {
			return false
		}
		text = plain
	}
	return false
}

// InContent reports whether bytes repeat a secret.
func (s *Secrets) InContent(data []byte) bool {
	return slices.ContainsFunc(s.all(shownInContent), func(form string) bool { return bytes.Contains(data, []byte(form)) })
}

// endsWithin reports whether a text ends with the beginning of a form.
func endsWithin(text, form string) bool {
	for n := len(form) - 1; n >= shownInWords; n-- {
		if strings.HasSuffix(text, form[:n]) {
			return true
		}
	}
	return false
}

// escaped finds a character escaped as in a URL, in JSON or in Go.
var escaped = regexp.MustCompile(`%[0-9a-fA-F]{2}|\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\["\\/]`)

// unescape replaces what is escaped, once.
func unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(one string) string {
		digits := strings.TrimLeft(one, `%\xu`)
		code, err := strconv.ParseUint(digits, 16, 16)
		switch {
		case one[0] == '\\' && len(one) == 2:
			return one[1:]
		case err != nil:
			return one
		case len(digits) == 2:
			return string([]byte{byte(code)})
		}
		return string(rune(code))
	})
}

// Hide takes the words from an error that repeats a secret, own words such as the
// image's name aside. What kind of error it is stays.
func (s *Secrets) Hide(err *error, own ...string) {
	if *err == nil {
		return
	}
	text := (*err).Error()
	for _, word := range own {
		if word != "" {
			text = strings.ReplaceAll(text, word, "")
		}
	}
	if !s.inWords(text) {
		return
	}
	hidden := &hiddenError{object: strings.Join(own, " ")}
	for _, kind := range []error{
		image.ErrUnavailable, image.ErrNotFound, image.ErrUnauthorized, image.ErrMalformed, image.ErrSize, image.ErrTooLong, image.ErrSilent, image.ErrNotAllowed,
		image.ErrCache, image.ErrNotAsked,
		context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(*err, kind) {
			hidden.kinds = append(hidden.kinds, kind)
		}
	}
	*err = hidden
}

// hiddenError stands for an error that repeats a secret.
type hiddenError struct {
	object string
	kinds  []error
}

func (e *hiddenError) Error() string {
	return strings.TrimPrefix(e.object+": ", ": ") + "the answer repeats credentials that were shown, and its words are withheld"
}

func (e *hiddenError) Unwrap() []error { return e.kinds }
