package docs_test

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/skep-dev/skep/hook"
)

// floor is the lowest kernel that Skep supports.
const floor = "6.1"

// column finds the kernel in a header of the support table, hookName the hooks of
// a row.
var (
	column   = regexp.MustCompile(`Linux ([0-9]+\.[0-9]+)`)
	hookName = regexp.MustCompile("`([a-z_/.*4-6]+)`")
)

// supported is README's table: of each pattern of hooks, whether each kernel has
// it.
func supported(t *testing.T, readme string) map[string]map[string]bool {
	t.Helper()
	_, table, found := strings.Cut(readme, "| feature |")
	if !found {
		t.Fatal("README.md has no support table")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	var kernels []string
	for _, m := range column.FindAllStringSubmatch(lines[0], -1) {
		kernels = append(kernels, m[1])
	}
	all := map[string]map[string]bool{}
	for _, line := range lines[2:] {
		fields := strings.Split(strings.Trim(line, "| "), "|")
		if len(fields) != len(kernels)+1 {
			t.Fatalf("the row %q has %d cells", line, len(fields))
		}
		in := map[string]bool{}
		for i, k := range kernels {
			in[k] = strings.TrimSpace(fields[i+1]) == "yes"
		}
		for _, m := range hookName.FindAllStringSubmatch(fields[0], -1) {
			all[m[1]] = in
		}
	}
	return all
}

// rowOf is the longest pattern that names a hook.
func rowOf(table map[string]map[string]bool, name string) string {
	longest := ""
	for pattern := range table {
		if ok, err := path.Match(pattern, name); err == nil && ok && len(pattern) > len(longest) {
			longest = pattern
		}
	}
	return longest
}

// newer reports whether kernel version a is later than b.
func newer(a, b string) bool {
	numbers := func(s string) []int {
		var all []int
		for part := range strings.SplitSeq(s, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				panic(err)
			}
			all = append(all, n)
		}
		return all
	}
	return slices.Compare(numbers(a), numbers(b)) > 0
}

func TestTheSupportTableIsTheTableOfHooks(t *testing.T) {
	table := supported(t, read(t, "README.md"))
	if len(table[rowOf(table, "xdp")]) != 3 {
		t.Fatalf("the table is %v", table)
	}
	for _, h := range hook.All() {
		row := rowOf(table, h.Name)
		if row == "" {
			if h.Attachable {
				t.Errorf("README.md names no row for the hook %s", h.Name)
			}
			continue
		}
		for kernel, yes := range table[row] {
			if want := h.Attachable && !newer(h.MinKernel, kernel) && !newer(floor, kernel); yes != want {
				t.Errorf("%s on Linux %s: README.md says %v by `%s`, the table of hooks %v", h.Name, kernel, yes, row, want)
			}
		}
	}
	for pattern := range table {
		if !slices.ContainsFunc(hook.Names(), func(name string) bool { ok, _ := path.Match(pattern, name); return ok }) {
			t.Errorf("README.md names `%s`, which is no hook", pattern)
		}
	}
}
