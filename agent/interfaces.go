package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// describeInterfaces repeats a selection in a message.
func describeInterfaces(s *v1alpha1.Interfaces) string {
	var parts []string
	if len(s.Names) > 0 {
		parts = append(parts, "names "+strings.Join(s.Names, ", "))
	}
	if s.Primary {
		parts = append(parts, "primary")
	}
	if len(s.Exclude) > 0 {
		parts = append(parts, "without "+strings.Join(s.Exclude, ", "))
	}
	return strings.Join(parts, ", ")
}

// matchLabels reports whether the node's labels match the selector.
func matchLabels(s *metav1.LabelSelector, node map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return false, fmt.Errorf("read selector: %w", err)
	}
	return selector.Matches(labels.Set(node)), nil
}

// findCgroup2 returns the mount point of cgroup2.
func findCgroup2() (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	if len(mounts) == 0 {
		return "", errors.New("find cgroup2: it is not mounted; mount -t cgroup2 none /sys/fs/cgroup, or set CgroupRoot")
	}
	return mounts[0].Mountpoint, nil
}
