package schemas

import (
	"strings"
	"testing"
	"time"
)

// TestABusyMachineIsNoFaultOfTheDefinitions has too little time for the renderer to start.
func TestABusyMachineIsNoFaultOfTheDefinitions(t *testing.T) {
	const doc = "apiVersion: skep.dev/v1alpha1\nkind: BpfPolicy\nmetadata: {name: p}\nspec: {profile: baseline}\n"
	defs, err := Load(t.Context(), Options{Stream: strings.NewReader(doc), patience: time.Microsecond})
	if err == nil || !OfMachine(err) || !strings.Contains(err.Error(), "too busy") || len(defs.Problems) > 0 {
		t.Errorf("%+v, %v; want an error of the machine", defs, err)
	}
	if defs, err := Load(t.Context(), Options{Stream: strings.NewReader(doc)}); err != nil || len(defs.Policies) != 1 {
		t.Errorf("with time: %+v, %v", defs, err)
	}
}
