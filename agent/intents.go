package agent

import (
	"context"

	"github.com/skep-dev/skep/intent"
)

// Accept keeps sealed intents and has the loop work on them. The error joins one for each that was
// rejected: an *Error where the seal holds. See accepted.Store.
func (a *Agent) Accept(envelopes ...intent.Envelope) error { return a.accepted.Accept(envelopes...) }

// Batch has the loop look at what is accepted meanwhile all at once, and on disk together.
func (a *Agent) Batch(accept func()) { a.accepted.Batch(accept) }

// Intents returns the newest accepted intent of every application, tombstones included, ordered by UID.
func (a *Agent) Intents() []intent.Opened { return a.accepted.Intents() }

// Forget drops the tombstones that were worked off, but for those of UIDs that are still there.
func (a *Agent) Forget(there func(uid string) bool) { a.accepted.Forget(there) }

// Relabel gives the agent the labels that the node has now; nil means that every intent is for this node.
func (a *Agent) Relabel(labels map[string]string) { a.accepted.Relabel(labels) }

// Retrust replaces the keys whose seals count. What was accepted before stays.
func (a *Agent) Retrust(t *intent.Trust) { a.accepted.Retrust(t) }

// Status tells how every application is doing, ordered by name. Tombstones that left nothing behind are not
// listed; what runs without an intent is.
func (a *Agent) Status() []ApplicationStatus { return a.accepted.Status() }

// Report is Status and every tombstone that was worked off.
func (a *Agent) Report() []ApplicationStatus { return a.accepted.Report() }

// Settled waits until every accepted intent was worked on once. The error joins what failed.
func (a *Agent) Settled(ctx context.Context) error { return a.accepted.Settled(ctx) }
