package targets

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestCgroup2IsFoundWhereItIsMounted(t *testing.T) {
	root, err := FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	// Only the root of a cgroup2 file system has the file; see cgroups(7).
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		t.Errorf("%s: %v", root, err)
	}
}

func TestSelectionsAndTargetsAreSaidInWords(t *testing.T) {
	for want, at := range map[string]v1alpha1.Attachment{
		"names eth*, lo, without lo": {Interfaces: &v1alpha1.Interfaces{Names: []string{"eth*", "lo"}, Exclude: []string{"lo"}}},
		"primary":                    {Interfaces: &v1alpha1.Interfaces{Primary: true}},
		"sched/switch":               {Tracepoint: "sched/switch"},
		"/pods":                      {Cgroup: "/pods"},
		"/bin/sh":                    {Binary: &v1alpha1.UserBinary{Path: "/bin/sh"}},
		"/run/netns/x":               {NetworkNamespace: "/run/netns/x"},
	} {
		if got := Describe(at); got != want {
			t.Errorf("Describe = %q, want %q", got, want)
		}
	}
}
