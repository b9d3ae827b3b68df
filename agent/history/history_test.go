package history

import (
	"fmt"
	"testing"
)

// TestWhatIsThereIsRememberedBeforeWhatIsGone bounds records of applications that are
// not known, on interfaces that are there and on others.
func TestWhatIsThereIsRememberedBeforeWhatIsGone(t *testing.T) {
	all := map[At]Record{}
	for i := range 2 * maxUnknown {
		one := Record{UID: fmt.Sprintf("u%04d", i), Hook: "xdp", Interface: "eth0", Gone: int64(i)}
		if i%4 == 0 {
			one.Gone = 0
		}
		all[one.At()] = one
	}
	Bound(all, func(string) bool { return false })
	there, oldest := 0, int64(0)
	for _, one := range all {
		if one.Gone == 0 {
			there++
		} else if oldest == 0 || one.Gone < oldest {
			oldest = one.Gone
		}
	}
	if len(all) != maxUnknown || there != maxUnknown/2 || oldest < maxUnknown {
		t.Errorf("of %d, %d are of interfaces that are there; the longest gone is %d", len(all), there, oldest)
	}
}
