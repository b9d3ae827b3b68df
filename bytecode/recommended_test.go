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
		// fix is the command of the message.
		fix string
	}{
		"bytecode/too-large": {
			sourceWithMap, func(object []byte) Options { return Options{MaxSize: int64(len(object)) - 1} }, "", "llvm-strip -g FILE.o",
		},
		"bytecode/too-large types":       {sourceWithoutMaps, func([]byte) Options { return Options{MaxBTF: 100} }, "", "llvm-objcopy -R .BTF -R .BTF.ext FILE.o"},
		"bytecode/ambiguous-relocations": {sourceWithMap, nil, "llvm-objcopy --rename-section .relxdp=other FILE.o", "clang -g -O2 -target"},
		"bytecode/legacy-object":         {sourceWithMap, nil, "llvm-objcopy -R .BTF -R .BTF.ext FILE.o", "clang -g -O2 -target"},
		"bytecode/reference-by-number":   {sourceWithMap, nil, "cp testdata/by_number.o FILE.o", "clang -g -O2 -target"},
	} {
		t.Run(rule, func(t *testing.T) {
			dir := t.TempDir()
			run := func(message, part string) {
				recommended.Run(t, strings.ReplaceAll(message, "FILE.", filepath.Join(dir, "FILE.")), part)
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
			run("`"+Compile+"`", "clang -g -O2 -target bpf -c FILE.c -o FILE.o")
			if c.spoil != "" {
				run("`"+c.spoil+"`", c.spoil)
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
			run(denied.Fix, c.fix)
			if _, err := Inspect(bytes.NewReader(read()), opts); err != nil {
				t.Errorf("after that: %v", err)
			}
		})
	}
}
