package gate

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
)

// DeniedGrants is what a running version grants to readers of its maps and the policies deny. The zero value denies nothing.
type DeniedGrants struct {
	// Reasons are those that the version is denied for, and is not without its grants.
	Reasons []policies.Reason
	// Kept are the maps with the grants that are not denied.
	Kept map[string]v1alpha1.Map
	// Unloads says that a policy unloads the version for its grants, or for something else.
	Unloads bool
}

// Why names the rules that deny the grants, in one line.
func (d DeniedGrants) Why() string {
	lines := make([]string, 0, len(d.Reasons))
	for _, r := range d.Reasons {
		lines = append(lines, Sentence(r))
	}
	return "readers of its maps are withdrawn, since policies deny them: " + strings.Join(lines, "; ")
}

// DeniedGrants evaluates what a running version grants, for a definition that does not replace it: whether the version is denied,
// and for less without its readers. It asks no registry. What was collected before counts, or else the definition alone. Where that
// is no answer, nothing is denied. The arguments are those of EvaluateRunning.
func (e *Evaluator) DeniedGrants(ctx context.Context, definition Request, running *intent.Payload) (denied DeniedGrants) {
	if running == nil || running.Tombstone || len(running.Programs) == 0 {
		return denied
	}
	bare, isLess := running.Narrowed(nil)
	if !isLess {
		return denied
	}
	ctx, cancel := context.WithTimeout(registry.CacheOnly(ctx), recordTimeout)
	defer cancel()
	definition.Passing = true
	decide := e.decideFromMemory
	with, err := decide(ctx, asSealed(definition, *running))
	if err != nil {
		decide = e.decideKnown
		with, err = decide(ctx, asSealed(definition, *running))
	}
	if err != nil || !slices.ContainsFunc(with.Denied, isDecided) {
		return denied
	}
	without, err := decide(ctx, asSealed(definition, bare))
	if err != nil || slices.ContainsFunc(without.Denied, func(r policies.Reason) bool { return !isDecided(r) }) {
		return denied
	}
	least := countRules(without.Denied)
	all := countRules(with.Denied)
	for _, r := range with.Denied {
		if isDecided(r) && all[r.Rule] > least[r.Rule] {
			denied.Reasons = append(denied.Reasons, r)
		}
	}
	if len(denied.Reasons) == 0 {
		return denied
	}
	denied.Unloads, _ = with.Unloads(definition.Application != nil)
	denied.Kept = keepAllowed(*running, func(narrowed intent.Payload) bool {
		decision, err := decide(ctx, asSealed(definition, narrowed))
		return err == nil && !isMore(countRules(decision.Denied), least)
	})
	return denied
}

// keepAllowed are the grants of a version with which it is allowed, one after the other.
func keepAllowed(version intent.Payload, isAllowed func(intent.Payload) bool) map[string]v1alpha1.Map {
	kept := map[string]v1alpha1.Map{}
	try := func(name string, m v1alpha1.Map) {
		before := kept[name]
		kept[name] = m
		if narrowed, _ := version.Narrowed(kept); !isAllowed(narrowed) {
			kept[name] = before
		}
	}
	for _, name := range slices.Sorted(maps.Keys(version.Maps)) {
		m := version.Maps[name]
		for _, g := range m.Export {
			try(name, v1alpha1.Map{Export: append(slices.Clone(kept[name].Export), g)})
		}
		if m.Metrics != nil {
			try(name, v1alpha1.Map{Export: kept[name].Export, Metrics: m.Metrics})
		}
	}
	return kept
}

// decideFromMemory evaluates a request in whole.
func (e *Evaluator) decideFromMemory(ctx context.Context, req Request) (policies.Decision, error) {
	verdict, err := e.Evaluate(ctx, req)
	if err == nil {
		err = verdict.Unevaluated()
	}
	return verdict.Decision(), err
}

// decideKnown evaluates what is known of a request without its image.
func (e *Evaluator) decideKnown(ctx context.Context, req Request) (policies.Decision, error) {
	_, set := e.active()
	decision, _, err := e.decideByDefinition(ctx, set, req)
	return decision, err
}

func isDecided(r policies.Reason) bool { return !r.Failed }

// countRules counts reasons by their rules. What a reason says of other grants may change with them.
func countRules(reasons []policies.Reason) map[string]int {
	count := map[string]int{}
	for _, r := range reasons {
		count[r.Rule]++
	}
	return count
}

// isMore reports whether a rule has more reasons than another count of them.
func isMore(rules, than map[string]int) bool {
	for rule, n := range rules {
		if n > than[rule] {
			return true
		}
	}
	return false
}
