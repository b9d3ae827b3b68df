package plain

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ofGo is what only who writes Go knows: names in camel case, and names of packages.
var ofGo = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*|\b[a-z]+[A-Z][a-z]\w*|\b(?:btf|ebpf|asm|link|sys|unix|rlimit)\.[A-Z]\w*`)

// TestNoNameOfTheLibraryIsLeft reads every text of an error in the library.
func TestNoNameOfTheLibraryIsLeft(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/cilium/ebpf").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	err = filepath.WalkDir(strings.TrimSpace(string(out)), func(path string, d fs.DirEntry, err error) error {
		// The package of struct_ops and those of users' own ring buffers are not used.
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") ||
			strings.Contains(path, "windows") || strings.HasSuffix(path, "struct_ops.go") || strings.Contains(path, "/cmd/") ||
			strings.Contains(path, "/testutils/") || strings.Contains(path, "/examples/") {
			return err
		}
		for _, text := range texts(t, path) {
			read++
			// A value of any type takes the place of a verb.
			said := errors.New(strings.NewReplacer("%T", "*btf.Struct", "%s", "name", "%v", "name", "%d", "7").Replace(text))
			if left := ofGo.FindString(withoutC(Error(said).Error())); left != "" {
				t.Errorf("%s: %q names %s: add it to the words", filepath.Base(path), text, left)
			}
		}
		return nil
	})
	if err != nil || read < 500 {
		t.Errorf("%d texts were read: %v", read, err)
	}
}

// ofUsers are words in texts of parts that Skep does not use: Go structs of users, test runs with
// contexts, ring buffers; and the name of a type of programs, as docs/hooks.md has it.
var ofUsers = regexp.MustCompile(`structs\.HostLayout|ContextOut|WakeupEvents|ByteOrder|RawTracepoint`)

// withoutC leaves out what is in the words of C or of the kernel, and what Skep does not use.
func withoutC(text string) string {
	return ofUsers.ReplaceAllString(text, "")
}

// texts are the first arguments of errors.New and fmt.Errorf in a file.
func texts(t *testing.T, path string) (all []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		of, ok := call.Fun.(*ast.SelectorExpr)
		literal, isText := call.Args[0].(*ast.BasicLit)
		if ok && isText && (of.Sel.Name == "New" || of.Sel.Name == "Errorf") && literal.Kind == token.STRING {
			if text, err := strconv.Unquote(literal.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}

func TestAPlainErrorKeepsItsCause(t *testing.T) {
	err := fmt.Errorf("map create: %w (MEMLOCK may be too low, consider rlimit.RemoveMemlock)", unix.EPERM)
	if got := Error(err); got.Error() != "map create: operation not permitted" || !errors.Is(got, unix.EPERM) {
		t.Errorf("Error = %v", got)
	}
	same := errors.New("attach: no such device")
	if got := Error(same); got != same { //nolint:errorlint // the very error
		t.Errorf("Error = %v", got)
	}
	if Error(nil) != nil {
		t.Error("nothing is an error")
	}
}

// TestWhatUsersNamedStays has paths, symbols and quoted names that look like the library's types.
func TestWhatUsersNamedStays(t *testing.T) {
	for was, want := range map[string]string{
		"open /srv/perf.Data/x: no such file or directory":             "",
		"symbol github.com/team/link.Attach: not found":                "",
		"symbol internal.Handle: not found":                            "",
		`program "btf.Thing": invalid argument`:                        "",
		`map "MaxEntries": invalid argument`:                           "",
		`program "shoff" of "a \"datasec\"": invalid argument`:         "",
		"open /srv/KeySize/vsi: datasec: permission denied":            "open /srv/KeySize/vsi: data section: permission denied",
		"symbol team::AttachTo: not found":                             "",
		"token ProgramArray: not found":                                "symbol ProgramArray: not found",
		`map "InnerMap": MaxEntries of "KeySize"`:                      `map "InnerMap": max_entries of "KeySize"`,
		`map "": MaxEntries of "KeySize"`:                              `map "": max_entries of "KeySize"`,
		"link /srv/KeySize /srv/ValueSize: MaxEntries":                 "link /srv/KeySize /srv/ValueSize: max_entries",
		"read KeySize (/srv/KeySize, /srv/ValueSize): datasec":         "read key_size (/srv/KeySize, /srv/ValueSize): data section",
		"symbol KeySize in /srv/KeySize: not found":                    "",
		"symbol KeySize: /srv/vsi: InnerMap: datasec":                  "symbol KeySize: /srv/vsi: an inner map: data section",
		"find *btf.Struct, and asm.Instruction at 3":                   "find Struct, and Instruction at 3",
		"creating perf_uprobe PMU: invalid argument":                   "create the probe: invalid argument",
		`creating perf_uprobe PMU (arch-specific fallback for "x"): y`: `create the probe "x": y`,
	} {
		if want == "" {
			want = was
		}
		if got := Error(errors.New(was)).Error(); got != want {
			t.Errorf("%q became %q, want %q", was, got, want)
		}
	}
}
