// Package e2e installs Skep into a real cluster of one node, as a user would: by
// the commands of docs/getting-started-cluster.md, with kubelet, containerd and helm.
//
// It owns the node, which lives in namespaces of its own and goes with them; of
// the machine it uses the kernel. It has nothing but tests, which wait for
// SKEP_E2E=1: make test-e2e. SKEP_E2E_BINARIES names a folder with another version
// of Kubernetes: etcd, kubectl, kubelet and the four kube-….
package e2e
