package rollout

import (
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// LastEverywhere is the newest version of a live intent that was rolled out to all nodes it
// was meant for; nil if none was.
func LastEverywhere(live *intent.Payload) *intent.Payload {
	if live.Rollout != nil {
		return live.Previous
	}
	last := live.Alone()
	last.Undone = 0
	return &last
}

// UndoTarget is the version that an undo of the definition of a generation brings back;
// nil if there is none. For a definition that was never sealed it is the live version.
func UndoTarget(generation int64, live *intent.Payload) *intent.Payload {
	if live.Undone != 0 || live.Rollout == nil && live.Generation != generation {
		return live
	}
	return live.Previous
}

// AtRest is the progress of a rollout that does not move, whatever its nodes report; false
// if it may. undone says that the definition was undone, behindNodes that nodes have seen a
// newer intent, which was lost. blocked is why no version is rolled out, if there is a
// reason.
func AtRest(live *intent.Payload, undone, behindNodes bool, blocked v1alpha1.RolloutStatus) (p Progress, rests bool) {
	switch {
	case undone && live.Tombstone:
		p.Status.State = v1alpha1.RolloutRolledBack
		p.Status.Message = "it was rolled back, and the version before may run no more; change the definition, or see skep rollout resume"
	case undone:
		p.Status.State = v1alpha1.RolloutRolledBack
		p.Status.Message = "the version before was brought back to every node; change the definition, or see skep rollout resume"
	case blocked.State != "" && (live == nil || live.Rollout == nil || behindNodes):
		p.Status = blocked
	case live == nil || live.Tombstone || live.Rollout == nil:
	case behindNodes:
		p.Status.State = v1alpha1.RolloutProgressing
		p.Status.Message = "nodes have seen a newer intent, which the API server lost; this one waits to be sealed over it"
	default:
		return p, false
	}
	return p, true
}
