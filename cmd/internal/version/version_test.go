package version

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestVersionTellsTheCommit(t *testing.T) {
	commit := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}, {Key: "vcs.modified", Value: "false"},
	}}
	changed := &debug.BuildInfo{Main: commit.Main, Settings: []debug.BuildSetting{commit.Settings[0], {Key: "vcs.modified", Value: "true"}}}
	noGit := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for name, c := range map[string]struct {
		info   *debug.BuildInfo
		linked Build
		says   string
		when   string
	}{
		"a build of a commit":      {commit, Build{}, "(devel) 0123456789ab", "2026-01-02T03:04:05Z"},
		"a build of changed files": {changed, Build{}, "(devel) 0123456789ab with changes", ""},
		"a version and a commit":   {commit, Build{Version: "v1.2.3"}, "v1.2.3 0123456789ab", "2026-01-02T03:04:05Z"},
		"a release": {
			noGit, Build{Version: "v1.2.3", Revision: "fedcba9876543210", Time: "2026-05-06T07:08:09Z"}, "v1.2.3 fedcba987654", "2026-05-06T07:08:09Z",
		},
		"go install of a version": {&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, Build{}, "v1.2.3", ""},
		"a commit that Go named": {&debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20260102030405-0123456789ab+dirty"}, Settings: changed.Settings}, Build{},
			"v0.0.0-20260102030405-0123456789ab+dirty with changes", ""},
		"a build that looked at no git": {noGit, Build{}, "(devel)", ""},
		"a build that knows nothing":    {nil, Build{}, "unknown", ""},
	} {
		b := of(c.info, c.linked)
		if b.String() != c.says || b.Time != c.when || !strings.HasPrefix(b.Go, "go") || !strings.Contains(b.Platform, "/") {
			t.Errorf("%s: %q, %+v; want %q", name, b, b, c.says)
		}
	}
}
