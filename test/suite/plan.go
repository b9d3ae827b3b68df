package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/skep-dev/skep/test/harness/containerd"
	"github.com/skep-dev/skep/test/harness/flux"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/workers"
	"github.com/skep-dev/skep/test/suite/lists"
)

// module is the path of the module under test.
const module = "github.com/skep-dev/skep/"

// machine is what a plan depends on.
type machine struct {
	root, race, kernels, cluster, containerd, flux, chromium bool
	// children is the variable by which test binaries know what they have as confined children; empty
	// where they are to be their own, so that the race detector sees children, too.
	children string
	// contained is whether it forbids namespaces and mounts even to root, and hangs whether its
	// kernel loads no programs any more. nameless is whether it does not know localhost.
	contained, hangs, nameless bool
}

// loads reports whether tests can load programs.
func (m machine) loads() bool { return m.root && !m.contained && !m.hangs }

// look finds out what this machine has of what is asked for.
func look(ctx context.Context, o options) (machine, error) {
	var children string
	var err error
	if o.race != "all" {
		children, err = workers.Link(ctx)
	}
	_, noContainerd := containerd.Folder()
	_, noFlux := flux.Folder()
	_, noLocalhost := net.DefaultResolver.LookupHost(ctx, "localhost")
	root := os.Geteuid() == 0
	return machine{
		root: root, contained: root && !leaks.Allowed(), hangs: root && leaks.Hangs(), race: o.race == "none" || races(ctx),
		kernels:    has("qemu-system-x86_64", "xz", "apt-cache", "dpkg"),
		cluster:    has("/usr/bin/containerd", "/usr/sbin/runc", "/usr/sbin/nft", "/usr/lib/cni/bridge", "/usr/sbin/ip", "/etc/ssl/certs/ca-certificates.crt"),
		chromium:   has("chromium"),
		containerd: noContainerd == nil, flux: noFlux == nil, nameless: noLocalhost != nil, children: children,
	}, err
}

// races reports whether there is a race detector: it takes a C compiler with its headers, and is
// not there for every platform.
func races(ctx context.Context) bool {
	cmd := exec.CommandContext(ctx, "go", "build", "-race", "-o", os.DevNull, "./hook")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	return cmd.Run() == nil
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
	env := []string{m.children}
	needsName := func(name string) bool {
		return slices.Contains(lists.ControlPlanes(), strings.TrimPrefix(name, module))
	}
	hasPlane := slices.ContainsFunc(packages, needsName)
	if m.nameless {
		packages = slices.DeleteFunc(slices.Clone(packages), needsName)
	}
	has := func(name string) bool { return slices.Contains(packages, module+name) }
	if (o.kernels == "own" || !m.kernels) && slices.Contains(strings.Split(o.kernels, ","), "own") {
		env = append(env, "SKEP_VM_KERNELS=own")
	}
	for _, s := range []struct {
		wanted, can bool
		// variable has the tests run, lack says what is missing otherwise.
		variable, lack string
	}{
		{!m.root, false, "", "NOT ROOT: tests that load programs into the kernel are SKIPPED, and whole clusters. Run them with: sudo make test"},
		{m.contained, false, "",
			"NO NAMESPACES: this machine forbids them even to root. Tests that load programs are SKIPPED, and whole clusters. Run them in a virtual machine"},
		{m.hangs, false, "",
			"THE KERNEL HANGS: it loads no program any more. Packages that load programs are LEFT OUT, and whole clusters. See dmesg, and restart the machine"},
		{o.kernels != "" && o.kernels != "own" && has("test/kernel"), m.kernels, "SKEP_VM_KERNELS=" + o.kernels,
			"NO VIRTUAL MACHINES: kernels of Debian are LEFT OUT. They need: apt-get install qemu-system-x86 xz-utils"},
		{m.loads() && o.e2e == "auto" && has("test/e2e"), m.cluster, "SKEP_E2E=1",
			"NO CLUSTER: test/e2e is LEFT OUT. It needs: apt-get install containerd runc containernetworking-plugins nftables iproute2 ca-certificates"},
		{m.loads() && o.e2e == "auto" && has("test/e2e") && m.cluster, m.containerd, "",
			"NO CONTAINERD 2: pods run on the containerd of Debian, and NRI is NOT TESTED. Build it with: make containerd"},
		{m.loads() && o.e2e == "no" && has("test/e2e"), false, "", "E2E=no: test/e2e is LEFT OUT. Run it with: make test-e2e"},
		{m.loads() && o.gitops == "no" && has("test/integration"), false, "",
			"GITOPS=no: the tests with Flux's controllers are LEFT OUT. Run them with: make test-gitops"},
		{m.loads() && o.gitops == "auto" && has("test/integration"), m.flux, "SKEP_GITOPS=1",
			"NO FLUX: the tests with its controllers are SKIPPED. Build them with: make flux"},
		{has("test/ui") || m.loads() && has("test/integration"), m.chromium, "",
			"NO CHROMIUM: the tests of skep ui in a browser are SKIPPED. They need: apt-get install chromium"},
		{hasPlane, !m.nameless, "",
			"NO NAME localhost: packages with a control plane are LEFT OUT. Give it to the machine: echo 127.0.0.1 localhost | sudo tee -a /etc/hosts"},
		{o.race != "none", m.race, "", "NO RACE DETECTOR: it needs a C compiler and a platform that has it: apt-get install gcc libc6-dev"},
	} {
		switch {
		case s.wanted && !s.can:
			p.leftOut = append(p.leftOut, "*** "+s.lack+" ***")
		case s.wanted && s.variable != "":
			env = append(env, s.variable)
		}
	}
	if m.hangs {
		env = append(env, leaks.LeftOut)
	}
	if !m.race {
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
	// Lint has vet's findings, and the linker needs a third less time without DWARF.
	common := []string{"-timeout=45m", "-vet=off", "-ldflags=-w", "-p=" + strconv.Itoa(o.atOnce)}
	all := []step{
		{append([]string{"-count=1"}, common...), env, plain},
		// The race detector makes collecting garbage dear, so that is done a quarter as often: it takes more memory.
		{append([]string{"-race", "-count=1"}, common...), append(slices.Clone(env), "CGO_ENABLED=1", "GOGC=400"), raced},
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
		// Unlike ./..., it has the packages of the module in skepmap, too.
		patterns = []string{module + "..."}
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
