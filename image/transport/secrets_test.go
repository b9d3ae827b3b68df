package transport

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/fixture/images"
)

// TestFewSecretsAreKept: a registry may have as many tokens as it likes.
func TestFewSecretsAreKept(t *testing.T) {
	s := &Secrets{}
	for i := range 100 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://registry.example.com/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", fmt.Sprintf("Bearer token-number-%03d", i))
		s.Note(req)
		req.Header.Set("Authorization", "Bearer token-that-goes-on")
		s.Note(req)
	}
	if len(s.secrets) != maxShown || !s.inWords("token-that-goes-on") || !s.inWords("token-number-099") || s.inWords("token-number-001") {
		t.Errorf("%d secrets are kept", len(s.secrets))
	}
}
func TestARefusalThatRepeatsASecretLosesItsWords(t *testing.T) {
	const password = "p4ss-of-a-robot"
	basic := base64.StdEncoding.EncodeToString([]byte("robot:" + password))
	for name, c := range map[string]struct {
		header, form, body string
		kept               bool
	}{
		"other words stay":            {header: "Basic " + basic, body: "denied", kept: true},
		"a password":                  {header: "Basic " + basic, body: "no " + password},
		"a whole header":              {header: "Basic " + basic, body: "no " + basic},
		"a token":                     {header: "Bearer t0ken", body: "t0ken is too old"},
		"a refresh token of a form":   {form: "refresh_token=t0ken&x=y", body: "t0ken is too old"},
		"nothing was shown, all stay": {body: "t0ken", kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := images.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.Write([]byte(c.body))
			}))
			method := http.MethodGet
			if c.form != "" {
				method = http.MethodPost
			}
			req, err := http.NewRequestWithContext(t.Context(), method, s.URL, strings.NewReader(c.form))
			if err != nil {
				t.Fatal(err)
			}
			if c.form != "" {
				req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			}
			req.Header.Set("Authorization", c.header)
			resp, err := bounded(func(o *Bounded) { o.Attempts = 1 }).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := make([]byte, 100)
			n, _ := resp.Body.Read(body)
			if kept := string(body[:n]) == c.body; kept != c.kept {
				t.Errorf("%q came", body[:n])
			}
		})
	}
}
