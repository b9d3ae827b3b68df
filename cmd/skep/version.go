package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for a release.
var version string

// build is what a binary knows of itself. Its keys are part of the command
// line's contract.
type build struct {
	// Version is the release's, or what Go made of the commit.
	Version string `json:"version"`
	// Revision is the commit; empty where Go was not let look at git.
	Revision string `json:"revision,omitempty"`
	// Time is when the commit was made.
	Time string `json:"time,omitempty"`
	// Modified tells that files differed from the commit.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the commit the binary was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			if output == "json" {
				return printJSON(cmd.OutOrStdout(), b)
			}
			return printBuild(cmd.OutOrStdout(), b)
		},
	}
	outputFlag(cmd, &output, "text", "json")
	return cmd
}

// thisBuild is what the running binary is.
func thisBuild() build {
	info, _ := debug.ReadBuildInfo()
	return buildOf(info, version)
}

// buildOf reads what Go wrote into the binary, which is nil where it wrote
// nothing. A release has a version of its own.
func buildOf(info *debug.BuildInfo, release string) build {
	b := build{Version: release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil {
		b.Version = or(release, info.Main.Version)
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
	b.Version = or(b.Version, "unknown")
	return b
}

// String is the version and, where it is known, the commit.
func (b build) String() string {
	s := b.Version
	if b.Revision != "" {
		s += " " + b.Revision[:min(12, len(b.Revision))]
	}
	if b.Modified {
		s += " with changes"
	}
	return s
}

func printBuild(w io.Writer, b build) error {
	if _, err := fmt.Fprintf(w, "skep %s\n", b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "commit of %s, built with %s for %s\n", or(b.Time, "a time not known"), b.Go, b.Platform)
	return err
}
