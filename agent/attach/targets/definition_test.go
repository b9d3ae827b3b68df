package targets

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
)

func TestCgroup2IsFoundWhereItIsMounted(t *testing.T) {
	for sentence, c := range map[string]struct{ mounts, want string }{
		"alone": {"31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup"},
		"beside version one": {"30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
			"32 30 0:28 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		"at a path with a space": {"31 23 0:27 / /mnt/my\\040cgroup rw - cgroup2 cgroup2 rw\n", "/mnt/my cgroup"},
		"not at all":             {"30 23 0:26 / / rw - ext4 /dev/vda rw\n", ""},
		"nothing":                {"", ""},
		"garbage":                {" - cgroup2 x\nx\n - \n", ""},
	} {
		path := filepath.Join(t.TempDir(), "mountinfo")
		if err := os.WriteFile(path, []byte(c.mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := FindCgroup2(path)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: %q, %v", sentence, got, err)
		}
	}
	if _, err := FindCgroup2("/nope"); err == nil {
		t.Error("a file that is not there is read")
	}
}

func TestSelectionsAndTargetsAreSaidInWords(t *testing.T) {
	for want, at := range map[string]v1alpha1.Attachment{
		"names eth*, lo, without lo": {Interfaces: &v1alpha1.Interfaces{Names: []string{"eth*", "lo"}, Exclude: []string{"lo"}}},
		"primary":                    {Interfaces: &v1alpha1.Interfaces{Primary: true}},
		"sched/switch":               {Tracepoint: "sched/switch"},
		"/pods":                      {Cgroup: "/pods"},
		"IPv4 LocalIn priority 0":    {Netfilter: &v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn"}},
		"page-faults":                {PerfEvent: &v1alpha1.PerfEvent{Event: "page-faults", Period: 1}},
		"/bin/sh":                    {Binary: &v1alpha1.UserBinary{Path: "/bin/sh"}},
		"/run/netns/x":               {NetworkNamespace: "/run/netns/x"},
	} {
		if got := Describe(at); got != want {
			t.Errorf("Describe = %q, want %q", got, want)
		}
	}
}
