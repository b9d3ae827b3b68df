package main

import (
	_ "embed" // for the text of the page
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
)

// intro is the page before the tables of hooks, and details is what follows them.
//
//go:embed page/intro.txt
var intro string

//go:embed page/details.txt
var details string

// writePage renders the rows in the table's order: those the agent attaches, then
// those it knows and does not support, then what was seen of the former on kernels.
func writePage(w io.Writer, rows []hook.Hook, kernels []conformance.Kernel) error {
	var b strings.Builder
	b.WriteString(intro)
	attached(&b, rows)
	examples(&b)
	obstacles(&b, rows)
	seen(&b, rows, kernels)
	b.WriteString(details)
	var kernel, processor []string
	for _, e := range hook.Events() {
		name := "`" + e.Name + "`"
		if e.IsHardware() {
			processor = append(processor, name)
		} else {
			kernel = append(kernel, name)
		}
	}
	fmt.Fprintf(&b, "| the kernel | %s |\n| the processor | %s |\n", strings.Join(kernel, ", "), strings.Join(processor, ", "))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the page of hooks: %w", err)
	}
	return nil
}

// attached writes the rows that are attachable.
func attached(b *strings.Builder, rows []hook.Hook) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(h hook.Hook) bool { return !h.Attachable })
	fmt.Fprintf(b, "\n## Attached today (%d)\n\n", len(rows))
	b.WriteString("| hook | sections | program type | target | kernel | sharing | update | risk | namespaced |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, h := range rows {
		b.WriteString(line(h))
	}
}

// obstacles writes the others, and why they are not attached.
func obstacles(b *strings.Builder, rows []hook.Hook) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(h hook.Hook) bool { return h.Attachable })
	fmt.Fprintf(b, "\n## Known, and not supported today (%d)\n\n", len(rows))
	b.WriteString("The rule `shape/hook` denies a definition with one of these hooks: before anything is fetched, if the definition names the hook, or else\n" +
		"once the object is read. The denial names the cause and what to use instead, which does not always do the same.\n\n" +
		"| hook | program type | kernel | why | use instead |\n|---|---|---|---|---|\n")
	for _, h := range rows {
		why, instead := h.Obstacle()
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", h.Name, h.ProgramType, h.MinKernel, why, instead)
	}
	b.WriteString("\nNor are these iterators, of the hook `iter`:\n\n| section | why | use instead |\n|---|---|---|\n")
	for _, target := range hook.Iterators() {
		iter, _ := hook.Lookup("iter")
		why, instead := iter.TargetObstacle(target)
		fmt.Fprintf(b, "| `iter/%s` | %s | %s |\n", target, why, instead)
	}
}

const fromSections = `
## From a section to an attachment

A line of the table is one attachment: an item of ` + "`programs[].attach`" + `. Where the section names the target, the definition needs no
` + "`attach`" + `. A target in the definition replaces that of the section, for this hook.

` + "```yaml" + `
programs:
- name: connects          # SEC("kprobe/tcp_connect") names hook and target
- name: count_packets     # SEC("xdp") names the hook
  attach:
  - interfaces: {primary: true}
- name: classify          # SEC("tc") names neither
  attach:
  - hook: tcx/ingress
    interfaces: {names: [eth0]}
  - hook: tcx/egress
    interfaces: {names: [eth0]}
` + "```" + `

| section | hook | target that the section names | fields that the definition adds, such as |
|---|---|---|---|
`

// examples writes attachments of every kind, by the section of their program.
func examples(b *strings.Builder) {
	b.WriteString(fromSections)
	for _, e := range hook.Examples() {
		added := e.Added
		if implied, _, _ := hook.FromSection(e.Section); implied.Name != e.Hook {
			added = "hook: " + e.Hook + ", " + added
		}
		fmt.Fprintf(b, "| `%s` | `%s` | %s | %s |\n", e.Section, e.Hook, code(e.Said), code(added))
	}
}

// code is a text as code; nothing stays nothing.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

// line is one row of the page.
func line(h hook.Hook) string {
	sections := make([]string, 0, len(h.Sections))
	for _, s := range h.Sections {
		sections = append(sections, "`"+s+"`")
	}
	namespaced := ""
	if h.Namespaceable {
		namespaced = "yes"
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", "`"+h.Name+"`", strings.Join(sections, ", "),
		h.ProgramType, h.Shape, h.MinKernel, h.Sharing, h.Replace, h.Risk, namespaced)
}

const tried = `
## Tried on kernels

One test (` + "`make test-kernels`" + `) walks every hook that is attached today: it attaches a program, has a real event run it, updates it, removes its
pin and its link by hand, restarts the agent, and unloads it. It runs on the kernels of this table, and fails where it sees something else.
On any kernel, the agent probes a hook before it says that the kernel lacks it.

`

// seen writes what the conformance test saw of each attachable row on each kernel.
func seen(b *strings.Builder, rows []hook.Hook, kernels []conformance.Kernel) {
	b.WriteString(tried)
	b.WriteString("| hook |")
	for _, k := range kernels {
		b.WriteString(" " + k.Name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(kernels)) + "\n")
	var notes []string
	for _, h := range rows {
		if !h.Attachable {
			continue
		}
		b.WriteString("| `" + h.Name + "` |")
		for _, k := range kernels {
			cell := "yes"
			if outcome := k.Hooks[h.Name]; outcome != conformance.Fires {
				note := noteOn(outcome)
				if !slices.Contains(notes, note) {
					notes = append(notes, note)
				}
				cell = fmt.Sprintf("no (%d)", slices.Index(notes, note)+1)
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for i, note := range notes {
		fmt.Fprintf(b, "%d. %s\n", i+1, note)
	}
}

// noteOn says why a hook does not fire.
func noteOn(o conformance.Outcome) string {
	switch o {
	case "":
		return "Not tried yet."
	case conformance.Later:
		return "A later kernel brought the hook; see its column above."
	case conformance.BuiltWithout:
		return "This kernel was built without it."
	case conformance.Forbidden:
		return "This kernel forbids it to every process, whatever its capabilities."
	}
	return "This kernel " + strings.TrimPrefix(string(o), "unsupported: ") + "."
}
