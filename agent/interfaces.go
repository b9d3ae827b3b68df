package agent

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

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

// findCgroup2 finds where cgroup2 is mounted, in a mountinfo file as proc(5)
// has it.
func findCgroup2(mountinfo string) (string, error) {
	f, err := os.Open(mountinfo)
	if err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if ok && strings.HasPrefix(fs, "cgroup2 ") && len(fields) > 4 {
			return fields[4], nil
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find cgroup2: %w", err)
	}
	return "", errors.New("find cgroup2: it is not mounted; mount -t cgroup2 none /sys/fs/cgroup, or set CgroupRoot")
}
