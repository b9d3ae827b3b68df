package imagestore

import (
	"fmt"
	"testing"
)

func TestWhatIsKeptOfOneImageIsBounded(t *testing.T) {
	for name, c := range map[string]struct{ entries, size, most int }{
		"few and small":  {10, 100, 10},
		"many":           {200, 100, maxKept},
		"few and large":  {6, maxPacked, maxTogether / maxPacked},
		"one as it goes": {1, maxPacked, 1},
	} {
		memory := map[string][]byte{}
		for i := range c.entries {
			newest := fmt.Sprint("signatures.", i)
			memory[newest] = make([]byte, c.size)
			makeRoom(memory, newest, users{}.charged())
			if memory[newest] == nil {
				t.Fatalf("%s: the newest was dropped", name)
			}
		}
		if len(memory) != c.most {
			t.Errorf("%s: %d are kept, want %d", name, len(memory), c.most)
		}
	}
}
