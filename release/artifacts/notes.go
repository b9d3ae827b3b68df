package artifacts

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/skep-dev/skep/release/build"
)

// unreleased is the heading of what no release has yet.
const unreleased = "Unreleased"

// relative is a link of Markdown to a file of the repository.
var relative = regexp.MustCompile(`\]\(([A-Za-z0-9_./-]+[^:)\s]*)\)`)

// Notes returns the release notes of a version, as v0.2.0: the section of CHANGELOG.md
// whose heading is the version, as "## v0.2.0 - 2026-12-01". For a pre-release, as v0.2.0-rc.1,
// that is the section of v0.2.0, or else "## Unreleased". The heading itself is left out, and
// links to files lead to the version's tag. No section, or an empty one, is an error.
func Notes(changelog []byte, version string) ([]byte, error) {
	if err := build.CheckVersion(version); err != nil {
		return nil, err
	}
	headings, fix := []string{version}, howToCut(version)
	if core, _, early := strings.Cut(version, "-"); early {
		headings, fix = append(headings, core, unreleased), "add one that says what a user notices"
	}
	for _, heading := range headings {
		text, found := section(string(changelog), heading)
		if !found {
			continue
		}
		if !says(text) {
			return nil, fmt.Errorf("read release notes of %s: the changelog's section %q is empty: say in it what a user notices", version, "## "+heading)
		}
		return []byte(relative.ReplaceAllString(text, "]("+build.Source+"/blob/"+version+"/$1)") + "\n"), nil
	}
	return nil, fmt.Errorf("read release notes of %s: the changelog has no section %q: %s", version, "## "+headings[len(headings)-1], fix)
}

// section is what stands below a heading, up to the next of its level. The heading may have the
// version in brackets or without its v, and a date behind it.
func section(changelog, name string) (string, bool) {
	var lines []string
	within := false
	for line := range strings.Lines(changelog) {
		if heading, is := strings.CutPrefix(line, "## "); is {
			if within {
				break
			}
			within = names(heading, name)
			continue
		}
		if within {
			lines = append(lines, line)
		}
	}
	return strings.TrimSpace(strings.Join(lines, "")), within
}

// names reports whether a heading is that of a version.
func names(heading, version string) bool {
	fields := strings.Fields(heading)
	if len(fields) == 0 {
		return false
	}
	title := strings.Trim(fields[0], "[]")
	return title == version || "v"+title == version
}

// says reports whether a section has more than headings.
func says(section string) bool {
	for line := range strings.Lines(section) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}
