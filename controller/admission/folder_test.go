package admission

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAuthoritiesOfSomebodyElseAreToldWithOverlap(t *testing.T) {
	var told [][]byte
	var refuse error
	w := &teller{
		file: filepath.Join(t.TempDir(), keyAuthorities), now: func() time.Time { return start },
		tell: func(_ context.Context, authorities []byte) error {
			if refuse == nil {
				told = append(told, authorities)
			}
			return refuse
		},
	}
	if err := w.look(t.Context()); err == nil {
		t.Error("a file that is not there is read")
	}
	first, second := mustIssue(t, start, names, nil)[keyAuthorities], mustIssue(t, start, names, nil)[keyAuthorities]
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(w.file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() {
		t.Helper()
		if err := w.look(t.Context()); !errors.Is(err, refuse) {
			t.Errorf("%v", err)
		}
	}
	write(first)
	look()
	look()
	write(second)
	refuse = errors.New("the API server is away")
	look()
	refuse = nil
	look()
	if diff := cmp.Diff([][]byte{first, bytes.Join([][]byte{second, first}, nil)}, told); diff != "" {
		t.Error(diff)
	}
}

func TestTheCertificateBearsTheNamesOfBothServices(t *testing.T) {
	want := []string{
		"skep-webhook.skep-system.svc", "skep-webhook.skep-system.svc.cluster.local",
		"skep-mirror.skep-system.svc", "skep-mirror.skep-system.svc.cluster.local",
	}
	if diff := cmp.Diff(want, serviceNames("skep-system")); diff != "" {
		t.Error(diff)
	}
}
