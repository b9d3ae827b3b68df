package conformance_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/hook/conformance"
)

func TestTheFileNamesHooksOfTheTable(t *testing.T) {
	kernels, err := conformance.Kernels()
	if err != nil {
		t.Fatal(err)
	}
	if len(kernels) == 0 {
		t.Fatal("the file has no kernel")
	}
	for _, k := range kernels {
		for name, outcome := range k.Hooks {
			if h, ok := hook.Lookup(name); !ok || !h.Attachable || outcome == "" {
				t.Errorf("%s: hook %s, outcome %q: take it out of kernels.json, it is no hook that the agent attaches", k.Name, name, outcome)
			}
		}
	}
}

func TestAReleaseIsOneOfTheKernels(t *testing.T) {
	kernels, err := conformance.Kernels()
	if err != nil {
		t.Fatal(err)
	}
	for release, want := range map[string]string{
		"6.1.0-56-cloud-amd64":         "6.1 (Debian 12)",
		"6.12.117+deb12-cloud-amd64":   "6.12 (Debian 12)",
		"6.12.117+deb13-cloud-amd64":   "",
		"6.1.0-56-amd64":               "",
		"6.18.44":                      "",
		"6.1.0-56-cloud-amd64-patched": "",
	} {
		if got, ok := conformance.Of(kernels, release); got.Name != want || ok != (want != "") {
			t.Errorf("%s is %q, %v; want %q", release, got.Name, ok, want)
		}
	}
}

func TestAnUpdateKeepsWhatWasNotSeen(t *testing.T) {
	before := func() []conformance.Kernel {
		return []conformance.Kernel{
			{Name: "one", Release: "1.*", Hooks: map[string]conformance.Outcome{"a": conformance.Fires, "b": conformance.Later}},
			{Name: "two", Release: "2.*", Hooks: map[string]conformance.Outcome{"a": conformance.Fires}},
		}
	}
	for release, want := range map[string]map[string]conformance.Outcome{
		"1.5": {"a": conformance.Fires, "b": conformance.Fires, "c": conformance.Forbidden},
		"3.0": before()[0].Hooks,
	} {
		body, err := conformance.Update(before(), release, map[string]conformance.Outcome{"b": conformance.Fires, "c": conformance.Forbidden})
		if err != nil {
			t.Fatal(err)
		}
		var after []conformance.Kernel
		if err := json.Unmarshal(body, &after); err != nil {
			t.Fatal(err)
		}
		expected := before()
		expected[0].Hooks = want
		if diff := cmp.Diff(expected, after); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", release, diff)
		}
	}
}
