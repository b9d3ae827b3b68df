package nodemode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle/history"
)

// maxHistories bounds the applications whose versions are kept. Beyond it, those that are neither defined nor run are dropped.
const maxHistories = 512

// histories are the last versions of applications, by UID, in a file of the state. They are for people: nothing decides by them.
type histories struct {
	path string
	of   map[string][]v1alpha1.ApplicationVersion
	// last is what the file has.
	last []byte
}

// open reads the file. What cannot be read begins anew, and is returned as an error.
func (hs *histories) open(path string) error {
	hs.path, hs.of = path, map[string][]v1alpha1.ApplicationVersion{}
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(body, &hs.of)
	}
	if err != nil {
		hs.of = map[string][]v1alpha1.ApplicationVersion{}
		return fmt.Errorf("read history: %w", err)
	}
	hs.last = body
	return nil
}

// record records what a sync did: live is what agents have now, and results what they report, by UID.
func (hs *histories) record(outcomes []outcome, now history.Now, live map[string]*intent.Payload, results map[string]v1alpha1.VersionResult) error {
	there := map[string]bool{}
	for _, o := range outcomes {
		uid := uidOf(o.id)
		there[uid] = true
		n := now
		if n.Live = live[uid]; n.Live != nil && n.Live.Generation == 0 && !n.Live.Tombstone {
			// Its intent was lost with the state.
			n.Live = nil
		}
		if n.Live != nil {
			n.Result, n.Changes = results[uid], history.Changes(o.Live, n.Live)
			n.Live = history.Continues(hs.of[uid], o.Live, n.Live)
		}
		denied, err := history.DeniedBy(o.Observation, n.Live)
		if err != nil {
			return err
		}
		n.Denied = denied
		if all := history.Record(hs.of[uid], n); len(all) > 0 {
			hs.of[uid] = all
		}
	}
	if len(hs.of) > maxHistories && len(outcomes) > 0 {
		maps.DeleteFunc(hs.of, func(uid string, _ []v1alpha1.ApplicationVersion) bool { return !there[uid] })
	}
	return hs.save()
}

// save writes the file if it has something else.
func (hs *histories) save() error {
	body, err := json.Marshal(hs.of)
	if err != nil || bytes.Equal(body, hs.last) {
		return err
	}
	if err := atomicfile.Write(hs.path, body); err != nil {
		return fmt.Errorf("keep history: %w", err)
	}
	hs.last = body
	return nil
}

// openVersions reads the versions that the last run recorded.
func openVersions(h *Host) {
	if err := h.versions.open(filepath.Join(h.opts.State, historyFile)); err != nil {
		h.opts.Log.Error("the versions of applications are recorded anew", "error", err)
	}
}

// recordVersions records the versions of a sync.
func recordVersions(h *Host, outcomes []outcome) {
	if h.agent == nil {
		return
	}
	results := map[string]v1alpha1.VersionResult{}
	for _, a := range h.agent.Status() {
		results[a.UID] = resultOf(a)
	}
	if err := h.versions.record(outcomes, history.Now{At: h.opts.Now(), Revision: h.catalog.tree.Revision}, h.live(), results); err != nil {
		h.opts.Log.Error("record the versions of applications", "error", err)
	}
}

// resultOf is what the agent reports of the version that it should run.
func resultOf(a agent.ApplicationStatus) v1alpha1.VersionResult {
	switch state, _ := a.NodeState(); state {
	case v1alpha1.NodeLoaded:
		return v1alpha1.VersionDeployed
	case v1alpha1.NodeFailed, v1alpha1.NodeUnsupported:
		return v1alpha1.VersionFailed
	case v1alpha1.NodePending, v1alpha1.NodeWaiting, v1alpha1.NodeRetained, v1alpha1.NodeNotSelected, v1alpha1.NodeRemoved:
	}
	return ""
}

// settleVersions records what the agent reports now.
func settleVersions(h *Host) {
	if h.agent == nil {
		return
	}
	for _, a := range h.agent.Status() {
		if all := h.versions.of[a.UID]; len(all) > 0 {
			h.versions.of[a.UID] = asOfNow(all, &a)
		}
	}
	if err := h.versions.save(); err != nil {
		h.opts.Log.Error("record the versions of applications", "error", err)
	}
}

// asOfNow has the newest sealed version be what the agent reports of it now; the file follows with the next sync.
func asOfNow(all []v1alpha1.ApplicationVersion, on *agent.ApplicationStatus) []v1alpha1.ApplicationVersion {
	all = slices.Clone(all)
	i := slices.IndexFunc(all, func(v v1alpha1.ApplicationVersion) bool { return v.Serial > 0 })
	if i < 0 || on == nil || on.Tombstone || all[i].Digest != on.Digest {
		return all
	}
	if result := resultOf(*on); result != "" {
		all[i].Result = result
	}
	return all
}
