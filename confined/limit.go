//go:build !race

package confined

// dataFactor is how much private memory a process may have for each byte of
// the limit on its heap.
const dataFactor = 2
