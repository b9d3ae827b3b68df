// Package e2e installs Skep into a real cluster of one node, as a user would: by
// README's commands, with kubelet, containerd and helm.
//
// It owns the node, which lives in namespaces of its own and goes with them; of
// the machine it uses the kernel. It has nothing but tests, which wait for
// SKEP_E2E=1: make test-e2e.
package e2e
