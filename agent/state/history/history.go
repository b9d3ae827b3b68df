// Package history remembers what last ran at each place of a node, also when an interface
// or the agent was away meanwhile: what ran at a place has precedence there. It grants
// nothing itself.
package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/hook"
)

// Bounds on what is remembered: interfaces that are gone, of one application, and
// records of applications that this node has no intent of.
const (
	maxGone    = 64
	maxUnknown = 1024
)

// At names a place of an application across reboots: an interface by its plan.Label, since
// one that is made anew has another index, and a network namespace another inode.
type At struct{ UID, Hook, Interface string }

// InMemory names the place of an application in the memory for maps.
func InMemory(uid string) At { return At{UID: uid, Hook: plan.MapMemory().Hook} }

// Record is what ran of an application at a place, whole. In the memory for maps, it
// is a revision that was loaded, without an interface.
type Record struct {
	UID       string `json:"uid"`
	Hook      string `json:"hook"`
	Interface string `json:"interface"`
	Revision  string `json:"revision"`
	// Programs are their names, sorted.
	Programs []string `json:"programs"`
	// Need is what they take of the place's limits.
	Need plan.Need `json:"need"`
	// Gone is when the interface was first missed, in unix milliseconds; 0 while it
	// is there.
	Gone int64 `json:"gone,omitempty"`
}

// At returns the place of the record.
func (r Record) At() At { return At{r.UID, r.Hook, r.Interface} }

// Covers reports whether these programs of the revision are among what ran.
func (r Record) Covers(revision string, programs []string) bool {
	return revision != "" && r.Revision == revision && !slices.ContainsFunc(programs, func(name string) bool {
		return !slices.Contains(r.Programs, name)
	})
}

// Equals reports whether exactly these programs of the revision ran, and were measured: their
// need is known, and not only how many they are.
func (r Record) Equals(revision string, programs []string) bool {
	return r.Covers(revision, programs) && len(r.Programs) == len(programs) && (r.Hook != plan.XDP || r.Need.Functions > 0)
}

func (r Record) equal(other Record) bool {
	return r.At() == other.At() && r.Revision == other.Revision && slices.Equal(r.Programs, other.Programs) &&
		r.Need == other.Need && r.Gone == other.Gone
}

// IsLimited reports whether the programs of a hook share the limits of an interface.
func IsLimited(name string) bool {
	h, _ := hook.Lookup(name)
	return h.TakesPriority()
}

// History is what ran, and the file that keeps it. The caller serializes all calls.
type History struct {
	// records are replaced by Keep alone, together with what finds them.
	records map[At]Record
	byPlace map[[2]string][]Record
	byUID   map[string][]At
	needs   map[string]plan.Need
	file    string
	// unkept says why the records are not on disk.
	unkept string
}

// Open reads the file of an earlier agent. Where it cannot, the history is empty, beside an
// error.
func Open(file string) (*History, error) {
	h := &History{records: map[At]Record{}, file: file}
	body, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	}
	var list []Record
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err != nil {
		return h, fmt.Errorf("read what ran: %w", err)
	}
	for _, r := range list {
		h.records[r.At()] = r
	}
	h.index(h.sorted())
	return h, nil
}

// Lookup returns what ran of an application at a place.
func (h *History) Lookup(at At) (Record, bool) {
	r, ok := h.records[at]
	return r, ok
}

// On returns what ran on a hook of an interface, by its plan.Label, in the order of the UIDs.
func (h *History) On(hook, on string) []Record { return h.byPlace[[2]string{hook, on}] }

// Of returns the places where an application ran.
func (h *History) Of(uid string) []At { return h.byUID[uid] }

// Need returns what the same programs, sorted, of a revision took of a chain where they ran and were
// measured.
func (h *History) Need(uid, revision string, programs []string) (plan.Need, bool) {
	need, ok := h.needs[needKey(uid, revision, programs)]
	return need, ok
}

// needKey names programs of a revision. No name has a slash.
func needKey(uid, revision string, programs []string) string {
	return uid + "/" + revision + "/" + strings.Join(programs, "/")
}

// Clone returns a copy of all records, by place.
func (h *History) Clone() map[At]Record { return maps.Clone(h.records) }

// sorted are the records by interface, hook and UID.
func (h *History) sorted() []Record {
	return slices.SortedFunc(maps.Values(h.records), func(x, y Record) int {
		return cmp.Or(cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.Hook, y.Hook), cmp.Compare(x.UID, y.UID))
	})
}

// index makes what finds the records.
func (h *History) index(sorted []Record) {
	h.byPlace, h.byUID, h.needs = map[[2]string][]Record{}, map[string][]At{}, map[string]plan.Need{}
	for _, r := range sorted {
		place := [2]string{r.Hook, r.Interface}
		h.byPlace[place], h.byUID[r.UID] = append(h.byPlace[place], r), append(h.byUID[r.UID], r.At())
		if r.Hook == plan.XDP && r.Equals(r.Revision, r.Programs) {
			h.needs[needKey(r.UID, r.Revision, r.Programs)] = r.Need
		}
	}
}

// IsKept reports whether the records are on disk.
func (h *History) IsKept() bool { return h.unkept == "" }

// Keep replaces the records, and writes them where they changed. The next Keep tries again
// what could not be written; an error that is the same again is not returned.
func (h *History) Keep(next map[At]Record) error {
	changed := !maps.EqualFunc(h.records, next, Record.equal)
	if !changed && h.IsKept() {
		return nil
	}
	h.records = next
	sorted := h.sorted()
	h.index(sorted)
	err := h.write(sorted)
	if err == nil {
		h.unkept = ""
		return nil
	}
	if h.unkept == err.Error() {
		return nil
	}
	h.unkept = err.Error()
	return err
}

// write writes the file anew.
func (h *History) write(list []Record) error {
	body, err := json.Marshal(list)
	if err == nil {
		err = atomicfile.Write(h.file, body)
	}
	if err != nil {
		return fmt.Errorf("write what runs: %w", err)
	}
	return nil
}

// Present returns what runs at the places of interfaces that exist. An application
// that runs two revisions at one place has no revision there.
func Present(interfaces []plan.Interface, links []plan.Link, chains []plan.Chain) map[At]Record {
	now, names := map[At]Record{}, map[plan.Device]string{}
	for _, i := range interfaces {
		names[i.Device] = i.Label()
	}
	add := func(uid, hook string, on plan.Device, revision, program string) {
		name, there := names[on]
		if !there {
			return
		}
		at := At{uid, hook, name}
		one, seen := now[at]
		if !seen {
			one = Record{UID: uid, Hook: hook, Interface: name, Revision: revision}
		}
		if one.Revision != revision {
			one.Revision = ""
		}
		// A namespace may be there twice under one label while it is made anew.
		if !slices.Contains(one.Programs, program) {
			one.Programs = append(one.Programs, program)
		}
		now[at] = one
	}
	for _, l := range links {
		if IsLimited(l.Attachment.Hook) && !l.Severed {
			add(l.UID, l.Attachment.Hook, l.Attachment.Target.Device(), l.Revision, l.Attachment.Program)
		}
	}
	for _, c := range chains {
		for _, m := range c.Members {
			if !c.Severed {
				add(m.UID, plan.XDP, c.Device, m.Revision, m.Program)
			}
		}
	}
	for _, one := range now {
		slices.Sort(one.Programs)
	}
	return now
}

// Bound bounds what is remembered of interfaces that are gone, by application, and of
// applications that are not known. No application takes another's space.
func Bound(all map[At]Record, isKnown func(uid string) bool) {
	gone, unknown := map[string][]Record{}, []Record{}
	for at, one := range all {
		switch {
		case !isKnown(at.UID):
			unknown = append(unknown, one)
		case one.Gone != 0:
			gone[at.UID] = append(gone[at.UID], one)
		}
	}
	drop := func(list []Record, most int) {
		if len(list) <= most {
			return
		}
		slices.SortFunc(list, func(x, y Record) int {
			// What is there comes first, and then what was missed last.
			return cmp.Or(cmp.Compare(min(x.Gone, 1), min(y.Gone, 1)), cmp.Compare(y.Gone, x.Gone), cmp.Compare(x.Interface, y.Interface), cmp.Compare(x.Hook, y.Hook),
				cmp.Compare(x.UID, y.UID))
		})
		for _, one := range list[most:] {
			delete(all, one.At())
		}
	}
	for _, list := range gone {
		drop(list, maxGone)
	}
	drop(unknown, maxUnknown)
}
