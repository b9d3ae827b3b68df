package artifacts_test

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/release/artifacts"
)

const (
	uncut      = "# Changelog\n\n## Unreleased\n\n- A thing.\n\n## v0.1.0 - 2026-01-01\n\n- Old.\n"
	uncutChart = "apiVersion: v2\nname: skep\nversion: 0.1.0\nappVersion: v0.1.0\nkubeVersion: \">=1.30.0-0\"\n"
)

func TestACutGivesWhatIsUnreleasedAVersion(t *testing.T) {
	changelog, chart, err := artifacts.Cut([]byte(uncut), []byte(uncutChart), "v0.2.0", created)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Replace(uncut, "## Unreleased\n", "## Unreleased\n\n## v0.2.0 - 2026-12-01\n", 1), string(changelog)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(strings.ReplaceAll(uncutChart, "0.1.0", "0.2.0"), string(chart)); diff != "" {
		t.Error(diff)
	}
	for sentence, c := range map[string]struct{ changelog, chart, version, says string }{
		"a version that has a section": {uncut, uncutChart, "v0.1.0", "has its section already"},
		"nothing is unreleased":        {string(changelog), uncutChart, "v0.3.0", `"## Unreleased" is empty`},
		"a pre-release":                {uncut, uncutChart, "v0.2.0-rc.1", "a pre-release has no section of its own"},
		"a version that is none":       {uncut, uncutChart, "0.2.0", "write it as vX.Y.Z"},
		"a chart without appVersion":   {uncut, "version: 0.1.0\n", "v0.2.0", "has 1 lines of its version"},
	} {
		if _, _, err := artifacts.Cut([]byte(c.changelog), []byte(c.chart), c.version, created); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: it says %v, and not %q", sentence, err, c.says)
		}
	}
}

func TestAReleaseIsOfACommitThatWasCut(t *testing.T) {
	changelog, chart, err := artifacts.Cut([]byte(uncut), []byte(uncutChart), "v0.2.0", created)
	if err != nil {
		t.Fatal(err)
	}
	tagged := strings.Replace(string(chart), "appVersion: v0", "appVersion: 0", 1)
	for sentence, c := range map[string]struct{ changelog, chart, version, says string }{
		"an image of another tag":        {string(changelog), tagged, "v0.2.0", "has version 0.2.0 and appVersion 0.2.0:"},
		"the version that was cut":       {string(changelog), string(chart), "v0.2.0", ""},
		"a pre-release of any commit":    {uncut, uncutChart, "v0.2.0-rc.1", ""},
		"a version without a section":    {uncut, uncutChart, "v0.2.0", `no section "## v0.2.0": make cut VERSION=v0.2.0`},
		"a chart of the version before":  {string(changelog), uncutChart, "v0.2.0", "has version 0.1.0 and appVersion v0.1.0: make cut VERSION=v0.2.0"},
		"a commit of the version before": {uncut, string(chart), "v0.1.0", "has version 0.2.0"},
	} {
		files := fstest.MapFS{artifacts.ChangelogFile: {Data: []byte(c.changelog)}, artifacts.ChartFile: {Data: []byte(c.chart)}}
		err := artifacts.CheckCut(files, c.version)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: it says %v, and not %q", sentence, err, c.says)
		}
	}
}
