package main

import "strings"

// The most characters of a line, and of the cell that describes a field.
const (
	widestLine = 140
	widestCell = 200
)

// wrapped breaks a text into lines. indent precedes every line but the first.
func wrapped(text, indent string) string {
	var out strings.Builder
	width := 0
	for i, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case i == 0:
		case width+1+n > widestLine:
			out.WriteString("\n" + indent)
			width = len(indent)
		default:
			out.WriteString(" ")
			width++
		}
		out.WriteString(word)
		width += n
	}
	return out.String()
}

// parted splits a description where its first part fits a cell: after a sentence,
// else after a part of one. The rest is empty if all of it fits.
func parted(description string) (head, rest string) {
	if len([]rune(description)) <= widestCell {
		return description, ""
	}
	for _, end := range []string{". ", "; ", ": ", ", ", " "} {
		at := strings.LastIndex(string([]rune(description)[:widestCell]), end)
		if at < 0 {
			continue
		}
		return description[:at] + ".", description[at+len(end):]
	}
	return description, ""
}

// bullet is one item of a list.
func bullet(text string) string { return wrapped("- "+text, "  ") + "\n" }
