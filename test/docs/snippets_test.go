package docs_test

import (
	"strings"
	"testing"
)

// dedented is a block without what all its lines begin with.
func dedented(block string) string {
	margin := block[:len(block)-len(strings.TrimLeft(block, " "))]
	return strings.ReplaceAll("\n"+block, "\n"+margin, "\n")[1:]
}

// indented is a block with so much before each line.
func indented(block, margin string) string {
	return margin + strings.ReplaceAll(strings.TrimSuffix(block, "\n"), "\n", "\n"+margin) + "\n"
}

// wholes are the definitions of a page's YAML. A part of one gets the rest.
func wholes(page string) []string {
	const begin = "apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: part}\nspec:\n  bytecode: {image: registry.example.com/a:v1}\n"
	var all []string
	for _, part := range strings.Split(page, "\n```yaml\n")[1:] {
		block, _, _ := strings.Cut(part, "```")
		switch block = dedented(block); {
		case strings.HasPrefix(block, "apiVersion: skep.dev/"):
			all = append(all, block)
		case strings.HasPrefix(block, "programs:"):
			all = append(all, begin+indented(block, "  "))
		case strings.HasPrefix(block, "- "):
			all = append(all, begin+"  programs:\n  - name: part\n    attach:\n"+indented(block, "    "))
		}
	}
	return all
}

func TestTheDefinitionsOfPagesAreValid(t *testing.T) {
	for page, many := range map[string]int{"docs/pods.md": 3, "docs/hooks.md": 3, "docs/user-space.md": 3} {
		all := wholes(read(t, page))
		if len(all) != many {
			t.Errorf("%s has %d definitions, want %d", page, len(all), many)
		}
		for _, one := range all {
			if n := len(applications(t, "page.yaml", one)); n != 1 {
				t.Errorf("%s: %d applications in\n%s", page, n, one)
			}
		}
	}
}
