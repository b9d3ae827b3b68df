package schemas_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/semver"

	"github.com/skep-dev/skep/schemas"
)

func TestTheModuleHasAVersionOfItsMajor(t *testing.T) {
	for release, want := range map[string]string{
		"v0.2.0": "v1.0.0-0.2.0", "v0.10.3": "v1.0.0-0.10.3", "v0.2.0-rc.1": "v1.0.0-0.2.0.rc.1", "v0.2.0-rc-a.1": "v1.0.0-0.2.0.rc-a.1",
		"v1.0.0": "v1.0.0", "v1.2.3-rc.1": "v1.2.3-rc.1",
	} {
		if got, err := schemas.ModuleVersion(release); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", release, got, err, want)
		}
	}
	for release, says := range map[string]string{
		"": "vX.Y.Z", "0.2.0": "vX.Y.Z", "v0.2": "vX.Y.Z", "v0.2.0+build": "no build metadata", "v2.0.0": "the path of that major version",
	} {
		if _, err := schemas.ModuleVersion(release); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: it says %v, and not %q", release, err, says)
		}
	}
}

func TestALaterReleaseHasALaterModule(t *testing.T) {
	var versions []string
	for _, release := range []string{"v0.1.0", "v0.2.0", "v0.2.1", "v0.10.0", "v1.0.0-rc.1", "v1.0.0", "v1.0.1"} {
		version, err := schemas.ModuleVersion(release)
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, version)
	}
	if !slices.IsSortedFunc(versions, semver.Compare) {
		t.Errorf("%v are not in order", versions)
	}
}
