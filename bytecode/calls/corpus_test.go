package calls_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/bytecode/calls"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/test/corpus"
)

// denial is what a program of the corpus may not have in a namespace.
type denial struct{ object, program, hooks, what, why string }

// denials are those of all objects of the corpus, on the hooks that a namespace may use.
func denials(t *testing.T) (all []denial) {
	t.Helper()
	files, err := fs.Glob(corpus.Objects, "testdata/*.o")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		body, err := fs.ReadFile(corpus.Objects, file)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := bytecode.Inspect(bytes.NewReader(body), bytecode.Options{})
		if rejected := new(bytecode.Rejection); errors.As(err, &rejected) {
			continue // The cluster may not have it either.
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, p := range facts.Programs {
			for _, d := range denialsOf(facts, p) {
				d.object, d.program = strings.TrimSuffix(path.Base(file), ".o"), p.Name
				all = append(all, d)
			}
		}
	}
	return all
}

// denialsOf are those of a program, each with the hooks of the program that have it.
func denialsOf(facts bytecode.Facts, p bytecode.Program) (all []denial) {
	add := func(on, what, why string) {
		i := slices.IndexFunc(all, func(d denial) bool { return d.what == what && d.why == why })
		switch {
		case why == "":
		case i < 0:
			all = append(all, denial{hooks: "`" + on + "`", what: what, why: why})
		default:
			all[i].hooks += ", `" + on + "`"
		}
	}
	for _, h := range hooksOf(p) {
		for _, name := range slices.Concat(p.Helpers, p.Kfuncs) {
			add(h.Name, "`"+name+"`", calls.Denied(name, calls.Place{}.And(h)))
		}
		for _, by := range p.LiftsRightsBy {
			add(h.Name, by, calls.LiftsRights)
		}
		for _, m := range facts.Maps {
			if slices.Contains(p.Maps, m.Name) {
				add(h.Name, "map `"+m.Name+"` of type `"+m.Type+"`", calls.DeniedMap(m.Type))
				for flag, why := range calls.DeniedFlags(m.Flags) {
					add(h.Name, "map `"+m.Name+"` with `"+flag+"`", why)
				}
			}
		}
	}
	return all
}

// hooksOf are the hooks of a namespace that a program is for: that of its section, else all of its type.
func hooksOf(p bytecode.Program) []hook.Hook {
	return slices.DeleteFunc(hook.All(), func(h hook.Hook) bool {
		return !h.Namespaceable || h.Name != p.Hook && (p.Hook != "" || h.ProgramType.String() != p.Type)
	})
}

// lostByCorpus is the part of the page about the corpus.
func lostByCorpus(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(lostIntro)
	for _, d := range denials(t) {
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", d.object, d.program, d.hooks, d.what, d.why)
	}
	return b.String()
}

const lostIntro = `
## Objects of the corpus that a namespace may not have

The objects of ` + "`test/corpus/testdata`" + ` have one feature of libbpf each. This is what the tables deny their programs on hooks that a namespace may use.

| object | program | on | calls or has | it |
|---|---|---|---|---|
`
