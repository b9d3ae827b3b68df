package artifacts

import (
	"bytes"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/semver"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/release/build"
)

// The files of the repository that name the version of the last release.
const (
	ChangelogFile = "CHANGELOG.md"
	ChartFile     = "charts/skep/" + chartFile
)

// chartVersions are the lines of Chart.yaml that have its version. That of the application has the
// v, since it is the tag of images.
var chartVersions = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// Cut returns changelog and Chart.yaml as the commit of a release has them: what was unreleased
// becomes the version's section, with a date, and the chart has the version.
func Cut(changelog, chart []byte, version string, at time.Time) (cutChangelog, cutChart []byte, err error) {
	if err := build.CheckVersion(version); err != nil {
		return nil, nil, err
	}
	if semver.Prerelease(version) != "" {
		return nil, nil, fmt.Errorf("cut %s: a pre-release has no section of its own, and is released of any commit", version)
	}
	if _, found := section(string(changelog), version); found {
		return nil, nil, fmt.Errorf("cut %s: the changelog has its section already", version)
	}
	if text, _ := section(string(changelog), unreleased); !says(text) {
		return nil, nil, fmt.Errorf("cut %s: the changelog's section %q is empty, or there is none: say in it what a user notices", version, "## "+unreleased)
	}
	if n := len(chartVersions.FindAll(chart, -1)); n != 2 {
		return nil, nil, fmt.Errorf("cut %s: %s has %d lines of its version, and not 2", version, ChartFile, n)
	}
	before := "## " + unreleased + "\n"
	after := before + "\n## " + version + " - " + at.UTC().Format(time.DateOnly) + "\n"
	cut := strings.Replace(string(changelog), before, after, 1)
	cutChart = chartVersions.ReplaceAllFunc(chart, func(line []byte) []byte {
		if bytes.HasPrefix(line, []byte("appVersion")) {
			return []byte("appVersion: " + version)
		}
		return []byte("version: " + strings.TrimPrefix(version, "v"))
	})
	return []byte(cut), cutChart, nil
}

// CheckCut returns an error where the files of a commit are not those of a version: the changelog
// says nothing of it, or the chart has another one, so that the kustomize directory of its tag
// would name other images. A pre-release is of any commit.
func CheckCut(repository fs.FS, version string) error {
	changelog, err := fs.ReadFile(repository, ChangelogFile)
	if err != nil {
		return err
	}
	if _, err := Notes(changelog, version); err != nil || semver.Prerelease(version) != "" {
		return err
	}
	content, err := fs.ReadFile(repository, ChartFile)
	if err != nil {
		return err
	}
	var about metadata
	if err := yaml.UnmarshalStrict(content, &about); err != nil {
		return fmt.Errorf("read %s: %w", ChartFile, err)
	}
	if "v"+about.Version != version || about.AppVersion != version {
		return fmt.Errorf("check %s for release %s: it has version %s and appVersion %s: %s", ChartFile, version, about.Version, about.AppVersion, howToCut(version))
	}
	return nil
}

// howToCut is what to do before a version is released.
func howToCut(version string) string {
	return "make cut VERSION=" + version + " and commit, or try a pre-release such as " + version + "-rc.1"
}
