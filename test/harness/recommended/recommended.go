// Package recommended runs the commands that messages recommend, where the tests put the
// situation that a message is about. A message has a command in backquotes.
package recommended

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// Commands returns the commands of a message, each once, in their order.
func Commands(message string) []string {
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(message, -1) {
		if !slices.Contains(all, m[1]) {
			all = append(all, m[1])
		}
	}
	return all
}

// packages are Debian's of the programs that messages name.
var packages = map[string]string{
	"bpftool": "bpftool", "ethtool": "ethtool", "nft": "nftables", "fuser": "psmisc", "ip": "iproute2", "tc": "iproute2", "sysctl": "procps", "mount": "mount",
	"umount": "mount", "nsenter": "util-linux", "clang": "clang-19", "llvm-strip": "llvm-19", "llvm-objcopy": "llvm-19", "tar": "tar",
}

// version is what Debian's names of compilers end with.
const version = "-19"

// placeholder is what a command of a message has in the place of what only the situation knows.
var placeholder = regexp.MustCompile(`%[a-z]|…|FILE|CONFIG`)

// Has reports whether a command that is run has a part as test/docs/testdata/commands.txt names it.
func Has(run, part string) bool {
	words := placeholder.ReplaceAllString(regexp.QuoteMeta(placeholder.ReplaceAllString(part, "…")), `\S*`)
	if !strings.HasSuffix(part, "=") {
		words += `(?:\s|$)`
	}
	return regexp.MustCompile(`(?:^|\s)` + words).MatchString(run)
}

// wants holds that the commands have all of the parts, and no command none.
func wants(t testing.TB, commands, parts []string) {
	t.Helper()
	for _, part := range parts {
		if !slices.ContainsFunc(commands, func(one string) bool { return Has(one, part) }) {
			t.Errorf("%q is not among the commands %q", part, commands)
		}
	}
	for _, one := range commands {
		if !slices.ContainsFunc(parts, func(part string) bool { return Has(one, part) }) {
			t.Errorf("%q is recommended, and the test names only %q", one, parts)
		}
	}
}

// Run runs the commands of a message, which have these parts, and returns what they print. It fails the test where one fails
// or where there is none, or another, and skips it where the machine lacks a program. Commands of skep itself are left out
// where the machine has no Go to link it.
func Run(t testing.TB, message string, parts ...string) string {
	t.Helper()
	all := Commands(message)
	if len(all) == 0 {
		t.Fatalf("%q recommends no command", message)
	}
	wants(t, all, parts)
	need.Program(t, "sh", "dash")
	bin := t.TempDir()
	var printed strings.Builder
	for _, one := range all {
		for word := range strings.FieldsSeq(one) {
			if !place(t, bin, word) {
				t.Logf("without Go, %s is left out", one)
				one = ":"
			}
		}
		run := exec.CommandContext(t.Context(), "sh", "-c", one)
		run.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := run.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", one, err, out)
		}
		t.Log(one)
		printed.Write(out)
	}
	return printed.String()
}

// place puts a program into a folder, by the name that messages have, if the word is one. It fails for skep without Go.
func place(t testing.TB, bin, word string) bool {
	t.Helper()
	debian, isProgram := packages[word]
	if !isProgram && word != "skep" {
		return true
	}
	path, err := exec.LookPath(word)
	switch {
	case word == "skep":
		if _, err = exec.LookPath("go"); err != nil {
			return false
		}
		if path, err = command.Cached(t.Context(), "./cmd/skep"); err != nil {
			t.Fatal(err)
		}
	case err == nil:
		return true
	case strings.HasSuffix(debian, version):
		path = need.Program(t, word+version, debian)
	default:
		need.Program(t, word, debian)
	}
	if err := os.Symlink(path, filepath.Join(bin, word)); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return true
}
