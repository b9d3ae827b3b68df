package kernel

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/skep-dev/skep/intent"
)

// A few kilobytes of types must not take gigabytes of the agent, which compares
// the types of two objects: what is nested is nested as a graph.
func TestTypesThatMultiplyTakeNoMemory(t *testing.T) {
	object, err := os.ReadFile("../../bytecode/testdata/nested_unions.o")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := store(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("reads_nested", "xdp", "")}), object)
	if err != nil {
		t.Fatal(err)
	}
	const most = 64 << 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	load(t, s, p, nil)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > most {
		t.Errorf("an object of %d bytes took %d MiB, want %d at most", len(object), took>>20, most>>20)
	}
}

// An agent that is upgraded goes on with the contents of the maps whose layouts
// the earlier one noted by another hash.
func TestMapsNotedByAnEarlierAgentKeepTheirContents(t *testing.T) {
	for sentence, c := range map[string]struct {
		noted string
		kept  bool
	}{
		"as the earlier agent noted counts": {"cf7a402f25925a010ead18a8ebfceeb8", true},
		"as it noted another layout":        {"841ff9ac46941298b2537464f3aaf443", false},
		"as it is noted now":                {"", true},
		"as another is noted now":           {"2:cf7a402f25925a010ead18a8ebfceeb8", false},
		"beyond a bound":                    {noLayout, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			s, root := store(t)
			first := tracer(t, "1")
			load(t, s, first, nil)
			link := filepath.Join(root, "uid", first.Revision, "m-counts"+layoutSuffix)
			if now, err := os.Readlink(link); err != nil || !strings.HasPrefix(now, "2:") {
				t.Fatalf("noted as %q, %v", now, err)
			}
			if c.noted != "" {
				if err := errors.Join(os.Remove(link), os.Symlink(c.noted, link)); err != nil {
					t.Fatal(err)
				}
			}
			reopen(t, s)
			found, _, err := s.OpenRevision("uid", first.Revision)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = found.Close() }()
			next, reports, err := loadAndPin(s, tracer(t, "2"), found)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = next.Close() }()
			if len(reports) != 1 || reports[0].Map != "counts" || reports[0].Kept != c.kept {
				t.Errorf("reports: %+v", reports)
			}
		})
	}
}
