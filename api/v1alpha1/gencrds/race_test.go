//go:build race

package main

// raceFactor is how much more the race detector has Go allocate: it drops what pools
// keep.
const raceFactor = 4
