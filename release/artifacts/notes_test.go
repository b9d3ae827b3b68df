package artifacts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/artifacts"
)

func TestNotesAreTheSectionOfTheVersion(t *testing.T) {
	for sentence, c := range map[string]struct{ changelog, version, want, says string }{
		"what is about to be released": {
			"# Changelog\n\nText.\n\n## Unreleased\n\n### Added\n\n- A thing.\n\n## v0.1.0\n\n- Old.\n", "v0.2.0-rc.1", "### Added\n\n- A thing.\n", "",
		},
		"a version that has its section": {
			"## Unreleased\n\n- Next.\n\n## v0.2.0 - 2026-12-01\n\n- A thing.\n\n## v0.1.0\n", "v0.2.0", "- A thing.\n", "",
		},
		"a version in brackets without its v": {"## [0.2.0] - 2026-12-01\n- A thing.\n", "v0.2.0", "- A thing.\n", ""},
		"a version that begins like another":  {"## v0.2.0-rc.1\n- Early.\n## v0.2.0\n- A thing.\n", "v0.2.0", "- A thing.\n", ""},
		"a pre-release of what was cut":       {"## Unreleased\n\n## v0.2.0\n- A thing.\n", "v0.2.0-rc.1", "- A thing.\n", ""},
		"links to files and to elsewhere": {
			"## v0.2.0\n- [a](docs/a.md#b), [c](https://example.com/c), [d](#d)\n", "v0.2.0",
			"- [a](https://github.com/skep-dev/skep/blob/v0.2.0/docs/a.md#b), [c](https://example.com/c), [d](#d)\n", "",
		},
		"no section at all":           {"# Changelog\n", "v0.2.0-rc.1", "", `no section "## Unreleased": add one that says`},
		"a version that was not cut":  {"## Unreleased\n- A thing.\n", "v0.2.0", "", `no section "## v0.2.0": make cut VERSION=v0.2.0`},
		"an empty section":            {"## Unreleased\n\n## v0.1.0\n- Old.\n", "v0.2.0-rc.1", "", `section "## Unreleased" is empty: say in it`},
		"a section of headings":       {"## v0.2.0\n### Added\n\n## Unreleased\n- Next.\n", "v0.2.0", "", `section "## v0.2.0" is empty`},
		"a version that is none":      {"## Unreleased\n- A thing.\n", "0.2.0", "", "write it as vX.Y.Z"},
		"a version that is not whole": {"## Unreleased\n- A thing.\n", "v0.2", "", "write it as vX.Y.Z"},
	} {
		t.Run(sentence, func(t *testing.T) {
			notes, err := artifacts.Notes([]byte(c.changelog), c.version)
			if diff := cmp.Diff(c.want, string(notes)); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, and not %q", err, c.says)
			}
		})
	}
}
