package ui_test

import (
	"slices"
	"testing"

	"github.com/skep-dev/skep/test/harness/browser"
)

// whenShown has a page keep when its first cell of the fleet was painted, in milliseconds since it was asked for.
const whenShown = `new MutationObserver((_, o) => {
	if (!document.querySelector('[role=gridcell]')) return;
	o.disconnect();
	requestAnimationFrame(() => setTimeout(() => { window.shownAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true });`

// BenchmarkFirstPaint opens the page of a fleet of 1,000 nodes and 200 applications, of which the process knows nothing yet.
func BenchmarkFirstPaint(b *testing.B) {
	config := serveCluster(b, fleetOf(b, 1000, 200))
	in := browser.Start(b)
	var all []float64
	for b.Loop() {
		p := browser.Open(in, b, browser.UI(b, "--kubeconfig", config)+"#/fleet", whenShown)
		p.Holds("the fleet is shown", `window.shownAt > 0`)
		all = append(all, browser.Evaluate[float64](p, `window.shownAt`))
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "ms-p50")
	b.ReportMetric(all[len(all)-1], "ms-max")
}
