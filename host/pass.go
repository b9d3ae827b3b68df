package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/image"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
)

// judgesAtOnce bounds how many definitions are judged at the same time: enough
// to hide a slow registry, few enough to spare it.
const judgesAtOnce = 4

// settingsState is the gate in force, and what is wrong with the files that
// were to replace it.
type settingsState struct {
	judge *gate.Judge
	trust *signing.Trust
	err   error
}

// tag is what an image's tag stood for when its generation was first judged.
type tag struct {
	generation int64
	digest     string
	// checked is when the tag was last asked for, moved what it stands for
	// since, if that is another digest.
	checked time.Time
	moved   string
}

// tagCheckEvery is how often a tag is asked for, to report that it moved, and
// tagCheckTimeout how long a pass waits for the answers.
const (
	tagCheckEvery   = 5 * time.Minute
	tagCheckTimeout = 5 * time.Second
)

// Pass brings everything up to date once: settings, source, definitions,
// verdicts, intents. Whatever fails is in the status, and what runs is kept.
func (h *Host) Pass(ctx context.Context) {
	began := h.opts.Now()
	h.refreshSettings(ctx)
	sourceErr := h.refreshDefinitions(ctx)
	if ctx.Err() != nil {
		return
	}
	if h.settings.judge == nil {
		h.publish(began, nil, brakes{}, sourceErr)
		return
	}
	standings, held := h.standings(ctx, sourceErr)
	if ctx.Err() != nil {
		return
	}
	on := brakes{policies: h.brake(standings), source: held}
	outcomes := make([]outcome, 0, len(standings))
	for _, s := range standings {
		o := outcome{standing: s}
		o.move, o.why = s.Settle(h.settings.trust.Revoked(), on.policies != nil)
		o.why = h.whyHidden(o, on.source, sourceErr)
		if o.err = h.handOver(s, o); o.err != nil {
			h.opts.Log.Error("hand intent to the agent", "application", s.id.String(), "error", o.err)
		}
		outcomes = append(outcomes, o)
	}
	if sourceErr == nil && !slices.ContainsFunc(standings, standing.waits) {
		if err := h.settleOrigin(); err != nil {
			h.opts.Log.Error("remember the source", "error", err)
		}
	}
	h.publish(began, outcomes, on, sourceErr)
	h.prune(ctx)
}

// brakes are what waits for a human: a change of policies, a change of the
// source. Each is nil where it holds nothing.
type brakes struct{ policies, source *Brake }

// The bytecode cache is looked at every pruneEvery and may hold cacheBytes
// beside what is in force.
const (
	pruneEvery = time.Hour
	cacheBytes = 256 << 20
)

// prune drops the bytecode that nothing in force needs. A cache that cannot be
// pruned is no reason to stop.
func (h *Host) prune(ctx context.Context) {
	if h.opts.Now().Sub(h.pruned) < pruneEvery {
		return
	}
	h.pruned = h.opts.Now()
	needed := map[string]bool{}
	for _, p := range h.live() {
		needed[p.ImageDigest], needed[p.ObjectDigest] = true, true
	}
	_, err := h.images.Prune(ctx, image.PruneOptions{MaxBytes: cacheBytes, Keep: func(d string) bool { return needed[d] }})
	if err != nil {
		h.opts.Log.Warn("prune bytecode cache", "error", err)
	}
}

// standing is one application as a pass finds it.
type standing struct {
	gate.Standing
	id v1alpha1.Identity
	// def is the definition; the zero value where the source has none.
	def definition
}

// waits tells whether it runs and its absence does not count yet.
func (s standing) waits() bool { return s.def.app == nil && s.Runs() && s.Hidden }

// missing tells whether it runs and was looked for in vain.
func (s standing) missing() bool { return s.def.app == nil && s.Runs() && !s.Hidden }

// outcome is one application after a pass.
type outcome struct {
	standing
	move gate.Move
	why  string
	// err is why the agent did not get to know of the move.
	err error
}

// handOver tells the agent of a move, where there is anything to tell.
func (h *Host) handOver(s standing, o outcome) error {
	envelope, err := h.envelope(s, o)
	if err != nil || envelope == nil || h.agent == nil {
		return err
	}
	return h.agent.Accept(envelope)
}

// refreshSettings reads policies and signers again. Those in force stay where
// the new ones cannot be read. They are read whole every time: nothing short of
// reading tells that a file behind a link, or a package that is imported, did
// not change, and a revocation must not be missed.
func (h *Host) refreshSettings(ctx context.Context) {
	if h.settings.judge == nil {
		h.settings.err = h.openGate(ctx)
		return
	}
	s, err := LoadSettings(ctx, h.opts.Policies, h.opts.Signers)
	if err != nil {
		if ctx.Err() == nil {
			h.settings.err = err
		}
		return
	}
	h.settings.judge.Retrust(s.Trust)
	h.settings.judge.Repolicy(s.Policies)
	h.settings.trust, h.settings.err = s.Trust, nil
}

// refreshDefinitions brings source and definitions up to date. On an error the
// ones before stay, since nothing can be said of the new.
func (h *Host) refreshDefinitions(ctx context.Context) error {
	t, err := h.fetch(ctx)
	if err != nil {
		return err
	}
	if t.state == h.tree.state && h.defs.mayHide != nil {
		return nil
	}
	defs, err := load(ctx, t, h.opts.Path)
	if err != nil {
		return err
	}
	if t.rewritten {
		h.opts.Log.Warn("the source's history was rewritten; its new head is judged like any other", "revision", t.revision)
	}
	h.tree, h.defs = t, defs
	for _, d := range defs.all {
		h.places[uidOf(d.app.Identity())] = d.place()
	}
	return nil
}

// standings judges every definition and joins what the agent holds. While the
// source has never been read, absence from it says nothing; where it is another
// than before, much of it waits behind the brake that is returned.
func (h *Host) standings(ctx context.Context, sourceErr error) ([]standing, *Brake) {
	live := h.live()
	all := make([]standing, len(h.defs.all))
	group := errgroup.Group{}
	group.SetLimit(judgesAtOnce)
	for i, d := range h.defs.all {
		id := d.app.Identity()
		all[i] = standing{id: id, def: d, Standing: gate.Standing{Live: live[uidOf(id)]}}
		all[i].Request = h.request(d, all[i].Live)
		delete(live, uidOf(id))
	}
	for i := range all {
		group.Go(func() error {
			all[i].Verdict, all[i].Err = h.settings.judge.Judge(ctx, all[i].Request)
			return nil
		})
	}
	_ = group.Wait()
	h.remember(ctx, all)
	for uid, p := range live {
		hidden := sourceErr != nil || h.defs.mayHide == nil || h.defs.mayHide(p.Application, or(h.places[uid], p.Source))
		all = append(all, standing{id: p.Application, Standing: gate.Standing{Live: p, Hidden: hidden}})
		delete(h.tags, uid)
	}
	slices.SortFunc(all, func(a, b standing) int { return compareIdentities(a.id, b.id) })
	brake := h.brakeSource(all)
	for i := range all {
		all[i].Held = h.settings.judge.Hold(ctx, all[i].Standing)
	}
	return all, brake
}

// whyHidden is why an application was settled as it was, in words that name
// what keeps its absence from counting.
func (h *Host) whyHidden(o outcome, held *Brake, sourceErr error) string {
	if o.def.app != nil || !o.Hidden || o.move != gate.MoveKeep || o.Unloads() {
		return o.why
	}
	switch {
	case sourceErr != nil:
		return "the source cannot be read; what runs is kept"
	case held != nil && slices.Contains(held.Applications, o.id.String()):
		return "the brake holds it: the source is another than before and does not define it; confirm with skep confirm " + held.Revision
	}
	for _, p := range h.problemsOf(o) {
		return "its definition cannot be read, and what runs is kept: " + p.Source.String() + ": " + p.Message
	}
	return o.why
}

// problemsOf are those that an application's absence may be due to: its own,
// else those where it was found before, else all that name no definition.
func (h *Host) problemsOf(o outcome) []schemas.Problem {
	place := or(h.places[uidOf(o.id)], o.Live.Source)
	var own, there, all []schemas.Problem
	for _, p := range h.defs.problems {
		switch {
		case p.Definition != nil && *p.Definition == o.id:
			own = append(own, p)
		case p.Definition != nil:
		case p.Source.File == place || strings.HasPrefix(p.Source.File, place+"/"):
			there = append(there, p)
			fallthrough
		default:
			all = append(all, p)
		}
	}
	for _, some := range [][]schemas.Problem{own, there} {
		if len(some) > 0 {
			return some
		}
	}
	return all
}

// live is what the agent holds, by UID.
func (h *Host) live() map[string]*intent.Payload {
	all := map[string]*intent.Payload{}
	if h.agent == nil {
		return all
	}
	for _, s := range h.agent.Status() {
		// Its intent may be lost with the state; the source still decides.
		if uidOf(s.Application) == s.UID {
			all[s.UID] = &intent.Payload{Application: s.Application, UID: s.UID}
		}
	}
	for _, o := range h.agent.Intents() {
		p := o.Payload()
		all[p.UID] = &p
	}
	return all
}

// request asks the gate about a definition, by the digest its tag stood for
// when this generation was first judged.
func (h *Host) request(d definition, live *intent.Payload) gate.Request {
	req := gate.Request{Application: d.app, Requester: policies.Requester{Username: h.tree.author}}
	known := h.tags[uidOf(d.app.Identity())]
	switch {
	case known != nil && known.generation == d.generation:
		req.Digest = known.digest
	case live != nil && !live.Tombstone && live.Generation == d.generation:
		req.Digest = live.ImageDigest
	}
	return req
}

// remember keeps what tags were resolved to, and asks now and then whether one
// moved, which is reported and never followed. A digest that is known from
// before this process was started is asked about at once.
func (h *Host) remember(ctx context.Context, all []standing) {
	ctx, cancel := context.WithTimeout(ctx, tagCheckTimeout)
	defer cancel()
	group := errgroup.Group{}
	group.SetLimit(judgesAtOnce)
	for _, s := range all {
		resolved := s.Verdict.Image()
		if s.Err != nil || resolved.Digest == "" {
			continue
		}
		uid := uidOf(s.id)
		known := h.tags[uid]
		if known == nil || known.generation != s.def.generation {
			known = &tag{generation: s.def.generation, digest: resolved.Digest}
			if !s.Runs() || s.Live.Generation != known.generation {
				known.checked = h.opts.Now()
			}
			h.tags[uid] = known
		}
		if resolved.Tag == "" || h.opts.Now().Sub(known.checked) < tagCheckEvery {
			continue
		}
		known.checked = h.opts.Now()
		group.Go(func() error {
			h.look(ctx, known, s.def.app.Body().Bytecode.Image)
			return nil
		})
	}
	_ = group.Wait()
}

// look asks what a tag stands for now. Where nobody answers, what was found out
// before stays.
func (h *Host) look(ctx context.Context, known *tag, ref string) {
	now, err := h.images.Resolve(ctx, ref)
	if err != nil {
		return
	}
	known.moved = ""
	if now.Digest != known.digest {
		known.moved = now.Digest
	}
}

// brake holds a change of policies that would unload much of what runs, until
// it is confirmed. It returns nil where there is nothing to hold.
func (h *Host) brake(all []standing) *Brake {
	running := 0
	b := &Brake{Revision: h.settings.judge.Revision(), Reason: "the policies or signers changed", Applications: []string{}}
	for _, s := range all {
		if s.Runs() {
			running++
		}
		if s.Unloads() {
			b.Applications = append(b.Applications, s.id.String())
		}
	}
	if h.isConfirmed(b.Revision) || !gate.Brake(running, len(b.Applications)) {
		return nil
	}
	return b
}

// envelope is what the agent is to get for an outcome; nil where it is to get
// nothing.
func (h *Host) envelope(s standing, o outcome) (intent.Envelope, error) {
	last := int64(0)
	if s.Live != nil {
		last = s.Live.Serial
	}
	stamp := gate.Stamp{UID: uidOf(s.id), Serial: gate.NextSerial(last, h.opts.Now().UnixMilli())}
	switch o.move {
	case gate.MoveSeal:
		stamp.Source = s.def.place()
		return s.Verdict.Seal(h.sealer, stamp)
	case gate.MoveBury:
		h.opts.Log.Info("unload application", "application", s.id.String(), "reason", o.why)
		return gate.Bury(h.sealer, s.id, stamp, o.why)
	}
	return nil, nil
}

// compareIdentities orders by namespace, name and kind, as people look for
// them.
func compareIdentities(a, b v1alpha1.Identity) int {
	for _, pair := range [][2]string{{a.Namespace, b.Namespace}, {a.Name, b.Name}, {a.Kind, b.Kind}} {
		if pair[0] != pair[1] {
			if pair[0] < pair[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// Confirm lets a change that the brake holds go through and returns what was
// held. The revision is the one the status names; another is refused, since
// something changed since.
func (h *Host) Confirm(revision string) (Brake, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range []*Brake{h.status.Source.Brake, h.status.Brake} {
		if b != nil && b.Revision == revision {
			h.confirmed[revision] = true
			h.poke()
			return *b, nil
		}
	}
	return Brake{}, fmt.Errorf("confirm %s: the brake does not hold that revision; see skep status", revision)
}

// isConfirmed tells whether a human let a revision through since the start.
func (h *Host) isConfirmed(revision string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed[revision]
}

// poke has Run pass soon.
func (h *Host) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
