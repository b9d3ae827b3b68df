package lifecycle

import (
	"errors"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
)

// revocations are those of signers altogether.
func revocations(names ...string) signing.Revocations {
	all := signing.Revocations{}
	for _, name := range names {
		all[name] = signing.Revocation{}
	}
	return all
}

// TestDecide covers every case that needs no verdict of a real gate; those that
// do are in the kernel tests.
func TestDecide(t *testing.T) {
	def := gate.Request{Application: &v1alpha1.ClusterBpfApplication{}}
	asleep := gate.Request{Application: &v1alpha1.ClusterBpfApplication{Spec: v1alpha1.BpfApplicationSpec{Suspend: true}}}
	running := &intent.Payload{Serial: 1, Signers: []string{"a"}}
	twice := &intent.Payload{Serial: 1, Signers: []string{"a", "b"}}
	unsigned := &intent.Payload{Serial: 1}
	unloaded := &intent.Payload{Serial: 1, Tombstone: true}
	unreachable := errors.New("registry out of reach")
	for name, c := range map[string]struct {
		s       Observation
		revoked []string
		want    Action
	}{
		"gone from the source":                   {Observation{Live: running}, nil, Unload},
		"gone, or in a file that cannot be read": {Observation{Live: running, Hidden: true}, nil, Keep},
		"gone, and unloaded before":              {Observation{Live: unloaded}, nil, Keep},
		"denied and never loaded":                {Observation{Request: def}, nil, Keep},
		"denied, and what runs was admitted":     {Observation{Live: running, Request: def}, nil, Keep},
		"denied, and its signer is revoked":      {Observation{Live: running, Request: def}, []string{"a"}, Unload},
		"one of two signers is revoked":          {Observation{Live: twice, Request: def}, []string{"a"}, Keep},
		"both signers are revoked":               {Observation{Live: twice, Request: def}, []string{"b", "a"}, Unload},
		"admitted without signature":             {Observation{Live: unsigned, Request: def}, []string{"a"}, Keep},
		"not to be told":                         {Observation{Live: running, Request: def, Err: unreachable}, nil, Keep},
		"not to be told, and its signer revoked": {Observation{Live: running, Request: def, Err: unreachable}, []string{"a"}, Unload},
		"hidden, and its signer revoked":         {Observation{Live: running, Hidden: true}, []string{"a"}, Unload},
		"overruled while suspended":              {Observation{Live: running, Running: gate.RunningVerdict{Unloads: true}, Request: asleep}, nil, Unload},
		"overruled while not to be told": {
			Observation{Live: running, Running: gate.RunningVerdict{Unloads: true}, Request: def, Err: unreachable}, nil, Unload,
		},
		"overruled while hidden":                  {Observation{Live: running, Running: gate.RunningVerdict{Unloads: true}, Hidden: true}, nil, Unload},
		"suspended":                               {Observation{Live: running, Request: asleep}, nil, Keep},
		"suspended, and its signer revoked":       {Observation{Live: running, Request: asleep}, []string{"a"}, Unload},
		"refused since one of two is revoked":     {Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true}, Request: def}, []string{"a"}, Unload},
		"hidden, refused since one is revoked":    {Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true}, Hidden: true}, []string{"a"}, Unload},
		"suspended, refused since one is revoked": {Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true}, Request: asleep}, []string{"a"}, Unload},
		"one is revoked, denied by the record": {
			Observation{Live: twice, Running: gate.RunningVerdict{DeniedByRecord: true}, Request: def, Err: unreachable}, []string{"a"}, Unload,
		},
		"denied by the record, and none revoked": {
			Observation{Live: twice, Running: gate.RunningVerdict{DeniedByRecord: true}, Request: def, Err: unreachable}, nil, Keep,
		},
		"its signer revoked, and still asked for": {
			Observation{Live: running, Running: gate.RunningVerdict{Pending: gate.ErrPending}, Request: def, Err: gate.ErrPending}, []string{"a"}, Keep,
		},
		"refused, and nobody it names is revoked": {Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true}, Request: def}, []string{"c"}, Keep},
		"one is revoked, and a policy fails": {
			Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true, Undetermined: true}, Request: def}, []string{"a"}, Keep,
		},
		"both are revoked, and a policy fails": {
			Observation{Live: twice, Running: gate.RunningVerdict{Evaluated: true, Undetermined: true}, Request: def}, []string{"a", "b"}, Unload,
		},
		"its signer revoked, another signed since": {
			Observation{Live: running, Running: gate.RunningVerdict{Evaluated: true, Allowed: true}, Request: def, Err: unreachable}, []string{"a"}, Keep,
		},
		"unloaded before, and its signer revoked": {Observation{Live: unloaded, Request: def}, []string{"a"}, Keep},
		"never loaded, and nobody can tell of it": {Observation{Request: def, Err: unreachable}, nil, Keep},
	} {
		t.Run(name, func(t *testing.T) {
			got, why := c.s.Decide(revocations(c.revoked...), false)
			if got != c.want {
				t.Errorf("Decide = %s (%s), want %s", got, why, c.want)
			}
			if got == Unload && why == "" {
				t.Error("unloaded without a reason")
			}
		})
	}
	if got, _ := (Observation{Live: running, Running: gate.RunningVerdict{Unloads: true}, Hidden: true}).Decide(nil, true); got != Keep {
		t.Errorf("unload protection let %s through", got)
	}
	if (Observation{Live: running, Request: def}).Unloads() {
		t.Error("a denial that keeps what runs counts for unload protection")
	}
}
