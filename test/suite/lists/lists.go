// Package lists names the packages whose tests are run in another way than others: by
// folders from the root of the module. It owns the lists; test/arch checks them.
package lists

// Longest are the packages whose tests take longest. They begin first, so that none of them
// runs alone at the end.
func Longest() []string {
	return []string{"test/e2e", "test/kernel", "test/integration", "agent", "test/integration/admission", "test/chart", "gate", "cmd/skep"}
}

// Concurrent are the packages that start goroutines, share memory between those of others, or have tests that run a whole agent. The race detector
// would find nothing in the others and triple their time; what they have in common with
// these, it sees in the tests of these. RACE=all runs it over all. test/arch checks both sides of the list.
func Concurrent() []string {
	return []string{
		"agent", "agent/attach", "agent/attach/clsact", "agent/attach/hooks", "agent/attach/targets", "agent/kube", "agent/nodeview", "agent/pods/containers",
		"agent/pods/netns", "agent/pods/process", "agent/program/deadline", "agent/program/functions", "agent/program/guard",
		"agent/metrics/programs", "agent/queue", "agent/readers/csi", "agent/readers/host", "agent/readers/mapmetrics", "agent/readers/mounter",
		"agent/readers/remote", "agent/readers/serve", "agent/readers/show", "agent/readers/volumes",
		"agent/reconcile/accepted", "agent/reconcile/admission", "agent/reconcile/build", "agent/reconcile/chainfit",
		"agent/reconcile/changes", "agent/reconcile/decide", "agent/reconcile/live", "agent/reconcile/prepare", "agent/reconcile/sharing",
		"agent/reconcile/starts", "agent/state/objects", "agent/state/pins",
		"confined", "controller", "controller/admission", "controller/agents", "controller/aggregated", "controller/application",
		"controller/cueartifact", "controller/cueartifact/archives", "controller/imagestore", "controller/leader", "controller/mapreads",
		"controller/mirror", "controller/noderequests", "controller/policy", "controller/sealing", "controller/views",
		"examples/node-firewall/firewall-controller", "gate", "gate/evaluations", "image/access",
		"image/disk", "image/registry", "image/transport", "limit", "listen", "nodemode", "policies", "recent", "signing/collect", "skepmap",
	}
}

// ControlPlanes are the packages that start a control plane, which listens on localhost.
func ControlPlanes() []string {
	return []string{
		"agent/kube", "cmd/skep/internal/migrate", "cmd/skep/internal/rollout", "controller/sealing", "test/chart",
		"test/harness/controlplane", "test/integration", "test/integration/admission",
	}
}

// Pure are the packages whose tests read nothing but files of the module, and do the same on
// every machine: their results may come from go test's cache. test/arch checks what they import.
func Pure() []string {
	return []string{
		"agent/program/relocate", "agent/reconcile/version", "agent/state/retry", "api/v1alpha1", "api/v1alpha1/gencrds",
		"api/v1alpha1/genpage", "atomicfile", "bytecode/answers", "bytecode/layout", "bytecode/objectfile", "bytecode/pointers", "bytecode/reach",
		"bytecode/values", "controller/nodereports", "controller/rollout", "controller/status", "demo/story", "hook",
		"hook/conformance", "intent", "placement", "release/attest", "schemas/genhooks", "test/argocd", "text",
	}
}
