package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/agent/attach/clsact"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/atomicfile"
)

// BootID changes with every start of the machine; see random(4).
const BootID = "/proc/sys/kernel/random/boot_id"

// Remnant is a link that was taken away and that the kernel may run still.
type Remnant struct {
	pins.Remnant
	// Since is when it was taken away.
	Since time.Time
	// closing is the close beside the loop; nil where it was closed at once.
	closing *queue.Ticket
}

// isClosing reports whether the kernel has not answered yet that the link is closed.
func (r Remnant) isClosing() bool { return !r.closing.IsDone() }

// IsEnding reports whether the kernel was asked to close the link, and does not wait for others.
func (r Remnant) IsEnding() bool { return r.isClosing() && r.closing.HasBegun() }

// Remnants are those of all applications, and the file that keeps them: no pin tells of
// them. It closes each, and follows it until the kernel runs it no more.
type Remnants struct {
	byUID map[string][]Remnant
	file  string
	// Hold is called beside the loop before a link of an application is closed; tests hold links by it.
	Hold func(uid string)
	// closing closes links next to the loop.
	closing *queue.Queue
	log     *slog.Logger
	// boot is that of the machine, and kept what is on disk.
	boot string
	kept []keptRemnant
}

// keptRemnants is the content of the file. It counts for one boot: after it, no link
// is left, and its ids are others'.
type keptRemnants struct {
	Boot     string        `json:"boot"`
	Remnants []keptRemnant `json:"remnants"`
}

// keptRemnant is one link.
type keptRemnant struct {
	UID string `json:"uid"`
	pins.Remnant
	// Since is when it was taken away, in unix milliseconds.
	Since int64 `json:"since"`
}

// restore takes over the links that an earlier agent took away and the kernel may run
// still.
func (rs *Remnants) restore() error {
	boot, err := os.ReadFile(BootID)
	if err != nil {
		return err
	}
	rs.boot = strings.TrimSpace(string(boot))
	rs.byUID, err = readRemnants(rs.file, rs.boot)
	return err
}

// readRemnants reads what an earlier agent of this boot left; nothing where there is
// no file.
func readRemnants(path, boot string) (map[string][]Remnant, error) {
	all := map[string][]Remnant{}
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
		all[r.UID] = append(all[r.UID], Remnant{Remnant: r.Remnant, Since: time.UnixMilli(r.Since)})
	}
	return all, nil
}

// Detach takes a link away. It is forgotten when the kernel agreed, and is a remnant
// until the kernel runs it no more. facts are those of the link, if they are known.
func (s *Set) Detach(l *pins.Link, facts pins.Facts, now time.Time) error {
	return s.detach(l, facts, now, false)
}

// DetachReplaced takes away a link in whose place another one runs under another pin.
func (s *Set) DetachReplaced(l *pins.Link, facts pins.Facts, now time.Time) error {
	return s.detach(l, facts, now, true)
}

func (s *Set) detach(l *pins.Link, facts pins.Facts, now time.Time, replaced bool) error {
	if !facts.Known() {
		var err error
		if facts, err = l.Identify(); err != nil && !isPartial(err) {
			s.log.Error("look at link that is to go", "pin", l.Path, "error", err)
		}
	}
	if err := s.pins.RemovePin(l); err != nil {
		return err
	}
	delete(s.links[l.UID], l.Attachment.Key())
	if _, ok := l.Link.(*clsact.Filter); ok {
		// The kernel said that it is gone.
		return l.Close()
	}
	s.Remnants.add(l, facts, now, replaced)
	return nil
}

// Replace lets a link go whose pin is another link's now. facts are its last. It is a remnant as one
// that was detached: somebody else may hold it, and what it runs may be what is to run no more.
func (s *Set) Replace(old *pins.Link, facts pins.Facts, now time.Time) {
	if !facts.EndsSlowly {
		pins.Sever(old.Link)
	}
	if !facts.Known() {
		// One that cannot be read runs nothing that is known.
		s.Release("replaced link", old)
		return
	}
	s.Remnants.add(old, facts, now, true)
}

// add closes a link that has no pin, which is a remnant until the kernel runs it no
// more: beside the loop where that takes long.
func (rs *Remnants) add(l *pins.Link, facts pins.Facts, now time.Time, replaced bool) {
	one := Remnant{Remnant: pins.Remnant{Attachment: l.Attachment, Facts: facts}, Since: now}
	if facts.EndsSlowly {
		what := fmt.Sprintf("%s on %s", l.Attachment.Program, l.Attachment.Place())
		// One that was replaced counts every event beside the other one until it is closed.
		owners := []string{queue.OwnerOf(l.UID, l.Attachment.Application)}
		hold := rs.Hold
		one.closing = rs.closing.Add(queue.Job{What: what, Owners: owners, Urgent: replaced, Owed: true, Run: func(context.Context) bool {
			hold(l.UID)
			if err := l.Close(); err != nil {
				rs.log.Error("close link", "link", what, "error", err)
			}
			return true
		}})
	} else {
		release(rs.log, "link", l)
	}
	if rs.byUID == nil {
		rs.byUID = map[string][]Remnant{}
	}
	rs.byUID[l.UID] = append(rs.byUID[l.UID], one)
}

// HasRoom reports whether a link can be taken away now; replaced, in whose place another
// one runs. One that ends slowly waits until there is room.
func (rs *Remnants) HasRoom(l *pins.Link, facts pins.Facts, replaced bool) bool {
	return l == nil || !facts.EndsSlowly || rs.closing.HasRoom(queue.OwnerOf(l.UID, l.Attachment.Application), replaced)
}

// Closing returns how many links are being closed, or wait for that, of the owner of an
// application's: a process in a pod can hold up the end of a probe in it.
func (rs *Remnants) Closing(uid string, app v1alpha1.Identity) int {
	return rs.closing.Of(queue.OwnerOf(uid, app))
}

// AwaitClosings waits until the kernel ended the links that are being closed.
func (rs *Remnants) AwaitClosings() { rs.closing.Wait() }

// Of returns the application's links that were taken away and may run still.
func (rs *Remnants) Of(uid string) []Remnant { return rs.byUID[uid] }

// HasClosed reports whether any application has a link that was closed and may run still.
// Of those that are being closed, the end wakes the loop.
func (rs *Remnants) HasClosed() bool {
	for _, all := range rs.byUID {
		if slices.ContainsFunc(all, func(r Remnant) bool { return !r.isClosing() }) {
			return true
		}
	}
	return false
}

// UIDs returns the UIDs of the applications that have remnants, sorted.
func (rs *Remnants) UIDs() []string { return slices.Sorted(maps.Keys(rs.byUID)) }

// Follow forgets the links that the kernel ended, and reports each other one to
// runs. While isHurried, it takes those that it has not asked about for ones that run.
func (rs *Remnants) Follow(isHurried func() bool, runs func(uid string, r Remnant, isClosing bool, err error)) {
	for _, uid := range rs.UIDs() {
		var left []Remnant
		for _, r := range rs.byUID[uid] {
			if r.isClosing() {
				// To ask the kernel would hold the link, and has no answer while it ends.
				left = append(left, r)
				runs(uid, r, true, nil)
			} else if isHurried() {
				left = append(left, r)
				runs(uid, r, false, nil)
			} else if is, err := r.Runs(); is || err != nil {
				left = append(left, r)
				runs(uid, r, false, err)
			}
		}
		if rs.byUID[uid] = left; len(left) == 0 {
			delete(rs.byUID, uid)
		}
	}
	if err := rs.keep(); err != nil {
		rs.log.Error("remember what is to be unloaded still", "error", err)
	}
}

// keep writes the file where it changed. It is not synced: it tells nothing
// after a crash of the machine. The next reconcile tries again what could not be written.
func (rs *Remnants) keep() error {
	now := keptRemnants{Boot: rs.boot, Remnants: []keptRemnant{}}
	for _, uid := range rs.UIDs() {
		for _, one := range rs.byUID[uid] {
			now.Remnants = append(now.Remnants, keptRemnant{uid, one.Remnant, one.Since.UnixMilli()})
		}
	}
	if slices.Equal(now.Remnants, rs.kept) {
		return nil
	}
	body, err := json.Marshal(now)
	if err == nil {
		err = atomicfile.WriteUnsynced(rs.file, body)
	}
	if err == nil {
		rs.kept = now.Remnants
	}
	return err
}
