package plan

import (
	"cmp"
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

func workOf(n Need) work { return work{n.Translated, n.Moves} }

// percent is the share of a namespace.
func (l Limits) percent() int { return cmp.Or(l.SharePercent, 100) }

// beyondShare is what a namespace with a need has beyond its share.
func (l Limits) beyondShare(n Need) work {
	return work{max(0, n.Translated-sharedTranslated*l.percent()/100), max(0, n.Moves-sharedMoves*l.percent()/100)}
}

// with is what namespaces have beyond their shares once one of them, which had own, has more.
func (g *grants) with(own, more Need) work {
	before, after := g.limits.beyondShare(own), g.limits.beyondShare(own.add(more))
	return work{g.beyond.translated + after.translated - before.translated, g.beyond.moves + after.moves - before.moves}
}

// fitsLoad returns why the load of all programs together would take too long with a claim of a namespace, or nil.
// A namespace within its share fits, whatever others have.
func (g *grants) fitsLoad(c *Claim) *OverLimitError {
	grows := c.Need.Translated > c.Held.Translated || c.Need.Moves > c.Held.Moves
	if g.limits.LoadCost == 0 || c.Identity.Namespace == "" || c.Seniority <= Remembered || !grows {
		return nil
	}
	cluster, own := workOf(g.of[""]), g.of[c.Identity.Namespace]
	before := work{g.all.Translated - cluster.translated, g.all.Moves - cluster.moves}
	all := work{before.translated + c.Need.Translated, before.moves + c.Need.Moves}
	if cost := costOfNamespaces(all, g.with(own, c.Need)); cost > g.limits.LoadCost && cost > costOfNamespaces(before, g.beyond) {
		return overLoad(fmt.Sprintf("with it and what is kept for other namespaces the kernel may take up to %s to load the programs, at most %s are allowed",
			bytecode.LoadTime(cost), bytecode.LoadTime(g.limits.LoadCost)))
	}
	share := g.limits.LoadCost * uint64(g.limits.percent()) / 100
	if cost := cluster.with(workOf(own.add(c.Need))); cost > share {
		return overLoad(fmt.Sprintf("next to those of the cluster the programs of namespace %s may take the kernel up to %s to load, at most %s are allowed (%d %%)",
			c.Identity.Namespace, bytecode.LoadTime(cost), bytecode.LoadTime(share), g.limits.percent()))
	}
	if cost := cluster.with(all); cost > g.limits.LoadCost {
		return overLoad(fmt.Sprintf("next to those of the cluster the programs of all namespaces may take the kernel up to %s to load, at most %s are allowed",
			bytecode.LoadTime(cost), bytecode.LoadTime(g.limits.LoadCost)))
	}
	return nil
}

// with is what programs cost more where they are loaded together with w.
func (w work) with(others work) uint64 {
	return bytecode.CostOf(others.translated, w.moves) + bytecode.CostOf(w.translated, others.moves) - bytecode.CostOf(w.translated, 0)
}

// costOfNamespaces is that of a load of all programs of namespaces, with all shares, whether or not they are used.
func costOfNamespaces(all, beyond work) uint64 {
	return bytecode.CostOf(max(all.translated, sharedTranslated+beyond.translated), max(all.moves, sharedMoves+beyond.moves))
}

func overLoad(reason string) *OverLimitError {
	return &OverLimitError{Limit: "load time", Reason: reason,
		Fix: "make the program shorter, with fewer calls and divisions by registers, or attach to another interface"}
}
