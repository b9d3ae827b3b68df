package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
)

// TestTheSignersOfTheGuideAreAccepted reads the signers of docs/signers.md as node mode
// does. Their trusted roots are cut short, which is all that is wrong with them.
func TestTheSignersOfTheGuideAreAccepted(t *testing.T) {
	page, dir := read(t, "docs/signers.md"), t.TempDir()
	files := regexp.MustCompile("(?s)<!-- file: (\\S+) -->\n```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	for _, m := range files {
		if err := os.WriteFile(filepath.Join(dir, m[1]), []byte(m[2]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := schemas.Load(t.Context(), schemas.Options{Root: dir})
	if err != nil || len(loaded.Problems) > 0 || len(loaded.Signers) != len(files) || len(files) != 3 {
		t.Fatalf("%d files, %d signers, %v, %v", len(files), len(loaded.Signers), loaded.Problems, err)
	}
	trust, err := signing.NewTrust(loaded.Signers)
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.Contains(line, "trustedRoot names no") {
			t.Error(line)
		}
	}
	if !slices.Equal(trust.Names(), []string{"release"}) {
		t.Errorf("usable: %v", trust.Names())
	}
}

// TestTheGuideListsEveryClaim compares it with what a signer may ask for.
func TestTheGuideListsEveryClaim(t *testing.T) {
	page := read(t, "docs/signers.md")
	m := regexp.MustCompile(`Enum=(buildSignerURI[^\n]*)`).FindStringSubmatch(read(t, "api/v1alpha1/signer.go"))
	if m == nil {
		t.Fatal("the API lists no claims")
	}
	for name := range strings.SplitSeq(m[1], ";") {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/signers.md says nothing of %s", name)
		}
	}
}
