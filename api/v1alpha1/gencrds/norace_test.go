//go:build !race

package main

// raceFactor is 1 where the race detector is off.
const raceFactor = 1
