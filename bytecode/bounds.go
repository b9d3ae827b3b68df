package bytecode

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the length in bytes of a name, a section's and a type's included:
// KSYM_NAME_LEN, beyond which the kernel takes no symbol.
const maxName = 512

// telling counts what facts say while they are gathered: of an object that
// would take a book to describe, the book is not written first.
type telling struct{ most, bytes int }

// count adds the texts of one more fact of a kind, and rejects the object where
// they are too many.
func (t *telling) count(kind string, read, of int, texts iter.Seq[string]) error {
	for text := range texts {
		if t.bytes += len(text) + len(`"",`); t.bytes > t.most {
			return tooManyFacts(fmt.Sprintf("the first %d of its %d %s take more than %d bytes to say", read, of, kind, t.most))
		}
	}
	return nil
}

// checkFacts rejects an object whose facts are too many as they are written.
func checkFacts(f Facts, most int) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("inspect object: %w", err)
	}
	if len(text) > most {
		return tooManyFacts(fmt.Sprintf("it takes %d bytes to say what is in it, more than %d", len(text), most))
	}
	return nil
}

func tooManyFacts(reason string) error {
	return &Rejection{Rule: "bytecode/too-many-facts", Object: "object", Reason: reason, Fix: "split it into several objects"}
}

// texts are all that a program's facts say in words.
func (p *Program) texts() iter.Seq[string] {
	return inTurn([]string{p.Name, p.Section, p.Target, p.License}, p.Subprograms, p.Helpers, p.Kfuncs, p.Ksyms, p.Unresolved, p.Maps, p.GPLOnly, p.AsyncCallbacks,
		p.RepeatsBy, p.ReadsKernelMemoryBy)
}

// names are those of a program's texts that the object chose and no other fact
// says.
func (p *Program) names() iter.Seq[string] {
	return inTurn([]string{p.Name, p.Section}, p.Subprograms, p.Kfuncs, p.Ksyms, p.Unresolved)
}

// inTurn walks several lists without joining them.
func inTurn(lists ...[]string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, list := range lists {
			for _, text := range list {
				if !yield(text) {
					return
				}
			}
		}
	}
}

// checkNames rejects names that no kernel takes, and those that JSON, a terminal
// or a label would show as something else: two programs must not look like one,
// nor move the cursor.
func checkNames(f Facts) error {
	if err := checkEach(inTurn([]string{f.License})); err != nil {
		return err
	}
	for i := range f.Programs {
		if err := checkEach(f.Programs[i].names()); err != nil {
			return err
		}
		if err := checkSpaces(&f.Programs[i]); err != nil {
			return err
		}
	}
	for _, m := range f.Maps {
		if err := checkEach(inTurn([]string{m.Name, m.KeyType, m.ValueType})); err != nil {
			return err
		}
		for _, c := range m.Contents {
			if err := checkEach(inTurn([]string{c.Name})); err != nil {
				return err
			}
		}
	}
	for _, v := range f.Variables {
		if err := checkEach(v.texts()); err != nil {
			return err
		}
	}
	return nil
}

// texts are all that a variable's facts say in words.
func (v *Variable) texts() iter.Seq[string] { return inTurn([]string{v.Name, v.Section, v.Type}) }

// checkEach is checkNames of some names.
func checkEach(names iter.Seq[string]) error {
	for name := range names {
		if len(name) > maxName {
			return &Rejection{
				Rule:   "bytecode/long-name",
				Object: "name " + printable(name),
				Reason: fmt.Sprintf("it has %d bytes, more than %d", len(name), maxName),
				Fix:    "give programs, maps, variables and sections shorter names",
			}
		}
		if !utf8.ValidString(name) || strings.ContainsFunc(name, unprintable) {
			return &Rejection{
				Rule:   "bytecode/unprintable-name",
				Object: "name " + printable(name),
				Reason: "it is not printable text",
				Fix:    "name programs, maps, variables and sections with letters and digits",
			}
		}
	}
	return nil
}

// checkSpaces rejects a space in a name that is sealed: what else intents say of a program has one in it, see Seal. ELF files take
// any name, and compilers give none with a space.
func checkSpaces(p *Program) error {
	for name := range inTurn([]string{p.Name}, p.Kfuncs, p.Ksyms) {
		if strings.Contains(name, " ") {
			return &Rejection{
				Rule:   "bytecode/name-with-space",
				Object: "name " + printable(name),
				Reason: "it has a space in it, and no name of C has",
				Fix:    "name programs, and what they take from the kernel, with letters, digits and underscores",
			}
		}
	}
	return nil
}

// unprintable reports whether a character shows as nothing or moves the cursor.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }
