package cluster

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// fake is an API server with objects by their paths; a slice is a list.
type fake struct {
	objects map[string]any
	// forbidden are the paths that the caller may not read.
	forbidden map[string]bool
	// unknown reports that the caller's credentials are not accepted.
	unknown bool
	// away is why view.skep.dev answers 503: without words of its own, kube-apiserver does not reach it.
	away *string

	mu       sync.Mutex
	requests []string
}

// client is one of a fake, whose caller is in namespace team-a.
func (f *fake) client(t testing.TB, chosen bool) *Client {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	c, err := open(&rest.Config{Host: server.URL}, "cluster kind-a, context admin@a", "team-a", chosen, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ServeHTTP answers as an API server does: by pages, as tables, and with a Status where it does not.
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.requests = append(f.requests, r.URL.RequestURI())
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	found, known := f.objects[r.URL.Path]
	switch {
	case f.unknown:
		reject(w, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
		return
	case f.away != nil && strings.HasPrefix(r.URL.Path, "/apis/"+view.Group+"/"):
		if *f.away == "" {
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: *f.away})
		return
	case f.forbidden[r.URL.Path]:
		reject(w, http.StatusForbidden, metav1.StatusReasonForbidden)
		return
	case !known:
		reject(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	list, isList := found.([]any)
	if !isList {
		_ = json.NewEncoder(w).Encode(found)
		return
	}
	start, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	rest, next := list[start:], ""
	if limit > 0 && len(rest) > limit {
		rest, next = rest[:limit], strconv.Itoa(start+limit)
	}
	if strings.Contains(r.Header.Get("Accept"), "as=Table") {
		t := metav1.Table{ListMeta: metav1.ListMeta{Continue: next}}
		for _, name := range []string{"Name", "Kernel", "Agent"} {
			t.ColumnDefinitions = append(t.ColumnDefinitions, metav1.TableColumnDefinition{Name: name})
		}
		for _, cells := range rest {
			t.Rows = append(t.Rows, metav1.TableRow{Cells: cells.([]any)})
		}
		_ = json.NewEncoder(w).Encode(t)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]any{"continue": next}, "items": rest})
}

// reject answers with a Status.
func reject(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason})
}
