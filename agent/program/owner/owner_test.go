package owner

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnOwnerEndsAtItsZeroByte(t *testing.T) {
	got := Parse([]byte("{\"app\":\"a\"}\x00{\"app\":\"b\"}"))
	if diff := cmp.Diff(&Owner{App: "a"}, got); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
}
