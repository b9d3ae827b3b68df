package loader

import (
	"os"
	"runtime"
	"testing"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/harness/need"
)

// A few kilobytes of types must not take gigabytes of the agent, which compares
// the types of two objects: what is nested is nested as a graph.
func TestTypesThatMultiplyTakeNoMemory(t *testing.T) {
	object, err := os.ReadFile("../../../bytecode/testdata/nested_unions.o")
	if err != nil {
		t.Fatal(err)
	}
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("reads_nested", "xdp", "")}), object)
	if err != nil {
		t.Fatal(err)
	}
	const most = 64 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	load(t, p, nil)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("an object of %d bytes took %d MiB, want %d at most", len(object), took>>20, most>>20)
	}
}
