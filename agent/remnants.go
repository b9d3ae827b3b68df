package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/kernel"
	"github.com/skep-dev/skep/agent/statedir"
	"github.com/skep-dev/skep/atomicfile"
)

// keptRemnants is the content of the file. It counts for one boot: after it, no link
// is left, and its ids are others'.
type keptRemnants struct {
	Boot     string        `json:"boot"`
	Remnants []keptRemnant `json:"remnants"`
}

// keptRemnant is one link.
type keptRemnant struct {
	UID string `json:"uid"`
	kernel.Remnant
	// Since is when it was taken away, in unix milliseconds.
	Since int64 `json:"since"`
}

// readRemnants reads what an earlier agent of this boot left; nothing where there is
// no file.
func readRemnants(path, boot string) (map[string][]remnant, error) {
	all := map[string][]remnant{}
	body, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	var kept keptRemnants
	if err == nil {
		err = json.Unmarshal(body, &kept)
	}
	if err != nil {
		return all, fmt.Errorf("read what is to be unloaded still: %w", err)
	}
	if kept.Boot != boot {
		return all, nil
	}
	for _, r := range kept.Remnants {
		all[r.UID] = append(all[r.UID], remnant{r.Remnant, time.UnixMilli(r.Since)})
	}
	return all, nil
}

// keepRemnants writes the file where it changed. It is not synced: it tells nothing
// after a crash of the machine. What could not be written is tried again at the next
// pass.
func (p *pass) keepRemnants() {
	kept := keptRemnants{Boot: p.boot, Remnants: []keptRemnant{}}
	for _, uid := range p.unloading() {
		for _, r := range p.owned.remnants[uid] {
			kept.Remnants = append(kept.Remnants, keptRemnant{uid, r.Remnant, r.since.UnixMilli()})
		}
	}
	if slices.Equal(kept.Remnants, p.keptRemnants) {
		return
	}
	body, err := json.Marshal(kept)
	if err == nil {
		err = atomicfile.WriteUnsynced(p.dir.Path(statedir.Remnants), body)
	}
	if err != nil {
		p.opts.Log.Error("remember what is to be unloaded still", "error", err)
		return
	}
	p.Agent.keptRemnants = kept.Remnants
}

// restoreRemnants takes over what an earlier agent took away and the kernel may run
// still.
func (a *Agent) restoreRemnants() {
	boot, err := os.ReadFile(bootID)
	if err == nil {
		a.boot = strings.TrimSpace(string(boot))
		a.owned.remnants, err = readRemnants(a.dir.Path(statedir.Remnants), a.boot)
	}
	if err != nil {
		a.opts.Log.Error("what an earlier agent took away is not looked after", "error", err)
	}
}
