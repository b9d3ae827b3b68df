package clustermaps

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// TestCredentialsThatAreNotAcceptedAreSaidSo as by the commands that ask for what runs: the API server's own word is Unauthorized.
func TestCredentialsThatAreNotAcceptedAreSaidSo(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`))
	}))
	defer s.Close()
	err := Read(t.Context(), &rest.Config{Host: s.URL}, Request{Node: "a", Name: "web"}, func(json.RawMessage) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "does not accept your credentials: renew the client certificate or token of the kubeconfig") {
		t.Error(err)
	}
}
