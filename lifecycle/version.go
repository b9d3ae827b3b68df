package lifecycle

import (
	"errors"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
)

// errSuperseded stands for the verdict of a definition that says nothing about an older
// version.
var errSuperseded = errors.New("another version takes its place")

// ObserveVersion is the observation of a version that runs on some nodes beside the
// version of the definition in the request. Its Running is still to be evaluated.
func ObserveVersion(definition gate.Request, version intent.Payload) Observation {
	return Observation{Request: definition, Err: errSuperseded, Live: &version, Hidden: definition.Application == nil}
}

// VersionVerdict says whether a version may run on beside another one.
type VersionVerdict struct {
	// Keeps says that the version keeps running. Known says that all of it was evaluated:
	// a version that cannot be evaluated keeps running too.
	Keeps, Known bool
	// Denied says that a policy unloads it to which unload protection applies, and
	// ByCluster that it is a policy of the cluster.
	Denied, ByCluster bool
}

// VersionVerdict is the decision about a version of ObserveVersion; revoked are those of Decide.
func (o Observation) VersionVerdict(revoked signing.Revocations) VersionVerdict {
	free, _ := o.Decide(revoked, false)
	protected, _ := o.Decide(revoked, true)
	return VersionVerdict{
		Keeps:     free == Keep,
		Known:     o.Running.Evaluated && !o.Running.Undetermined && !o.Running.Partial,
		Denied:    free != Keep && protected == Keep,
		ByCluster: o.Running.UnloadsByCluster,
	}
}
