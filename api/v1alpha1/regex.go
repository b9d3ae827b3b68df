package v1alpha1

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// MaxRegex is how many characters the regular expression of Interfaces has at most.
const MaxRegex = 256

// Expression compiles Regex, which matches whole names; nil where there is none. The error names the
// first character that is wrong, counted from 1.
func (i *Interfaces) Expression() (*regexp.Regexp, error) {
	if i.Regex == "" {
		return nil, nil
	}
	if n := utf8.RuneCountInString(i.Regex); n > MaxRegex {
		return nil, fmt.Errorf("read regex: it has %d characters, and at most %d are taken", n, MaxRegex)
	}
	// By itself first: what is put around it must not make it a valid one.
	if _, err := regexp.Compile(i.Regex); err != nil {
		wrong := new(syntax.Error)
		if !errors.As(err, &wrong) {
			return nil, fmt.Errorf("read regex %q: %w", i.Regex, err)
		}
		before, _, _ := strings.Cut(i.Regex, wrong.Expr)
		return nil, fmt.Errorf("read regex %q: character %d: %w", i.Regex, utf8.RuneCountInString(before)+1, err)
	}
	whole, err := regexp.Compile(`\A(?:` + i.Regex + `)\z`)
	if err != nil {
		// The one valid expression that takes what follows it for its own.
		return nil, fmt.Errorf(`read regex %q: \Q is not closed: write \E behind what it quotes`, i.Regex)
	}
	return whole, nil
}
