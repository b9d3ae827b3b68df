package leader

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// NewLock returns the lease of a name in a namespace, to be held by this process with
// the timing of its Elector.
func NewLock(config *rest.Config, namespace, name string, timing Timing, recorder resourcelock.EventRecorder) (resourcelock.Interface, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this replica: %w", err)
	}
	// One request that hangs does not lose the lead: it may take half of the deadline.
	return resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, namespace, name,
		resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID()), EventRecorder: recorder}, config, timing.OrDefault().RenewDeadline)
}

// Recorder writes the events of an election.
type Recorder struct{ events.EventRecorder }

// Eventf implements resourcelock.EventRecorder.
func (r Recorder) Eventf(o runtime.Object, kind, reason, message string, args ...any) {
	r.EventRecorder.Eventf(o, nil, kind, reason, reason, message, args...)
}

// Manager is a manager that starts what is added to it when this replica leads for
// the first time: one that never leads caches nothing for it. What is added ends
// with the process, and so does its work within Elector.Do.
func (e *Elector) Manager(mgr ctrl.Manager) ctrl.Manager { return later{mgr, e} }

// later is such a manager.
type later struct {
	ctrl.Manager
	elector *Elector
}

// Add implements manager.Manager.
func (l later) Add(r manager.Runnable) error { return l.Manager.Add(delayed{r, l.elector}) }

// delayed waits for the first election.
type delayed struct {
	manager.Runnable
	elector *Elector
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: the Elector is asked
// instead of the manager, which knows of no election.
func (delayed) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (d delayed) Start(ctx context.Context) error {
	select {
	case <-d.elector.first:
		return d.Runnable.Start(ctx)
	case <-ctx.Done():
		return nil
	}
}
