package agent

import (
	"os"

	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/containers"
)

// RuntimeContainers is a value of Options.Containers: the containers of the runtime with the
// socket, such as unix:///run/containerd/containerd.sock. nri is its socket for NRI plug-ins, by
// which programs are in a container before it starts; empty is none. The other options come first.
// An agent in a PID namespace of its own finds none of their processes, which is logged.
func (o Options) RuntimeContainers(endpoint, nri string) func(wake func(changed ...containers.Pod)) (containers.Source, error) {
	if o.Log != nil {
		containers.WarnOfOwnPIDs(o.Log, os.Getpid())
	}
	return func(wake func(changed ...containers.Pod)) (containers.Source, error) {
		return containers.NewCRI(containers.Options{Endpoint: endpoint, NRI: nri, CgroupRoot: o.cgroups(), Wake: wake, Log: o.Log})
	}
}

// HostContainers is a value of Options.Containers: the units of systemd and the cgroups of a host
// without a container runtime. It is nil where no cgroup2 is mounted, since nothing else has
// them. The other options come first.
func (o Options) HostContainers() func(wake func(changed ...containers.Pod)) (containers.Source, error) {
	root := o.cgroups()
	if root == "" {
		return nil
	}
	return func(wake func(changed ...containers.Pod)) (containers.Source, error) {
		return containers.NewCgroups(containers.Options{CgroupRoot: root, Wake: wake, Log: o.Log})
	}
}

// cgroups is the mount of cgroup2; empty where there is none, of which New warns.
func (o Options) cgroups() string {
	if o.CgroupRoot != "" {
		return o.CgroupRoot
	}
	root, err := targets.FindCgroup2("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	return root
}
