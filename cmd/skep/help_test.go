package main

import (
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
)

// TestHelpBeginsWithWhatACommandDoes: cobra shows Long in the place of Short, so it begins with an imperative, too.
func TestHelpBeginsWithWhatACommandDoes(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, help := range []string{c.Short, c.Long} {
			first, _, _ := strings.Cut(help, " ")
			if help != "" && (!unicode.IsUpper(rune(first[0])) || strings.ToUpper(first) == first || articles[first]) {
				t.Errorf("%s: the help begins %q, not with what the command does", c.CommandPath(), help[:min(60, len(help))])
			}
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	walk(newRoot(streams{}))
}

// articles begin a sentence about something else.
var articles = map[string]bool{"A": true, "An": true, "The": true, "It": true, "In": true, "On": true, "By": true, "After": true, "This": true,
	"Keys": true, "Names": true, "Changes": true, "With": true, "Without": true}
