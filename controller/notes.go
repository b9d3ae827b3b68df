package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/skep-dev/skep/text"
)

// maxNote is how many bytes of an event's note the API server takes: it rejects
// an event that has more (noteLengthLimit of its validation), and nobody would
// hear of what has the most to say.
const maxNote = 1024

// brief is a recorder of events that the API server takes.
type brief struct{ events.EventRecorder }

// Eventf implements events.EventRecorder.
func (b brief) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	b.EventRecorder.Eventf(regarding, related, kind, reason, action, "%s", shortened(fmt.Sprintf(note, args...)))
}

// shortened is a note that fits, and says where the rest is.
func shortened(note string) string {
	return text.CutTo(note, maxNote, "… (the status has all of it)")
}
