// Package recommended runs the commands that messages recommend, where the tests put the
// situation that a message is about. A message has a command in backquotes.
package recommended

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/need"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// Commands returns the commands of a message, in their order.
func Commands(message string) []string {
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(message, -1) {
		all = append(all, m[1])
	}
	return all
}

// packages are Debian's of the programs that messages name.
var packages = map[string]string{
	"bpftool": "bpftool", "nft": "nftables", "fuser": "psmisc", "ip": "iproute2", "tc": "iproute2", "sysctl": "procps", "mount": "mount",
}

// Run runs the commands of a message, and fails the test where one fails or where there is none. It skips the
// test where the machine lacks a program. Commands of skep itself are left to its own tests.
func Run(t testing.TB, message string) {
	t.Helper()
	all := Commands(message)
	if len(all) == 0 {
		t.Fatalf("%q recommends no command", message)
	}
	need.Program(t, "sh", "dash")
	for _, command := range all {
		if strings.HasPrefix(command, "skep ") {
			continue
		}
		for word := range strings.FieldsSeq(command) {
			if debian, ok := packages[word]; ok {
				need.Program(t, word, debian)
			}
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		t.Log(command)
	}
}
