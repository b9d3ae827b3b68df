package mounter_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/readers/mounter"
)

// BenchmarkMount is a mount and an unmount of a volume, and how long the mounts took.
func BenchmarkMount(b *testing.B) {
	for _, maps := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("maps=%d", maps), func(b *testing.B) {
			n := newNode(b)
			var pins []mounter.Pin
			for i := range maps {
				pins = append(pins, mounter.Pin{Name: fmt.Sprint("map", i), Map: newMap(b).FD()})
			}
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				n.mounts(volume, pins...)
				took = append(took, time.Since(began))
				n.unmounts(volume)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// BenchmarkPodsAtOnce mounts the volumes of 200 pods at once, which take turns.
func BenchmarkPodsAtOnce(b *testing.B) {
	n := newNode(b)
	pin := mounter.Pin{Name: "map", Map: newMap(b).FD()}
	var all []mounter.Volume
	for i := range 200 {
		v := mounter.Volume{Pod: fmt.Sprintf("%08x-1f0e-4f5c-9d2e-0a1b2c3d4e5f", i), Name: "maps"}
		n.makes(v)
		all = append(all, v)
	}
	for b.Loop() {
		done := make(chan error)
		for _, v := range all {
			go func() { done <- n.tries(v, pin) }()
		}
		for range all {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		b.StopTimer()
		for _, v := range all {
			n.unmounts(v)
		}
		b.StartTimer()
	}
}
