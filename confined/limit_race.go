//go:build race

package confined

// dataFactor leaves room for the race detector's shadow memory.
const dataFactor = 16
