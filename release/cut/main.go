// Command cut prepares the commit of a release: what is unreleased in CHANGELOG.md becomes the
// section of the version, and the chart has the version. make cut runs it, and then makes the
// kustomize directory anew.
//
// It changes files of the working tree alone. Package artifacts says how, and checks it when the
// release is made.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/skep-dev/skep/release/artifacts"
)

func main() {
	version := flag.String("version", "", "version of the release, as vX.Y.Z")
	flag.Parse()
	if err := run(".", *version, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "cut:", err)
		os.Exit(1)
	}
}

// run cuts a version in the module below root.
func run(root, version string, at time.Time) error {
	changelogFile, chartFile := filepath.Join(root, artifacts.ChangelogFile), filepath.Join(root, artifacts.ChartFile)
	changelog, err := os.ReadFile(changelogFile)
	if err != nil {
		return err
	}
	chart, err := os.ReadFile(chartFile)
	if err != nil {
		return err
	}
	if changelog, chart, err = artifacts.Cut(changelog, chart, version, at); err != nil {
		return err
	}
	if err := os.WriteFile(changelogFile, changelog, 0o644); err != nil { //nolint:gosec // it is the repository's
		return err
	}
	return os.WriteFile(chartFile, chart, 0o644) //nolint:gosec // so is this
}
