package nodemode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/gate/evaluations"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
)

// evaluationsAtOnce bounds how many definitions are evaluated from memory at the same
// time. What a registry has to be asked for is left to evaluations.
const evaluationsAtOnce = 4

// tag is what an image's tag stood for when its generation was first evaluated.
type tag struct {
	generation int64
	digest     string
	// checked is when the tag was last asked for, moved what it stands for
	// since, if that is another digest.
	checked time.Time
	moved   string
}

// read is when a generation of a definition was first read.
type read struct {
	generation int64
	at         time.Time
}

// tagCheckEvery is how often a tag is asked for, to report that it moved, and
// tagCheckTimeout how long the registry may take.
const (
	tagCheckEvery   = 5 * time.Minute
	tagCheckTimeout = 5 * time.Second
)

// Sync brings everything up to date once: settings, source, definitions,
// verdicts, intents. Whatever fails is in the status, and what runs is kept.
//
// It decides from memory and waits for no registry. What only a registry knows is
// asked beside it; until the answer comes, the application is pending, and what
// runs of it is kept. A revocation that is written meanwhile acts at once.
func (h *Host) Sync(ctx context.Context) {
	began := h.opts.Now()
	h.settings.refresh(ctx)
	revoke(ctx, h)
	refreshCatalog(ctx, h)
	if ctx.Err() == nil {
		h.act(ctx, began, true)
	}
}

// act decides about every application and hands over what follows, anew where
// settings change meanwhile. With anew, registries are asked again even where
// there is an answer.
func (h *Host) act(ctx context.Context, began time.Time, anew bool) {
	for h.rounds = 1; ctx.Err() == nil && !actOnce(ctx, h, began, anew); h.rounds++ {
	}
}

// mostRounds is how often act begins anew at most because policies or signers changed: files that change all the time hold up
// nothing. After that only what a revocation unloads counts at once, and the rest soon.
const mostRounds = 3

// actOnce is act by the settings that are active. It reports false where it gave up, since others are by now.
func actOnce(ctx context.Context, h *Host, began time.Time, anew bool) bool {
	sourceErr := h.catalog.err
	if h.settings.evaluator == nil {
		h.publish(began, nil, protections{}, sourceErr)
		return true
	}
	observations, held, ok := h.observations(ctx, anew)
	if !ok || ctx.Err() != nil {
		return false
	}
	// What became of a version is known no more once another replaces it.
	settleVersions(h)
	on := protections{policies: h.protect(observations), source: held}
	weighing := h.weighs(observations)
	outcomes := make([]outcome, 0, len(observations))
	for _, s := range observations {
		if isAmended(ctx, h) {
			return false
		}
		o := outcome{observation: s}
		o.action, o.why = s.Decide(h.settings.trust.Revoked(), on.policies != nil || weighing)
		if weighing && on.policies == nil && o.action == lifecycle.Keep && s.Unloads() {
			o.why = "a policy denies it; it is kept until the rest of what runs is evaluated, for " + weighFor.String() + " at most"
		}
		o.why = h.catalog.whyHidden(o, on.source)
		o.err = h.handOver(s, o)
		outcomes = append(outcomes, o)
	}
	if sourceErr == nil && !slices.ContainsFunc(observations, observation.waits) {
		if err := h.settleOrigin(); err != nil {
			h.opts.Log.Error("remember the source", "error", err)
		}
	}
	if h.catalog.defs.mayHide != nil {
		h.defined.keep(h.catalog.tree.Author, outcomes)
	}
	h.publish(began, outcomes, on, sourceErr)
	h.prune(ctx)
	return true
}

// observation is one application as a sync finds it.
type observation struct {
	lifecycle.Observation
	id v1alpha1.Identity
	// def is the definition; the zero value where the source has none.
	def definition
	// grants are those of what runs that policies deny.
	grants gate.DeniedGrants
}

// waits reports whether it runs and its absence does not count yet.
func (s observation) waits() bool { return s.def.app == nil && s.Runs() && s.Hidden }

// missing reports whether it runs and was looked for in vain.
func (s observation) missing() bool { return s.def.app == nil && s.Runs() && !s.Hidden }

// outcome is one application after a sync.
type outcome struct {
	observation
	action lifecycle.Action
	why    string
	// err is why the agent did not get to know of the action.
	err error
}

// handOver tells the agent of an action, where there is anything to tell, and notes what unload
// protection counts.
func (h *Host) handOver(s observation, o outcome) error {
	envelope, err := h.envelope(s, o)
	if err == nil && envelope != nil && h.agent != nil {
		err = h.agent.Accept(envelope)
	}
	isTaken := err == nil
	if isTaken && envelope != nil && h.agent != nil {
		intent.LogGrants(s.Live, h.live()[uidOf(s.id)], h.opts.Log.Info)
	}
	if err != nil {
		h.opts.Log.Error("hand intent to the agent", "application", s.id.String(), "error", err)
		// An unload acts even where the agent cannot store it. What the agent did not take is handed over again, and counts then.
		now := lifecycle.Observation{Live: h.live()[uidOf(s.id)]}
		isTaken = o.action == lifecycle.Unload && !now.Runs()
	}
	if isTaken && o.action == lifecycle.Unload && s.Unloads() {
		h.unloaded[uidOf(s.id)] = unload{revision: h.settings.evaluator.Revision(), at: h.opts.Now()}
	}
	if isTaken && o.action != lifecycle.Keep {
		h.metrics.moves.WithLabelValues(string(o.action)).Inc()
	}
	return err
}

// observations joins definitions, verdicts and what the agent holds. While the
// source has never been read, absence from it says nothing; where it is another
// than before, much of it waits behind unload protection that is returned. It reports false
// where settings changed meanwhile.
func (h *Host) observations(ctx context.Context, anew bool) ([]observation, *UnloadProtection, bool) {
	live := h.live()
	all := make([]observation, len(h.catalog.defs.all))
	for i, d := range h.catalog.defs.all {
		id := d.app.Identity()
		all[i] = observation{id: id, def: d, Observation: lifecycle.Observation{Live: live[uidOf(id)]}}
		all[i].Request = h.request(d, all[i].Live)
		delete(live, uidOf(id))
	}
	ok := unlessAmended(ctx, h, all, func(s *observation) {
		s.Verdict, s.Err = h.evaluate(ctx, h.question(*s, "definition", s.Request, ""), s.Request, anew)
		if errors.Is(s.Err, gate.ErrPending) && !s.Runs() {
			// What a change of policies denies of what runs is counted whole.
			if denied, ok := h.settings.evaluator.DeniedByDefinition(ctx, s.Request, s.Err); ok {
				s.Verdict, s.Err = denied, nil
			}
		}
	})
	if !ok {
		return nil, nil, false
	}
	h.remember(ctx, all)
	for _, p := range live {
		all = append(all, h.defined.undefined(&h.catalog, p))
	}
	h.forget(all)
	slices.SortFunc(all, func(a, b observation) int { return a.id.Compare(b.id) })
	protection := h.protectSource(all)
	revoked := h.settings.trust.Revoked()
	ok = unlessAmended(ctx, h, all, func(s *observation) {
		if s.Running.Pending == nil {
			s.Running = h.evaluateRunning(ctx, *s, revoked, anew)
		}
		s.grants = evaluateGrants(ctx, h, *s)
	})
	there := map[string]bool{}
	for _, one := range all {
		there[uidOf(one.id)] = true
	}
	h.evaluations.Retain(there)
	return all, protection, ok
}

// undefined is what the agent holds and the source does not define. Until definitions have been read, that may be due to
// the source alone: then what the last run read counts, and where it read nothing, the decision waits.
func (k *keptDefinitions) undefined(c *catalog, p *intent.Payload) observation {
	if c.defs.mayHide != nil {
		return observation{id: p.Application, Observation: lifecycle.Observation{Live: p, Hidden: c.mayHide(p)}}
	}
	s, isKnown := k.observe(p)
	if !isKnown {
		s.Running.Pending = errNotRead
	}
	return s
}

// forget drops what is known of applications that are gone: the tags, and the times, of what is not
// defined for all that could be read, since a definition that comes back is new, and the places of what neither is
// nor runs.
func (h *Host) forget(all []observation) {
	defined, there := map[string]bool{}, map[string]bool{}
	for _, s := range all {
		uid := uidOf(s.id)
		defined[uid] = s.def.app != nil || s.Hidden
		there[uid] = s.def.app != nil || s.Runs()
	}
	maps.DeleteFunc(h.tags, func(uid string, _ *tag) bool { return !defined[uid] })
	maps.DeleteFunc(h.read, func(uid string, _ read) bool { return !defined[uid] })
	h.catalog.forget(there)
	h.forgetRequests(there)
}

// evaluateRunning is what the gate says of what runs. Where a signer of it is revoked and the answer
// takes too long, there is none, and the sealed record decides.
func (h *Host) evaluateRunning(ctx context.Context, s observation, revoked signing.Revocations, anew bool) gate.RunningVerdict {
	waits := false
	held := h.settings.evaluator.EvaluateRunningBy(ctx, s.Request, s.RunningToEvaluate(), func(ctx context.Context, req gate.Request) (gate.Verdict, error) {
		q := h.question(s, "running", req, req.Digest)
		q.Urgent = lifecycle.LostASigner(s.Live, revoked)
		verdict, err := h.evaluate(ctx, q, req, anew)
		if waits = q.Urgent && errors.Is(err, gate.ErrPending); waits && h.evaluations.Overdue(q) {
			err = evaluations.ErrOverdue
		}
		return verdict, err
	})
	if !waits {
		h.evaluations.Decided(uidOf(s.id))
	}
	return held
}

// evaluateGrants evaluates what runs grants to readers of its maps, and the definition does as well.
func evaluateGrants(ctx context.Context, h *Host, s observation) gate.DeniedGrants {
	running := s.RunningToEvaluate()
	if running != nil && s.def.app != nil {
		narrowed, _ := running.Narrowed(s.def.app.Body().Maps)
		running = &narrowed
	}
	return h.settings.evaluator.DeniedGrants(ctx, s.Request, running)
}

// atOnce does something with every observation, a few at a time.
func atOnce(all []observation, do func(*observation)) {
	group := errgroup.Group{}
	group.SetLimit(evaluationsAtOnce)
	for i := range all {
		group.Go(func() error {
			do(&all[i])
			return nil
		})
	}
	_ = group.Wait()
}

// question is what is asked about one application: about its definition, or about
// what runs.
func (h *Host) question(s observation, about string, req gate.Request, digest string) evaluations.Question {
	// An application that was read, or sealed, is JSON.
	body, _ := json.Marshal(req.Application)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q %q", body, req.Requester.Username, digest))
	return evaluations.Question{
		Name: uidOf(s.id) + "/" + about, Subject: hex.EncodeToString(sum[:]), Revision: h.settings.evaluator.Revision(),
		Registry: image.RegistryOf(req.Application.Body().Bytecode.Image),
	}
}

// evaluate answers a question from memory, else by the last answer that a registry
// was asked for, else with an error that says what is waited for.
func (h *Host) evaluate(ctx context.Context, q evaluations.Question, req gate.Request, anew bool) (gate.Verdict, error) {
	evaluator := h.settings.evaluator
	verdict, err := evaluator.Evaluate(registry.CacheOnly(ctx), req)
	if !errors.Is(err, image.ErrNotAsked) {
		h.evaluations.Note(q, evaluations.Answer{Verdict: verdict, Err: err})
		if !verdict.Outdated() || !anew {
			return verdict, err
		}
	}
	q.Ask = func(ctx context.Context) (r evaluations.Answer) {
		r.Verdict, r.Err = evaluator.Evaluate(ctx, req)
		return r
	}
	r := h.evaluations.Ask(ctx, q, anew)
	return r.Verdict, r.Err
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
		p := o.WithEvidence()
		all[p.UID] = &p
	}
	return all
}

// request asks the gate about a definition, by the digest its tag stood for
// when this generation was first evaluated.
func (h *Host) request(d definition, live *intent.Payload) gate.Request {
	req := gate.Request{Application: d.app, Requester: policies.Requester{Username: h.catalog.tree.Author}, Changed: h.changed(d), Sealed: live}
	known := h.tags[uidOf(d.app.Identity())]
	switch {
	case known != nil && known.generation == d.generation:
		req.Digest = known.digest
	case live != nil && !live.Tombstone && live.Generation == d.generation:
		req.Digest = live.ImageDigest
	}
	return req
}

// changed is when a definition was first read in its present form by this process, or
// another look at it was asked for since.
func (h *Host) changed(d definition) time.Time {
	uid := uidOf(d.app.Identity())
	if h.read[uid].generation != d.generation {
		h.read[uid] = read{generation: d.generation, at: h.opts.Now()}
	}
	if at := h.requestedAt(uid); at.After(h.read[uid].at) {
		return at
	}
	return h.read[uid].at
}

// remember keeps what tags were resolved to, and asks now and then whether one
// moved, which is reported and never followed. A digest that is known from
// before this process was started is asked about at once.
func (h *Host) remember(ctx context.Context, all []observation) {
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
		if resolved.Tag != "" {
			h.look(ctx, uid, known, s.def.app.Body().Bytecode.Image)
		}
	}
}

// look asks what a tag stands for now, and notes the answer to the last such
// question. Where nobody answers, what was found out before stays.
func (h *Host) look(ctx context.Context, uid string, known *tag, ref string) {
	q := evaluations.Question{Name: uid + "/tag", Subject: ref, Registry: image.RegistryOf(ref)}
	q.Ask = func(ctx context.Context) evaluations.Answer {
		ctx, cancel := context.WithTimeout(ctx, tagCheckTimeout)
		defer cancel()
		now, err := h.images.Resolve(ctx, ref)
		return evaluations.Answer{Digest: now.Digest, Err: err}
	}
	if r, ok := h.evaluations.Answered(q); ok && r.Err == nil {
		known.moved = ""
		if r.Digest != known.digest {
			known.moved = r.Digest
		}
	}
	if h.opts.Now().Sub(known.checked) >= tagCheckEvery {
		known.checked = h.opts.Now()
		h.evaluations.Ask(ctx, q, true)
	}
}

// envelope is what the agent is to get for an outcome; nil where it is to get
// nothing.
func (h *Host) envelope(s observation, o outcome) (intent.Envelope, error) {
	last := int64(0)
	if s.Live != nil {
		last = s.Live.Serial
	}
	stamp := gate.Stamp{UID: uidOf(s.id), Serial: gate.NextSerial(last, h.opts.Now().UnixMilli())}
	if stamp.Created = stamp.Serial; s.Runs() {
		// A definition that was taken out and comes back is a new application.
		stamp.Created = s.Live.CreatedAt()
	}
	switch o.action {
	case lifecycle.Seal:
		stamp.Source = s.def.place()
		return s.Verdict.Seal(h.sealer, stamp)
	case lifecycle.Unload:
		h.opts.Log.Info("unload application", "application", s.id.String(), "reason", o.why)
		return gate.SealTombstone(h.sealer, s.id, stamp, o.why)
	}
	switch {
	case !s.Runs():
		return nil, nil
	case len(s.grants.Reasons) > 0:
		h.opts.Log.Warn("grants of maps are denied and withdrawn", "application", s.id.String(), "reason", s.grants.Why())
		return gate.WithdrawGrants(h.sealer, *s.Live, stamp.Serial, s.grants.Kept, nil)
	case s.def.app == nil:
		return nil, nil
	}
	return gate.WithdrawGrants(h.sealer, *s.Live, stamp.Serial, s.def.app.Body().Maps, nil)
}

// poke has Run sync soon.
func (h *Host) poke() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
