package hooks_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
)

// outcome is what the file of kernels says of a hook that the kernel has, or lacks so.
func outcome(lacks *attach.LackingError) conformance.Outcome {
	switch {
	case lacks == nil:
		return conformance.Fires
	case lacks.Part != "":
		return conformance.Outcome("unsupported: " + lacks.Part)
	case lacks.Forbidden:
		return conformance.Forbidden
	case lacks.Older():
		return conformance.Later
	}
	return conformance.BuiltWithout
}

// conforms says what the test saw of a hook, for test/kernel to read, and fails the test
// where the file says otherwise of this kernel.
func conforms(t *testing.T, h hook.Hook, seen conformance.Outcome) {
	t.Helper()
	t.Logf("SKEP-HOOK %s %s", h.Name, seen)
	kernels, err := conformance.Kernels()
	if err != nil {
		t.Fatal(err)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	k, ok := conformance.Of(kernels, unix.ByteSliceToString(name.Release[:]))
	if want := k.Hooks[h.Name]; ok && want != seen && os.Getenv("SKEP_UPDATE") == "" {
		t.Errorf("hook/conformance/kernels.json says %q of this hook on %s, and the test saw %q; if that is right, run make test-kernels UPDATE=1",
			want, k.Name, seen)
	}
}
