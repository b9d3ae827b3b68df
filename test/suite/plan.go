package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/flux"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/suite/lists"
)

// module is the path of the module under test.
const module = "github.com/skep-dev/skep/"

// machine is what a plan depends on.
type machine struct {
	root, compiler, kernels, cluster, containerd, flux bool
	// hangs is whether its kernel loads no programs any more.
	hangs bool
}

// loads reports whether tests can load programs.
func (m machine) loads() bool { return m.root && !m.hangs }

// look finds out what this machine has.
func look() machine {
	_, noContainerd := containerd.Folder()
	_, noFlux := flux.Folder()
	root := os.Geteuid() == 0
	return machine{
		root: root, hangs: root && leaks.Hangs(), compiler: has("gcc") || has("cc"), kernels: has("qemu-system-x86_64", "xz", "apt-cache", "dpkg"),
		cluster:    has("/usr/bin/containerd", "/usr/sbin/runc", "/usr/sbin/nft", "/usr/lib/cni/bridge", "/usr/sbin/ip", "/etc/ssl/certs/ca-certificates.crt"),
		containerd: noContainerd == nil, flux: noFlux == nil,
	}
}

// has reports whether the machine has all these programs, by name or path, or files.
func has(names ...string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		if strings.HasPrefix(name, "/") {
			_, err := os.Stat(name)
			return err != nil
		}
		_, err := exec.LookPath(name)
		return err != nil
	})
}

// step is one call of go test.
type step struct {
	args, env, packages []string
}

// alone is the step for packages that failed: one after the other.
func (s step) alone() step {
	s.args = append(slices.Clone(s.args), "-count=1", "-p=1")
	return s
}

// plan is what runs, in order, and what is left out, a line each.
type plan struct {
	steps   []step
	leftOut []string
}

// newPlan decides what runs on a machine.
func newPlan(o options, m machine, packages []string) plan {
	var p plan
	var env []string
	has := func(name string) bool { return slices.Contains(packages, module+name) }
	if o.kernels != "" && !m.kernels && slices.Contains(strings.Split(o.kernels, ","), "own") {
		env = append(env, "SKEP_VM_KERNELS=own")
	}
	for _, s := range []struct {
		wanted, can bool
		// variable has the tests run, lack says what is missing otherwise.
		variable, lack string
	}{
		{!m.root, false, "", "NOT ROOT: tests that load programs into the kernel are SKIPPED, and whole clusters. Run them with: sudo make test"},
		{m.hangs, false, "",
			"THE KERNEL HANGS: it loads no program any more. Packages that load programs are SKIPPED, and whole clusters. See dmesg, and restart the machine"},
		{o.kernels != "" && has("test/kernel"), m.kernels, "SKEP_VM_KERNELS=" + o.kernels,
			"NO VIRTUAL MACHINES: the kernels of Debian are LEFT OUT. They need: apt-get install qemu-system-x86 xz-utils"},
		{m.loads() && o.e2e == "auto" && has("test/e2e"), m.cluster, "SKEP_E2E=1",
			"NO CLUSTER: test/e2e is LEFT OUT. It needs: apt-get install containerd runc containernetworking-plugins nftables iproute2 ca-certificates"},
		{m.loads() && o.e2e == "auto" && has("test/e2e") && m.cluster, m.containerd, "",
			"NO CONTAINERD 2: pods run on the containerd of Debian, and NRI is NOT TESTED. Build it with: make containerd"},
		{m.loads() && o.gitops == "auto" && has("test/integration"), m.flux, "SKEP_GITOPS=1",
			"NO FLUX: the tests with its controllers are SKIPPED. Build them with: make flux"},
		{o.race != "none", m.compiler, "", "NO RACE DETECTOR: it needs a C compiler: apt-get install gcc libc6-dev"},
	} {
		switch {
		case s.wanted && !s.can:
			p.leftOut = append(p.leftOut, "*** "+s.lack+" ***")
		case s.wanted && s.variable != "":
			env = append(env, s.variable)
		}
	}
	if !m.compiler {
		o.race = "none"
	}
	p.steps = steps(o, env, packages)
	return p
}

// steps are the calls of go test for the packages.
func steps(o options, env, packages []string) []step {
	var cached, raced, plain []string
	for _, name := range packages {
		switch {
		case o.race == "all", o.race == "ours" && within(name, lists.Concurrent()):
			raced = append(raced, name)
		case within(name, lists.Pure()):
			cached = append(cached, name)
		default:
			plain = append(plain, name)
		}
	}
	common := append([]string{"-timeout=45m", "-p=" + strconv.Itoa(o.atOnce)}, o.flags...)
	all := []step{
		{append([]string{"-count=1"}, common...), env, plain},
		{append([]string{"-race", "-count=1"}, common...), append(slices.Clone(env), "CGO_ENABLED=1"), raced},
		{common, env, cached},
	}
	return slices.DeleteFunc(all, func(s step) bool { return len(s.packages) == 0 })
}

// within reports whether the rows name a package, or a folder above it by /... .
func within(name string, rows []string) bool {
	name = strings.TrimPrefix(name, module)
	return slices.ContainsFunc(rows, func(row string) bool {
		folder, all := strings.CutSuffix(row, "...")
		return name == row || all && strings.HasPrefix(name, folder)
	})
}

// list returns the packages of patterns, those first that take longest.
func list(ctx context.Context, patterns []string) ([]string, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	found := strings.Fields(string(out))
	place := func(name string) int {
		if i := slices.Index(lists.Longest(), strings.TrimPrefix(name, module)); i >= 0 {
			return i
		}
		return len(lists.Longest())
	}
	slices.SortStableFunc(found, func(a, b string) int { return place(a) - place(b) })
	return found, nil
}
