//go:build race

package schemas

// dataFactor leaves room for the race detector's shadow memory.
const dataFactor = 16
