package bytecode

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/recommended"
)

const sourceWithoutMaps = `
__attribute__((section("xdp"), used)) int pass(struct { int a; } *ctx) { return 2; }
char _license[] __attribute__((section("license"), used)) = "GPL";
`

const sourceWithMap = `
struct { int (*type)[1]; int *key; int *value; int (*max_entries)[4]; } counts __attribute__((section(".maps"), used));
static void *(*lookup)(void *, const void *) = (void *)1;
__attribute__((section("xdp"), used)) int count(void *ctx) { int key = 0; int *value = lookup(&counts, &key); if (value) *value += 1; return 2; }
char _license[] __attribute__((section("license"), used)) = "GPL";
`

// TestDeniedObjectsAreMendedByTheCommandsOfTheFixes: the object is taken afterwards.
func TestDeniedObjectsAreMendedByTheCommandsOfTheFixes(t *testing.T) {
	for rule, c := range map[string]struct {
		source string
		opts   func(object []byte) Options
		// spoil is a command that makes the object one that is denied.
		spoil string
	}{
		"bytecode/too-large":             {sourceWithMap, func(object []byte) Options { return Options{MaxSize: int64(len(object)) - 1} }, ""},
		"bytecode/too-large types":       {sourceWithoutMaps, func([]byte) Options { return Options{MaxBTF: 100} }, ""},
		"bytecode/ambiguous-relocations": {sourceWithMap, nil, "llvm-objcopy --rename-section .relxdp=other FILE.o"},
		"bytecode/legacy-object":         {sourceWithMap, nil, "llvm-objcopy -R .BTF -R .BTF.ext FILE.o"},
		"bytecode/reference-by-number":   {sourceWithMap, nil, "cp testdata/by_number.o FILE.o"},
	} {
		t.Run(rule, func(t *testing.T) {
			dir := t.TempDir()
			run := func(message string) {
				recommended.Run(t, strings.ReplaceAll(message, "FILE.", filepath.Join(dir, "FILE.")))
			}
			read := func() []byte {
				object, err := os.ReadFile(filepath.Join(dir, "FILE.o"))
				if err != nil {
					t.Fatal(err)
				}
				return object
			}
			if err := os.WriteFile(filepath.Join(dir, "FILE.c"), []byte(c.source), 0o600); err != nil {
				t.Fatal(err)
			}
			run("`" + Compile + "`")
			if c.spoil != "" {
				run("`" + c.spoil + "`")
			}
			var opts Options
			if c.opts != nil {
				opts = c.opts(read())
			}
			_, err := Inspect(bytes.NewReader(read()), opts)
			denied := new(Rejection)
			if !errors.As(err, &denied) || !strings.HasPrefix(rule, denied.Rule) {
				t.Fatalf("it is %v", err)
			}
			run(denied.Fix)
			if _, err := Inspect(bytes.NewReader(read()), opts); err != nil {
				t.Errorf("after that: %v", err)
			}
		})
	}
}
