package policies

import "cmp"

// What a worker takes of the memory beside what its task may take.
const (
	// processBytes is for what is no heap, and for what the heap grows to before the
	// worker looks at it. Pages of the binary are shared, and do not count.
	processBytes = 32 << 20
	// emptyBytes is what its heap holds before the first task.
	emptyBytes = 8 << 20
	// keptBytes is how much memory a worker keeps in compiled policies: a small one
	// takes a quarter of a MiB, one of 256 KiB eleven.
	keptBytes = 24 << 20
	// slack is how much a heap may hold beside what it is bounded to: what the
	// collector lets stand at the smallest.
	slack = 16 << 20
)

// heapBytes is how much a heap may hold that keeps so much between tasks, where a task
// may take so much. With the collector at a hundred percent, twice of what it keeps may
// stand.
func heapBytes(kept, task int64) int64 { return 2*kept + slack + task }

// WorkerBytes is the most memory that all workers of such an Engine take together, in
// bytes: each pool has as many as places, whether they work or wait.
func (o EngineOptions) WorkerBytes() int64 {
	evaluators, memory := int64(cmp.Or(o.Evaluators, defaultEvaluators)), cmp.Or(o.MemoryBytes, DefaultMemory)
	prover := processBytes + heapBytes(emptyBytes, memory)
	small := processBytes + heapBytes(emptyBytes+keptBytes, memory+memoryFactor*largeBytes)
	large := processBytes + heapBytes(emptyBytes+keptBytes, memory+memoryFactor*maxInputBytes)
	// The workers of namespaces' small documents end before one has a large document.
	return (adminCompiles+tenantCompiles)*prover + evaluators*small + large + max(evaluators*small, large)
}
