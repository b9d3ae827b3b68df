package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnOwnerEndsAtItsZeroByte(t *testing.T) {
	got := ParseOwner([]byte("{\"app\":\"a\"}\x00{\"app\":\"b\"}"))
	if diff := cmp.Diff(&Owner{App: "a"}, got); diff != "" {
		t.Errorf("owner (-want +got):\n%s", diff)
	}
}
