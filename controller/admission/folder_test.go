package admission

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAuthoritiesOfSomebodyElseAreToldWithOverlap(t *testing.T) {
	var told [][]byte
	var refuse error
	w := &bundlePublisher{
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

// TestThePathOfSomebodyElseIsFollowed: whether a replica or the API server learns of
// a change first, what is called is served.
func TestThePathOfSomebodyElseIsFollowed(t *testing.T) {
	now := start
	c := &Certificates{Now: func() time.Time { return now }}
	f := &folderWatcher{certificates: c, folder: t.TempDir()}
	mux := http.NewServeMux()
	mux.Handle(prefixValidate+"{path}", c.told(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	first, second := newPath(), newPath()
	for _, step := range []struct {
		when, written string
		after         time.Duration
		fails         bool
		served        []string
	}{
		{"where there is none", "", 0, true, nil},
		{"at first", first, 0, false, []string{first}},
		{"of old", first, 10 * overlap, false, []string{first}},
		{"when it changed", second, 0, false, []string{first, second}},
		{"a while later", second, overlap - time.Second, false, []string{first, second}},
		{"in the end", second, time.Second, false, []string{second}},
		{"where it can be guessed", "validate", 0, true, []string{second}},
	} {
		now = now.Add(step.after)
		if err := os.WriteFile(filepath.Join(f.folder, filePath), []byte(step.written), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.look(t.Context()); (err != nil) != step.fails {
			t.Errorf("%s: look = %v", step.when, err)
		}
		for _, path := range []string{first, second} {
			answer := httptest.NewRecorder()
			mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, prefixValidate+path, nil))
			if want := slices.Contains(step.served, path); (answer.Code == http.StatusOK) != want {
				t.Errorf("%s: %.4s is answered with %d, want it served: %v", step.when, path, answer.Code, want)
			}
		}
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
