package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
)

// JSON escapes what of a JSON document a terminal would obey. It is read as it was.
func JSON(doc string) string {
	return escaped(doc, func(r rune) (all string) {
		for _, half := range utf16.Encode([]rune{r}) {
			all += fmt.Sprintf(`\u%04x`, half)
		}
		return all
	})
}

// YAML is JSON for a document that is read as YAML, which has no escape of two halves for one character, and which may not hold a control character
// as it is. All of what is escaped stands in double quotes.
func YAML(doc string) string {
	return escaped(doc, func(r rune) string { return fmt.Sprintf(`\U%08x`, r) })
}

func escaped(doc string, escape func(rune) string) string {
	if !Obeyed(doc) {
		return doc
	}
	var all strings.Builder
	for _, r := range doc {
		if isCommand(r) {
			all.WriteString(escape(r))
			continue
		}
		all.WriteRune(r)
	}
	return all.String()
}

// Obeyed reports whether a document has what a terminal may obey instead of showing it.
func Obeyed(doc string) bool { return strings.ContainsFunc(doc, isCommand) }

// isCommand reports whether a terminal may obey a character of a document. It shows a space of any width.
func isCommand(r rune) bool { return r != '\n' && !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) }
