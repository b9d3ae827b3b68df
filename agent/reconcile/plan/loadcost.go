package plan

import (
	"fmt"

	"github.com/skep-dev/skep/bytecode"
)

// Joined programs are one load, whose cost is about their length times the moves of the kernel. Costs do not add up,
// but multiply, so a namespace has a share of each factor. All shares together make half of Limits.LoadCost; the
// other half is for programs beyond their namespace's share.
const (
	sharedTranslated = 32_000
	sharedMoves      = 1_500
)

// work is what the kernel makes of programs at a load, as in Need.
type work struct{ translated, moves int }

func (w work) add(n Need) work { return work{w.translated + n.Translated, w.moves + n.Moves} }

// fitsLoad returns why the load of all programs together would take too long with a claim of a namespace, or nil.
// A namespace within its share fits, whatever others have.
func (c Claim) fitsLoad(granted []Claim, limits Limits) *OverLimitError {
	grows := c.Need.Translated > c.Held.Translated || c.Need.Moves > c.Held.Moves
	if limits.LoadCost == 0 || c.Identity.Namespace == "" || c.Seniority <= Remembered || !grows {
		return nil
	}
	var cluster work
	byNamespace := map[string]work{}
	for i := range granted {
		if namespace := granted[i].Identity.Namespace; namespace != "" {
			byNamespace[namespace] = byNamespace[namespace].add(granted[i].Need)
		} else {
			cluster = cluster.add(granted[i].Need)
		}
	}
	percent := limits.SharePercent
	if percent == 0 {
		percent = 100
	}
	before := costOfNamespaces(byNamespace, percent)
	own := byNamespace[c.Identity.Namespace].add(c.Need)
	byNamespace[c.Identity.Namespace] = own
	if cost := costOfNamespaces(byNamespace, percent); cost > limits.LoadCost && cost > before {
		return overLoad(fmt.Sprintf("with it and what is kept for other namespaces the kernel may take up to %s to load the programs, at most %s are allowed",
			bytecode.LoadTime(cost), bytecode.LoadTime(limits.LoadCost)))
	}
	share := limits.LoadCost * uint64(percent) / 100
	if cost := cluster.with(own); cost > share {
		return overLoad(fmt.Sprintf("next to those of the cluster the programs of namespace %s may take the kernel up to %s to load, at most %s are allowed (%d %%)",
			c.Identity.Namespace, bytecode.LoadTime(cost), bytecode.LoadTime(share), percent))
	}
	var all work
	for _, w := range byNamespace {
		all = work{all.translated + w.translated, all.moves + w.moves}
	}
	if cost := cluster.with(all); cost > limits.LoadCost {
		return overLoad(fmt.Sprintf("next to those of the cluster the programs of all namespaces may take the kernel up to %s to load, at most %s are allowed",
			bytecode.LoadTime(cost), bytecode.LoadTime(limits.LoadCost)))
	}
	return nil
}

// with is what programs cost more where they are loaded together with w.
func (w work) with(others work) uint64 {
	return bytecode.CostOf(others.translated, w.moves) + bytecode.CostOf(w.translated, others.moves) - bytecode.CostOf(w.translated, 0)
}

// costOfNamespaces is that of a load of all programs of namespaces, with all shares, whether or not they are used.
func costOfNamespaces(byNamespace map[string]work, percent int) uint64 {
	var all, beyond work
	for _, w := range byNamespace {
		all.translated, all.moves = all.translated+w.translated, all.moves+w.moves
		beyond.translated += max(0, w.translated-sharedTranslated*percent/100)
		beyond.moves += max(0, w.moves-sharedMoves*percent/100)
	}
	return bytecode.CostOf(max(all.translated, sharedTranslated+beyond.translated), max(all.moves, sharedMoves+beyond.moves))
}

func overLoad(reason string) *OverLimitError {
	return &OverLimitError{Limit: "load time", Reason: reason,
		Fix: "make the program shorter, with fewer calls and divisions by registers, or attach to another interface"}
}
