package reason

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestEveryRejectionOfAProgramHasAFix(t *testing.T) {
	for sentence, c := range map[string]struct {
		err  error
		log  string
		want string
	}{
		"words of the verifier":      {unix.EINVAL, "The sequence of 8193 jumps is too complex.", "bpf_loop"},
		"other words":                {unix.EACCES, "R1 invalid mem access 'scalar'", "at the instruction that the log names"},
		"a fault without words":      {fmt.Errorf("load program: %w", unix.EFAULT), "", "dmesg"},
		"too long for the verifier":  {&ebpf.VerifierError{Cause: unix.E2BIG}, "", "1000000"},
		"a map beyond memory":        {fmt.Errorf("map big: map create: %w", unix.ENOMEM), "", "fewer entries"},
		"a map of no such shape":     {fmt.Errorf("map big: map create: %w", unix.EINVAL), "", "key_size"},
		"no memory for a program":    {fmt.Errorf("program p: load program: %w", unix.ENOMEM), "", "memory cgroup"},
		"a program of no such type":  {fmt.Errorf("program p: load program: %w", unix.EINVAL), "", "nodeSelector"},
		"no word about the program":  {unix.ENOMEM, "", ""},
		"a missing right is no word": {unix.EPERM, "", ""},
	} {
		if got := Fix(c.err, c.log); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: the fix is %q, want %q in it", sentence, got, c.want)
		}
	}
}
