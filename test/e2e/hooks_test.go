package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// kinds are programs that need something of the node each: an object of package
// programs with the program's name, where it attaches, and what it then counts.
func (n *node) kinds(cgroup2 string) map[string]struct {
	program, attach string
	happens         func()
} {
	type kind = struct {
		program, attach string
		happens         func()
	}
	packet := func() { n.send(1) }
	call := func() { _, _ = unix.Getpgid(0) }
	inside := filepath.Join(cgroup2, cgroup, "connecting")
	return map[string]kind{
		"tcx_count":        {"count_ingress", "interfaces: {primary: true}", packet},
		"sk_lookup_count":  {"sk_lookup_count", "hook: sk_lookup", packet},
		"tracepoint_count": {"tracepoint_count", "hook: tracepoint", call},
		"raw_tp_count":     {"raw_tp_count", "hook: raw_tp", call},
		"tp_btf_count":     {"tp_btf_count", "hook: tp_btf", call},
		"uprobe_count":     {"uprobe_count", "binary: {path: /usr/bin/bash, symbol: main}", func() { n.run("bash", "-c", "true") }},
		"cgroup_connect4": {"cgroup_connect4", "cgroup: /" + cgroup + "/connecting", func() {
			n.run("bash", "-c", "echo $$ >"+inside+"/cgroup.procs && echo >/dev/udp/"+address+"/9")
		}},
	}
}

// attaching has every kind of program attach from the agent's container.
func (n *node) attaching() {
	cgroup2, err := hierarchy2()
	if err == nil {
		err = os.MkdirAll(filepath.Join(cgroup2, cgroup, "connecting"), 0o755)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	before := n.agent()
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=agent.hostPaths.cgroup="+cgroup2,
		"--set=agent.capabilities={BPF,NET_ADMIN,PERFMON,SYS_ADMIN}",
		`--set-json=agent.probed=["/usr"]`, "--wait")
	n.agentReady(before)
	kinds := n.kinds(cgroup2)
	for object, k := range kinds {
		n.file("kinds/"+object+".o", string(programs.Object(object)))
		ref := "registry.example.com/kinds/" + strings.ReplaceAll(object, "_", "-") + ":v1"
		n.run("skep", "image", "build", "-f", n.path("kinds/"+object+".o"), ref)
		n.run("skep", "sign", "--key", n.path("home/cluster/release.key"), ref)
		n.file("kinds/"+object+".yaml", fmt.Sprintf("apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: %s}\nspec:\n"+
			"  bytecode: {image: %q}\n  programs: [{name: %s, attach: [{%s}]}]\n", strings.ReplaceAll(object, "_", "-"), ref, k.program, k.attach))
		n.must("apply", "--filename", n.path("kinds/"+object+".yaml"))
	}
	for object, k := range kinds {
		application := []string{"clusterbpfapplication", strings.ReplaceAll(object, "_", "-")}
		n.ready(application...)
		before := n.counted(application...)
		k.happens()
		if n.counted(application...) == before {
			n.t.Errorf("%s counts nothing", object)
		}
	}
}

// hierarchy2 is the root of the machine's cgroup2 hierarchy.
func hierarchy2() (string, error) {
	body, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(body)) {
		if fields := strings.Fields(line); fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("cgroup2 is not mounted")
}
