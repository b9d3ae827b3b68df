package application

import (
	"slices"
	"sync"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/status"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle/history"
	"github.com/skep-dev/skep/text"
)

// changeNames remember in what versions that were sealed differ from the versions that they replaced, until the status records it.
type changeNames struct {
	mu   sync.Mutex
	byID map[v1alpha1.Identity]change
}

// change names what a version changed.
type change struct {
	serial int64
	names  []string
}

// of names what the live version changed; was is the version when the reconcile began.
func (c *changeNames) of(id v1alpha1.Identity, was, live *intent.Payload) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	serial := live.VersionSerial()
	switch known := c.byID[id]; {
	case was != nil && !was.Tombstone && was.VersionSerial() != serial:
		if c.byID == nil {
			c.byID = map[v1alpha1.Identity]change{}
		}
		c.byID[id] = change{serial, history.Changes(was, live)}
	case known.serial != serial:
		// Another replica sealed it, or this one before it was restarted.
		return history.Changes(live.Previous, live)
	}
	return c.byID[id].names
}

func (c *changeNames) forget(id v1alpha1.Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, id)
}

func (c *changeNames) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byID)
}

// setHistory records the versions in the status of app, whose condition Deployed is set.
func setHistory(names *changeNames, app application, st *state, at time.Time) error {
	report, live := app.Report(), st.sealed.Payload
	if live != nil && live.Serial < st.app.Report().Serial {
		// The cache has yet to show the newest intent.
		return nil
	}
	now := history.Now{At: at, Generation: app.GetGeneration(), Live: live, Result: resultOf(app)}
	switch recorded := report.CurrentVersion(); {
	case live == nil || live.Tombstone:
	case recorded == nil || recorded.Serial != live.VersionSerial():
		now.Changes = names.of(app.Identity(), st.was, live)
	default:
		names.forget(app.Identity())
	}
	var err error
	if now.Denied, err = history.DeniedBy(st.observed, live); err == nil {
		report.History = history.Record(report.History, now)
	}
	return err
}

// resultOf is Deployed or Failed by the condition Deployed of an application.
func resultOf(app application) v1alpha1.VersionResult {
	switch c := conditions.Get(app, v1alpha1.ConditionDeployed); {
	case c == nil || c.Reason == status.ReasonNoNodes:
	case c.Status == metav1.ConditionTrue:
		return v1alpha1.VersionDeployed
	case c.Reason == status.ReasonNodesFailed || c.Reason == status.ReasonUnsupported:
		return v1alpha1.VersionFailed
	}
	return ""
}

// updated is the version that the status now reports as deployed for the first time, if it replaced another one.
func updated(before, now application) *v1alpha1.ApplicationVersion {
	v := now.Report().CurrentVersion()
	if v == nil || v.Version == 1 || v.Result != v1alpha1.VersionDeployed || !conditions.IsTrue(now, v1alpha1.ConditionReady) {
		return nil
	}
	if was := recorded(before, *v); was != nil && was.Result != v1alpha1.VersionAllowed {
		return nil
	}
	return v
}

// recorded is the record of a version in the status of an application; nil without one.
func recorded(in application, v v1alpha1.ApplicationVersion) *v1alpha1.ApplicationVersion {
	all := in.Report().History
	i := slices.IndexFunc(all, func(one v1alpha1.ApplicationVersion) bool {
		return one.Version == v.Version && one.Definition == v.Definition && one.Serial == v.Serial
	})
	if i < 0 {
		return nil
	}
	return &all[i]
}

// newlyDenied reports whether the newest version is one that is denied and was not recorded before.
func newlyDenied(before, now application) bool {
	all := now.Report().History
	return len(all) > 0 && all[0].Result == v1alpha1.VersionDenied && recorded(before, all[0]) == nil
}

// logDecisions logs each version whose result changed, and a change of the condition Allowed without one.
func logDecisions(log logr.Logger, before, now application) {
	log = log.WithValues("application", now.Identity().String())
	logged := false
	for _, v := range slices.Backward(now.Report().History) {
		was := recorded(before, v)
		if was != nil && was.Result == v.Result {
			continue
		}
		logged = true
		log.Info("application "+text.Words(string(v.Result)), "version", v.Version, "digest", v.Digest, "serial", v.Serial,
			"signers", v.SignedBy, "changes", v.Changes, "rules", v.Message, "reason", text.CutRunes(reasonOf(now, v), maxReason))
	}
	was, is := conditions.Get(before, v1alpha1.ConditionAllowed), conditions.Get(now, v1alpha1.ConditionAllowed)
	if is != nil && !logged && (was == nil || was.Status != is.Status || was.Reason != is.Reason) {
		log.Info("application "+text.Words(is.Reason), "digest", now.Report().Digest, "reason", text.CutRunes(is.Message, maxReason))
	}
}

// maxReason bounds a reason in the log, in characters: the status has all of it.
const maxReason = 1024

// reasonOf is why a version has its result.
func reasonOf(app application, v v1alpha1.ApplicationVersion) string {
	switch v.Result {
	case v1alpha1.VersionDenied, v1alpha1.VersionAllowed:
		return conditions.GetMessage(app, v1alpha1.ConditionAllowed)
	case v1alpha1.VersionDeployed, v1alpha1.VersionFailed, v1alpha1.VersionUnloaded, v1alpha1.VersionRolledBack:
	}
	return conditions.GetMessage(app, v1alpha1.ConditionDeployed)
}
