package mapmetrics

import (
	"testing"
	"time"
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
