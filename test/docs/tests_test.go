package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPagesNameTestsThatExist: a page that names a test as evidence names one that runs.
func TestPagesNameTestsThatExist(t *testing.T) {
	function, named := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`), regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w+)`")
	exists := map[string]bool{}
	if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		body, err := os.ReadFile(path)
		for _, found := range function.FindAllStringSubmatch(string(body), -1) {
			exists[found[1]] = true
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for _, page := range pages(t) {
		for _, found := range named.FindAllStringSubmatch(read(t, page), -1) {
			if !exists[found[1]] {
				t.Errorf("%s names %s, and there is no such test", page, found[1])
			}
		}
	}
}
