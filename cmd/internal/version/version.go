// Package version knows which build a command is. It prints nothing.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// What the linker sets for a release: its version, its commit, and when the commit was
// made (RFC 3339). A release is built from the files of its commit, where Go finds no git.
var release, revision, committed string

// Build is what a binary knows of itself. Its keys are part of the command line's contract.
type Build struct {
	// Version is the release's, or what Go made of the commit.
	Version string `json:"version"`
	// Revision is the commit; empty if Go did not read git.
	Revision string `json:"revision,omitempty"`
	// Time is when the commit was made.
	Time string `json:"time,omitempty"`
	// Modified reports whether files differed from the commit.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// This returns the build of the running binary.
func This() Build {
	info, _ := debug.ReadBuildInfo()
	return of(info, Build{Version: release, Revision: revision, Time: committed})
}

// of reads what Go wrote into the binary; info is nil if Go wrote nothing. What the linker
// set is of a release.
func of(info *debug.BuildInfo, linked Build) Build {
	b := linked
	b.Go, b.Platform = runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH
	if info != nil {
		b.Version = cmp.Or(linked.Version, info.Main.Version)
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.time":
				b.Time = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	b.Version = cmp.Or(b.Version, "unknown")
	return b
}

// String returns the version and, if known, the commit. What Go made of a commit has it already.
func (b Build) String() string {
	s := b.Version
	if short := b.Revision[:min(12, len(b.Revision))]; !strings.Contains(s, short) {
		s += " " + short
	}
	if b.Modified {
		s += " with changes"
	}
	return s
}
