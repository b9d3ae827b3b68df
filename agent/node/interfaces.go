package node

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// listInterfaces reads the network devices of the agent's namespace, by index.
// Which are primary is looked up where somebody asks.
func listInterfaces(withPrimary bool) ([]plan.Interface, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var primary map[int]bool
	if withPrimary {
		if primary, err = primaries(); err != nil {
			return nil, err
		}
	}
	all := make([]plan.Interface, 0, len(links))
	for _, l := range links {
		at := l.Attrs()
		all = append(all, plan.Interface{Index: at.Index, Name: at.Name, Primary: primary[at.Index]})
	}
	slices.SortFunc(all, func(a, b plan.Interface) int { return a.Index - b.Index })
	return all, nil
}

// wantsPrimary tells whether an intent chooses the primary interface.
func wantsPrimary(apps []*application) bool {
	return slices.ContainsFunc(apps, func(app *application) bool {
		return choosesPrimary(&app.newest) || choosesPrimary(app.deployed)
	})
}

func choosesPrimary(o *intent.Opened) bool {
	if o == nil {
		return false
	}
	for _, program := range o.Payload().Programs {
		for _, at := range program.Attach {
			if at.Interfaces != nil && at.Interfaces.Primary {
				return true
			}
		}
	}
	return false
}

// primaries are the devices that default routes leave by, of either family.
func primaries() (map[int]bool, error) {
	out := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && !isDefault(r) {
				continue
			}
			if r.LinkIndex > 0 {
				out[r.LinkIndex] = true
			}
			for _, hop := range r.MultiPath {
				out[hop.LinkIndex] = true
			}
		}
	}
	return out, nil
}

// isDefault tells a default route that names its destination, 0.0.0.0/0 or ::/0.
func isDefault(r netlink.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}

// sayInterfaces repeats a selection in a message.
func sayInterfaces(s *v1alpha1.Interfaces) string {
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

// matchLabels tells whether the node's labels match the selector.
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
