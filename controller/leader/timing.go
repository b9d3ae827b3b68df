package leader

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/client-go/tools/leaderelection"
)

// Timing says how long the lead lasts without an answer of the API server. A zero
// field means the default of kube-controller-manager.
type Timing struct {
	// LeaseDuration is how long a lease holds that nobody renews. The lease counts it in
	// whole seconds. Zero means 15 seconds.
	LeaseDuration time.Duration
	// RenewDeadline is when a term ends after its holder last asked for the lease with
	// success, whether or not the API server answers. Zero means 10 seconds.
	RenewDeadline time.Duration
	// RetryPeriod is how often a replica asks for the lease. Zero means 2 seconds.
	RetryPeriod time.Duration
}

// OrDefault returns the timing with the defaults of what is zero.
func (t Timing) OrDefault() Timing {
	return Timing{
		LeaseDuration: cmp.Or(t.LeaseDuration, 15*time.Second),
		RenewDeadline: cmp.Or(t.RenewDeadline, 10*time.Second),
		RetryPeriod:   cmp.Or(t.RetryPeriod, 2*time.Second),
	}
}

// Check reports the rule of client-go that the timing breaks, and the fix. It is
// stricter on one point: the lease holds whole seconds, so the rest of LeaseDuration
// counts for nothing, and two replicas would lead at once.
func (t Timing) Check() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"lease duration", t.LeaseDuration}, {"renew deadline", t.RenewDeadline}, {"retry period", t.RetryPeriod}} {
		if d.value <= 0 {
			return fmt.Errorf("check %s %s: it must be longer than zero: give a time such as 2s", d.name, d.value)
		}
	}
	if held := t.LeaseDuration.Truncate(time.Second); held <= t.RenewDeadline {
		return fmt.Errorf("check lease duration %s: in whole seconds it must be longer than the renew deadline, %s: "+
			"lengthen the lease duration or shorten the renew deadline", t.LeaseDuration, t.RenewDeadline)
	}
	if longest := time.Duration(leaderelection.JitterFactor * float64(t.RetryPeriod)); t.RenewDeadline <= longest {
		return fmt.Errorf("check renew deadline %s: it must be longer than %.1f times the retry period, %s: "+
			"lengthen the renew deadline or shorten the retry period", t.RenewDeadline, leaderelection.JitterFactor, longest)
	}
	return nil
}
