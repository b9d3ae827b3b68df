package nodemode

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/schemas"
)

// catalog is what the source defines, as far as it could be read, and where that was found. It belongs to the goroutine that syncs.
type catalog struct {
	source source.Source
	// path is the folder of the definitions within the source.
	path string
	log  *slog.Logger

	tree source.Tree
	defs definitions
	// places are where definitions were last found, by UID.
	places map[string]string
	// fetching is where a fetch that is under way will leave its result; nil
	// where none is. waited is how long a sync waits for one.
	fetching chan fetched
	waited   time.Duration
	// err is why the source could not be read last time.
	err error
}

// fetchTimeout is how long a source may take, from fetching it to its rendered
// definitions, before it is given up.
const fetchTimeout = 2 * time.Minute

// fetched is what a fetch came to. Without changed, the definitions are those
// read before.
type fetched struct {
	tree    source.Tree
	defs    definitions
	changed bool
	err     error
}

// errFetching is what a sync goes on with where a fetch takes its time.
var errFetching = errors.New("the source has not answered yet; what was read last stays active")

// fetch brings the source up to date beside the loop, and renders it there, so
// that neither a server nor a disk that hangs keeps a revocation or a changed
// policy waiting. It returns how long to wait for that. A fetch is waited for once:
// syncs after that only look whether it has ended.
func (c *catalog) fetch(ctx context.Context) (wait time.Duration) {
	if c.fetching == nil {
		c.fetching, wait = c.begin(ctx), c.waited
	}
	return wait
}

// take reads the result of a fetch that has ended, and reports whether there was one.
func (c *catalog) take() bool {
	select {
	case f := <-c.fetching:
		c.read(f)
		return true
	default:
		return false
	}
}

// mostReads is how often a folder is read that changed while it was read.
const mostReads = 2

// begin starts a fetch; its result comes out of the channel.
func (c *catalog) begin(ctx context.Context) chan fetched {
	out, before := make(chan fetched, 1), c.tree.State
	go func() {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		f := c.fetchOnce(ctx, before)
		for reads := 1; reads < mostReads && f.changed && f.tree.IsStale(); reads++ {
			f = c.fetchOnce(ctx, before)
		}
		out <- f
	}()
	return out
}

// fetchOnce reads the source, where its state is another than before.
func (c *catalog) fetchOnce(ctx context.Context, before string) (f fetched) {
	f.tree, f.err = c.source.Fetch(ctx)
	if f.changed = f.err == nil && f.tree.State != before; f.changed {
		f.defs, f.err = load(ctx, f.tree, c.path)
	}
	return f
}

// read takes over what a fetch came to. On an error the definitions before stay, since nothing can be said of the new.
func (c *catalog) read(f fetched) {
	c.fetching = nil
	if c.err = f.err; c.err != nil || !f.changed {
		return
	}
	if f.tree.Rewritten {
		c.log.Warn("the source's history was rewritten; its new head is evaluated like any other", "revision", f.tree.Revision)
	}
	for _, caution := range f.defs.misplaced {
		if !slices.Contains(c.defs.misplaced, caution) {
			c.log.Warn(caution)
		}
	}
	c.tree, c.defs = f.tree, f.defs
	for _, d := range f.defs.all {
		c.places[uidOf(d.app.Identity())] = d.place()
	}
}

// placeOf is where the definition of what runs was last found; empty where that is not known.
func (c *catalog) placeOf(p *intent.Payload) string { return or(c.places[p.UID], p.Source) }

// mayHide reports whether what runs may be defined although no definition of it could be read. While the source has never been
// read, absence from it says nothing.
func (c *catalog) mayHide(p *intent.Payload) bool {
	if c.err != nil || c.defs.mayHide == nil {
		return true
	}
	_, isEmptied := c.emptied(p)
	return isEmptied || c.defs.mayHide(p.Application, c.placeOf(p))
}

// emptied is schemas.Definitions.Emptied of a folder. Commits are whole.
func (c *catalog) emptied(p *intent.Payload) (schemas.Problem, bool) {
	if !c.tree.IsFolder() || c.defs.emptied == nil {
		return schemas.Problem{}, false
	}
	return c.defs.emptied(c.placeOf(p))
}

// problemsOf are those that the absence of what runs may be due to: its own,
// else those where it was found before, else all that name no definition.
func (c *catalog) problemsOf(live *intent.Payload) []schemas.Problem {
	place := c.placeOf(live)
	var own, there, all []schemas.Problem
	for _, p := range c.defs.problems {
		switch {
		case p.Definition != nil && *p.Definition == live.Application:
			own = append(own, p)
		case p.Definition != nil:
		case p.Source.File == place || strings.HasPrefix(p.Source.File, place+"/"):
			there = append(there, p)
			fallthrough
		default:
			all = append(all, p)
		}
	}
	if emptied, hides := c.emptied(live); hides {
		there = append(there, emptied)
	}
	for _, some := range [][]schemas.Problem{own, there} {
		if len(some) > 0 {
			return some
		}
	}
	return all
}

// whyHidden is why an application was settled as it was, in words that name
// what keeps its absence from counting.
func (c *catalog) whyHidden(o outcome, held *UnloadProtection) string {
	if o.def.app != nil || !o.Hidden || o.action != lifecycle.Keep || o.Unloads() {
		return o.why
	}
	switch {
	case c.err != nil:
		return "the source cannot be read; what runs is kept"
	case held != nil && slices.Contains(held.Applications, o.id.String()):
		return "unload protection holds it until the change is confirmed: the source is another than before and does not define it"
	}
	for _, p := range c.problemsOf(o.Live) {
		return "its definition cannot be read, and what runs is kept: " + p.Source.String() + ": " + p.Message
	}
	return o.why
}

// forget drops the places of what is not there any more.
func (c *catalog) forget(there map[string]bool) {
	maps.DeleteFunc(c.places, func(uid, _ string) bool { return !there[uid] })
}
