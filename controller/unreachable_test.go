package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/tools/events"
)

// TestManyRegistriesMakeFewEvents: authors of applications choose how many there are.
func TestManyRegistriesMakeFewEvents(t *testing.T) {
	to := events.NewFakeRecorder(1000)
	u := newUnreachable(to, "skep-system")
	for range 2 {
		for i := range 500 {
			u.report(fmt.Sprintf("r%d.example.com", i), errors.New(strings.Repeat("x509: ", 200)))
		}
	}
	close(to.Events)
	count := 0
	for note := range to.Events {
		if count++; !strings.HasPrefix(note, "Warning RegistryUnreachable r") || len(note) > maxNote {
			t.Fatalf("the event is %q", note)
		}
	}
	if count < eventBurst || count > eventBurst+2 {
		t.Errorf("there are %d events, want %d", count, eventBurst)
	}
}
