package nodemode

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/nodemode/source"
)

// originFile is where the state keeps the origin that what runs came from.
const originFile = "source.json"

// readOrigin is the origin that the state was last run with; the zero value,
// which is no origin, where that is not known.
func readOrigin(state string) source.Origin {
	var was source.Origin
	data, err := os.ReadFile(filepath.Join(state, originFile))
	if err != nil || json.Unmarshal(data, &was) != nil {
		return source.Origin{}
	}
	return was
}

// settleOrigin makes the origin of this run the one that absence counts from,
// once it has been read, and of nothing that runs it is open whether it defines it.
func (h *Host) settleOrigin() error {
	now := h.opts.source().Origin()
	if h.agent == nil || h.origin == now {
		return nil
	}
	data, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("keep source: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(h.opts.State, originFile), data); err != nil {
		return fmt.Errorf("keep source: %w", err)
	}
	h.origin = now
	return nil
}

// protectSource holds what a source does not define that is not the one the state
// was last run with, where that is much of what runs and nobody confirmed it. It
// marks what is held and returns nil where nothing is.
func (h *Host) protectSource(all []observation) *UnloadProtection {
	now := h.opts.source().Origin()
	if h.origin == now {
		return nil
	}
	b, running := &UnloadProtection{Applications: []string{}}, 0
	for _, s := range all {
		if s.Runs() {
			running++
		}
		if s.missing() {
			b.Applications = append(b.Applications, s.id.String())
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", now, b.Applications))
	b.Revision = "source:" + hex.EncodeToString(sum[:8])
	if !lifecycle.NeedsConfirmation(running, len(b.Applications)) || h.isConfirmed(b.Revision) {
		return nil
	}
	b.Reason = fmt.Sprintf("the source was %s, and is %s, which does not define all that runs", h.origin, now)
	for i := range all {
		all[i].Hidden = all[i].Hidden || all[i].missing()
	}
	return b
}
