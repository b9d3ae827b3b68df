package nodereports

import (
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Report is what all nodes together report on one application.
type Report struct {
	// Serial is that of the newest version that a node has seen.
	Serial int64
	// Runs says that a node runs the application, or may.
	Runs bool
	// Partial says that a node could not have all of a version: it reports that version,
	// and may run parts of others.
	Partial bool
	// notReported says that a report had no room for the application.
	notReported bool
	// revisions are those that run, serials those of versions that were reported in short.
	revisions []string
	serials   []int64
}

// version is how nodes name one: in full by its revision, in short by its serial.
type version struct {
	revision string
	serial   int64
}

func versionOf(v *intent.Payload) version { return version{v.Revision(), v.VersionSerial()} }

// RunsVersion reports whether a node runs a version, or may.
func (r Report) RunsVersion(v *intent.Payload) bool { return r.runs(versionOf(v)) }

func (r Report) runs(v version) bool {
	return r.notReported || slices.Contains(r.revisions, v.revision) || slices.Contains(r.serials, v.serial)
}

// and adds the report of one node.
func (r Report) and(a v1alpha1.NodeApplication) Report {
	r.Serial = max(r.Serial, a.Serial)
	r.Partial = r.Partial || a.Revision != "" && (a.State == v1alpha1.NodeFailed || a.State == v1alpha1.NodeUnsupported)
	switch {
	case a.Revision != "":
		r.Runs = true
		if !slices.Contains(r.revisions, a.Revision) {
			r.revisions = append(r.revisions, a.Revision)
		}
	case isShort(a):
		r.Runs = true
		if !slices.Contains(r.serials, a.Serial) {
			r.serials = append(r.serials, a.Serial)
		}
	}
	return r
}

// isShort reports whether a node reports an application in short, without its name.
func isShort(a v1alpha1.NodeApplication) bool { return a.Kind == "" }
