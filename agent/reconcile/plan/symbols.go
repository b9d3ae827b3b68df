package plan

import (
	"fmt"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Symbols is a choice of functions as text, since targets are compared: names and
// globs, those that are taken away again after a "!", and the limit after "<=" where
// it is not the default.
type Symbols string

// ChooseSymbols writes the choice of a definition.
func ChooseSymbols(s *v1alpha1.Symbols) Symbols {
	if s == nil {
		return ""
	}
	words := append([]string(nil), s.Names...)
	for _, name := range s.Exclude {
		words = append(words, "!"+name)
	}
	if s.Limit != nil && *s.Limit != v1alpha1.DefaultFunctions {
		words = append(words, fmt.Sprintf("<=%d", *s.Limit))
	}
	return Symbols(strings.Join(words, " "))
}

// Parts reads the choice.
func (s Symbols) Parts() (names, exclude []string, limit int) {
	limit = v1alpha1.DefaultFunctions
	for word := range strings.FieldsSeq(string(s)) {
		if name, ok := strings.CutPrefix(word, "!"); ok {
			exclude = append(exclude, name)
		} else if n, ok := strings.CutPrefix(word, "<="); !ok {
			names = append(names, word)
		} else if _, err := fmt.Sscan(n, &limit); err != nil {
			limit = 0
		}
	}
	return names, exclude, limit
}
