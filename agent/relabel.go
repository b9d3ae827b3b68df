package agent

import (
	"maps"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/intent"
)

// Relabel gives the agent the labels that the node has now. Run then decides
// anew for whom the node was chosen: what no longer selects it is unloaded, and
// what does is loaded. Nil means, as in Options, that every intent is for this
// node.
func (a *Agent) Relabel(labels map[string]string) {
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	if version.SameLabels(a.accepted.labels, labels) {
		return
	}
	a.accepted.labels = maps.Clone(labels)
	a.accepted.unsettle()
	a.wakeUp()
}

// Retrust replaces the keys whose seals count. What was accepted before stays;
// an envelope that was rejected counts when it is sent again.
func (a *Agent) Retrust(t *intent.Trust) {
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	a.accepted.trust = t
}

// trusted are the keys that count now.
func (a *accepted) trusted() *intent.Trust {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.trust
}

// Reconciled yields after a Reconcile; several since the last read count once. It
// is for one reader.
func (a *Agent) Reconciled() <-chan struct{} { return a.reconciled }

// repeated is what was said at the last attempt, while the next one is waited
// for.
type repeated struct {
	text        string
	unsupported bool
}

// Error implements error.
func (r *repeated) Error() string { return r.text }

// Is keeps what the words alone do not tell.
func (r *repeated) Is(target error) bool { return r.unsupported && target == ebpf.ErrNotSupported }
