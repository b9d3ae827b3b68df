//go:build race

package confined

import (
	"io"
	"strings"
	"testing"
)

// TestAChildEndsAtItsFirstDataRace has a child answer after one: whoever started it
// would not look at how it ended.
func TestAChildEndsAtItsFirstDataRace(t *testing.T) {
	p := start(t, roleRacing)
	// It may be gone before it reads.
	_, _ = io.WriteString(p.Stdin, "hello")
	_ = p.Stdin.Close()
	said, err := io.ReadAll(p.Stdout)
	if err != nil || len(said) > 0 {
		t.Errorf("it wrote %q, %v", said, err)
	}
	if death := p.Wait(); death.Err == nil || !strings.Contains(death.Said, "DATA RACE") {
		t.Errorf("it ended by %v: %s", death.Err, death.Cause())
	}
}
