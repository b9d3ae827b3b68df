package bytecode

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// FuzzInspect holds what every object must keep to, whatever its bytes: no
// panic, no endless work, facts or an error but not both, the same each time.
func FuzzInspect(f *testing.F) {
	for _, name := range programs.Names() {
		f.Add(programs.Object(name))
	}
	f.Add(usdt(f))
	f.Add(programs.Weak(programs.Object("xdp_kconfig"), "CONFIG_BPF_SYSCALL", "LINUX_KERNEL_VERSION"))
	own, err := filepath.Glob("testdata/*.o")
	if err != nil || len(own) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range append(own, ciliumObjects(f)...) {
		object, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(object) < 64<<10 {
			f.Add(object)
		}
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		opts := Options{MaxSize: 1 << 20, MaxInstructions: 1 << 18}
		first, err := Inspect(bytes.NewReader(object), opts)
		again, errAgain := Inspect(bytes.NewReader(object), opts)
		if (err == nil) != (errAgain == nil) {
			t.Fatalf("first %v, then %v", err, errAgain)
		}
		if err != nil {
			var r *Rejection
			if errors.As(err, &r) && (r.Rule == "" || r.Object == "" || r.Reason == "" || r.Fix == "") {
				t.Fatalf("a refusal without all its parts: %+v", r)
			}
			return
		}
		a, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(again)
		if err != nil || !bytes.Equal(a, b) {
			t.Fatalf("facts differ (%v):\n%s\n%s", err, a, b)
		}
		if linked := linkedIn(first); linked > opts.MaxInstructions {
			t.Fatalf("%d instructions after linking, more than %d", linked, opts.MaxInstructions)
		}
		if first.License == "" && len(first.Programs) > 0 && first.Programs[0].GPLCompatible {
			t.Fatal("no licence is not the GPL")
		}
		if found := CompareLabels(Labels(first), first); len(found) > 0 {
			t.Fatalf("labels made of the facts disagree with them: %+v", found)
		}
	})
}
