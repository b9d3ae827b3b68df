package mapmetrics

import (
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// TestScansTakeATenthOfAProcessor after a first burst, and again after a rest.
func TestScansTakeATenthOfAProcessor(t *testing.T) {
	var p pace
	began := time.Now()
	now, used := began, time.Duration(0)
	work := func(limit time.Duration) {
		for now.Sub(began) < limit {
			used += slice
			pause := p.spend(now, now.Add(slice))
			now = now.Add(slice + pause)
		}
	}
	work(burst / 2)
	if now.Sub(began) != used {
		t.Errorf("%v of %v were used; the burst is %v", used, now.Sub(began), burst)
	}
	work(time.Minute)
	if most := time.Minute/share + 2*burst; used > most || used < time.Minute/share {
		t.Errorf("%v of a minute were used, want a tenth", used)
	}
	now = now.Add(time.Hour)
	if pause := p.spend(now, now.Add(burst)); pause > 0 {
		t.Errorf("after a rest it pauses %v", pause)
	}
}

// TestNoPublishWaitsForAScrape neither while it waits for scans, one of which hangs, nor while it exports: the agent's loop waits for
// what publishes.
func TestNoPublishWaitsForAScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(slog.New(slog.DiscardHandler))
		scanned := &source{Source: Source{Metrics: &v1alpha1.MapMetrics{}}, scan: &scan{}, ended: make(chan struct{}), begun: time.Now()}
		c.sources[key{}] = scanned
		hangs := *scanned
		hangs.ended = make(chan struct{})
		c.sources[key{name: "hangs"}] = &hangs
		exports := make(chan prometheus.Metric)
		scrape := sync.WaitGroup{}
		scrape.Go(func() { c.Collect(exports) })
		free := func(while string) {
			t.Helper()
			synctest.Wait()
			if !c.mu.TryLock() {
				t.Fatalf("a scrape holds the lock while it %s", while)
			}
			c.mu.Unlock()
		}
		free("waits for a scan")
		select {
		case m := <-exports:
			t.Errorf("it exports %v before the scan has ended", m)
		default:
		}
		c.end(scanned)
		// For the scan that hangs it waits as long as it has patience.
		<-time.After(patience)
		free("exports")
		c.Publish(nil)
		for range 2 {
			<-exports
		}
		scrape.Wait()
	})
}
