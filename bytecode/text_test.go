package bytecode

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/library"
)

func TestTheLibrarySaysThatATypeDoesNotExist(t *testing.T) {
	types, err := btf.LoadSpecFromReader(bytes.NewReader(programs.Object("xdp_count")))
	if err != nil {
		t.Fatal(err)
	}
	const id = 1 << 20
	if _, err = types.TypeByID(id); err == nil {
		t.Fatal("a type that does not exist was found")
	}
	library.Says(t, "github.com/cilium/ebpf", err.Error(), textNoType(id))
}
