//go:build !race

package schemas

// dataFactor is how much private memory a process may have for each byte of
// the limit on its heap.
const dataFactor = 2
