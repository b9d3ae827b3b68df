package main

import (
	"log/slog"

	"k8s.io/apimachinery/pkg/api/resource"
)

// ownMemory is what the agent itself is left of a memory limit, in bytes: its process,
// and what the kernel takes for it beside maps.
const ownMemory = 1 << 30

// mapMemory is what maps may take, in bytes, where asked is what --map-memory says, or
// nil. It is at most what a memory limit leaves them: all but ownMemory, or half of a
// small one. Zero is no limit.
func mapMemory(log *slog.Logger, asked *resource.Quantity, limit int64) int64 {
	left := max(limit-ownMemory, limit/2)
	switch {
	case asked == nil:
		return left
	case asked.IsZero() || limit == 0 || asked.Value() <= left:
		return asked.Value()
	}
	log.Warn("--map-memory leaves the agent too little of its own memory limit; maps have less", "asked", asked.Value(), "limit", limit, "maps", left)
	return left
}
