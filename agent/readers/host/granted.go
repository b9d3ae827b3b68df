package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/readers/folder"
	"github.com/skep-dev/skep/agent/readers/grants"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/plain"
	"github.com/skep-dev/skep/intent"
)

// granted are the maps that groups of this host have of the version that runs, and why they do not have others.
func (r *Readers) granted(payload, runs intent.Payload, q *request) (maps []folder.Map, refused []error) {
	loaded, err := loadedMaps(payload, q)
	if err != nil {
		return nil, []error{err}
	}
	all, denied := grants.Of(payload, runs, loaded)
	for _, one := range denied {
		refused = append(refused, fmt.Errorf("map %s for %s: %s", one.Map, one.Access, one.Reason))
	}
	for _, m := range all {
		one := folder.Map{Name: m.Name, Map: q.revision.Maps[m.Name]}
		for _, g := range m.Grants {
			for _, group := range g.Groups {
				if err := r.give(&one, group, g.Access); err != nil {
					refused = append(refused, fmt.Errorf("map %s for group %s: %w", m.Name, group, err))
				}
			}
		}
		if len(one.Grants) > 0 {
			maps = append(maps, one)
		}
	}
	return maps, refused
}

// give gives a map to a group, which may have it already for less.
func (r *Readers) give(m *folder.Map, group string, to v1alpha1.MapAccess) error {
	if i := slices.IndexFunc(m.Grants, func(g folder.Grant) bool { return g.Group == group }); i >= 0 {
		if m.Grants[i].Access == v1alpha1.MapRead {
			m.Grants[i].Access = to
		}
		return nil
	}
	gid, err := r.gidOf(group)
	if err != nil {
		return err
	}
	m.Grants = append(m.Grants, folder.Grant{Group: group, GID: gid, Access: to})
	return nil
}

// gidOf returns the number of a group.
func (r *Readers) gidOf(group string) (uint32, error) {
	number := group
	if group[0] < '0' || group[0] > '9' {
		g, err := r.LookupGroup(group)
		if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) || errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("%s has no such group; make it, `groupadd --system %s`, or grant the map to a number", groupFile, group)
		}
		if err != nil {
			return 0, fmt.Errorf("look it up: %w", err)
		}
		number = g.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 32)
	// The largest number leaves a file's group as it is.
	if err != nil || gid == math.MaxUint32 {
		return 0, fmt.Errorf("%s is no number of a group", number)
	}
	return uint32(gid), nil
}

// loadedMaps are the maps that an intent grants, as they are in the kernel.
func loadedMaps(payload intent.Payload, q *request) (all []grants.Loaded, err error) {
	for name, m := range payload.Maps {
		in := q.revision.Maps[name]
		if len(m.Export) == 0 || in == nil {
			continue
		}
		info, err := plain.Of(in.Info())
		if err != nil {
			return nil, fmt.Errorf("read info of map %s: %w", name, err)
		}
		all = append(all, grants.Loaded{Name: name, Type: info.Type, Flags: info.Flags | q.object.maps[name].Flags, IsFrozen: info.Frozen(),
			IsTaken: isTaken(q.revision, name)})
	}
	return all, nil
}

func isTaken(r *loader.Revision, name string) bool { return r.Notes[name].From != "" }

// object is what is known of the maps of an object, once it is read.
type object struct {
	digest string
	serial int64
	ticket *queue.Ticket
	// maps are those that the intent grants, by name, and err says why nothing is known of them. They may be read when the ticket is done.
	maps map[string]folder.Fact
	err  error
}

func (o *object) isRead() bool { return o != nil && (o.ticket == nil || o.ticket.IsDone()) }

func (o *object) typesOf(name string) (folder.Types, error) { return o.maps[name].Types, nil }

// read has the object of what is loaded be read, next to the loop, unless it was for the same intent.
func (r *Readers) read(have *object, payload intent.Payload, digest string) *object {
	if have != nil && have.digest == digest && have.serial == payload.Serial {
		return have
	}
	o := &object{digest: digest, serial: payload.Serial}
	if digest == "" {
		o.err = errors.New("the intent of what is loaded is not known; its maps are published when another version is loaded")
		return o
	}
	o.ticket = r.queue.Add(queue.Job{What: digest, Owners: []string{queue.OwnerOf(payload.UID, payload.Application)}, Owed: true, Urgent: true,
		Run: func(context.Context) bool {
			o.maps, o.err = r.facts(payload, digest)
			return true
		}})
	return o
}

// facts reads what the kernel does not tell of the maps that an intent grants.
func (r *Readers) facts(payload intent.Payload, digest string) (map[string]folder.Fact, error) {
	file, err := r.Objects.Read(digest)
	if err != nil {
		return nil, fmt.Errorf("read what the object says of maps that are granted to groups: %w", err)
	}
	granted := func(yield func(string) bool) {
		for name, m := range payload.Maps {
			if len(m.Export) > 0 && !yield(name) {
				return
			}
		}
	}
	all, err := folder.FactsOf(file, granted, func(name string, err error) {
		r.Log.Warn("a map is published without its types", "application", payload.Application.String(), "map", name, "error", err)
	})
	if err != nil {
		return nil, fmt.Errorf("read what the object says of maps that are granted to groups: %w", err)
	}
	return all, nil
}

// fileStamp is another one when a file is another one.
type fileStamp struct {
	inode    uint64
	size     int64
	modified syscall.Timespec
}

func stampOf(path string) fileStamp {
	info, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileStamp{}
	}
	return fileStamp{st.Ino, st.Size, st.Mtim}
}
