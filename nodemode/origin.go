package nodemode

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/lifecycle"
)

// originFile is where the state keeps the origin that what runs came from.
const originFile = "source.json"

// origin is which definitions a host was told to read. Who changes it may have
// mistyped it, and then the absence of a definition says nothing.
type origin struct {
	Address string `json:"address"`
	Ref     string `json:"ref,omitempty"`
	Path    string `json:"path"`
}

// originOf is the same for all spellings of one source. It has no secrets: a new
// password is no new source.
func originOf(o Options) origin {
	from := origin{Address: o.Source, Ref: o.Ref, Path: path.Clean(filepath.ToSlash(o.Path))}
	if u, err := url.Parse(o.Source); err == nil && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		from.Address = u.String()
	} else if dir, err := filepath.Abs(o.Source); err == nil && !strings.Contains(o.Source, "://") && !isSCP(o.Source) {
		from.Address = dir
	}
	return from
}

// String is the origin for people.
func (o origin) String() string {
	if o == (origin{}) {
		return "one that is not known"
	}
	said := o.Address
	if o.Ref != "" {
		said += ", ref " + o.Ref
	}
	if o.Path != "." {
		said += ", path " + o.Path
	}
	return said
}

// readOrigin is the origin that the state was last run with; the zero value,
// which is no origin, where that is not known.
func readOrigin(state string) origin {
	var was origin
	data, err := os.ReadFile(filepath.Join(state, originFile))
	if err != nil || json.Unmarshal(data, &was) != nil {
		return origin{}
	}
	return was
}

// settleOrigin makes the origin of this run the one that absence counts from,
// once it has been read, and of nothing that runs it is open whether it defines it.
func (h *Host) settleOrigin() error {
	now := originOf(h.opts)
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
func (h *Host) protectSource(all []standing) *UnloadProtection {
	now := originOf(h.opts)
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
