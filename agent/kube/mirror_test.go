package kube_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/kube"
)

func TestObjectsComeFromTheMirrorByATokenThatIsReadEachTime(t *testing.T) {
	m := newMirror(t)
	digest := m.put([]byte("object"))
	if body, err := m.options().Fetch(t.Context(), digest); err != nil || string(body) != "object" {
		t.Errorf("Fetch = %q, %v", body, err)
	}
	token := filepath.Join(m.dir, "token")
	if err := os.WriteFile(token, []byte("expired"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.options().Fetch(t.Context(), digest); err == nil {
		t.Error("an expired token is taken")
	}
	if err := os.WriteFile(token, []byte(goodToken), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.options().Fetch(t.Context(), digest); err != nil {
		t.Errorf("after the token was renewed: %v", err)
	}
}

func TestWhatTheMirrorRefusesIsSaidWithoutSecrets(t *testing.T) {
	const secret = "a-token-that-must-not-be-told"
	missing := "sha256:" + strings.Repeat("0", 64)
	for sentence, c := range map[string]struct {
		change func(t *testing.T, m *mirror, o *kube.Mirror)
		digest string
		want   string
	}{
		"the token is not the mirror's": {func(*testing.T, *mirror, *kube.Mirror) {}, "", "rejects the node's token (401)"},
		"it does not have the object": {func(t *testing.T, m *mirror, o *kube.Mirror) {
			write(t, o.TokenFile, goodToken)
		}, missing, "does not have it (404)"},
		"it has its own troubles": {func(_ *testing.T, m *mirror, _ *kube.Mirror) {
			m.answer = func(w http.ResponseWriter, r *http.Request) {
				http.Error(w, r.Header.Get("Authorization"), http.StatusServiceUnavailable)
			}
		}, "", "cannot answer now (503)"},
		"it sends elsewhere": {func(t *testing.T, m *mirror, _ *kube.Mirror) {
			thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the token was carried elsewhere") }))
			t.Cleanup(thief.Close)
			m.answer = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) }
		}, "", "answers 302"},
		"it says that the object is too large": {func(_ *testing.T, m *mirror, o *kube.Mirror) {
			o.MaxBytes = 9
			m.answer = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ten bytes.")) }
		}, "", "more than 9 bytes"},
		"it sends without an end": {func(_ *testing.T, m *mirror, o *kube.Mirror) {
			o.MaxBytes = 1 << 20
			m.answer = func(w http.ResponseWriter, _ *http.Request) {
				for chunk := bytes.Repeat([]byte("x"), 1<<16); ; {
					if _, err := w.Write(chunk); err != nil {
						return
					}
				}
			}
		}, "", "more than 1048576 bytes"},
		"another certificate signed it": {func(t *testing.T, _ *mirror, o *kube.Mirror) {
			write(t, o.CAFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: otherCA(t)})))
		}, "", "certificate signed by unknown authority"},
		"it bears another name": {func(_ *testing.T, _ *mirror, o *kube.Mirror) { o.ServerName = "mirror.invalid" },
			"", "not mirror.invalid"},
		"the bundle holds no certificate": {func(t *testing.T, _ *mirror, o *kube.Mirror) { write(t, o.CAFile, "nonsense") },
			"", "holds none in PEM"},
		"there is no token": {func(_ *testing.T, _ *mirror, o *kube.Mirror) { o.TokenFile += "-not" },
			"", "read token"},
		"it is not to be reached": {func(_ *testing.T, m *mirror, _ *kube.Mirror) { m.Close() }, "", "connection refused"},
		"no mirror is known":      {func(_ *testing.T, _ *mirror, o *kube.Mirror) { o.URL = "" }, "", "--mirror"},
		"it is not https": {func(_ *testing.T, _ *mirror, o *kube.Mirror) { o.URL = strings.Replace(o.URL, "https", "http", 1) },
			"", "no https address"},
		"what is asked for is a path": {func(*testing.T, *mirror, *kube.Mirror) {}, "sha256:../../token", "no digest"},
	} {
		t.Run(sentence, func(t *testing.T) {
			m := newMirror(t)
			o := m.options()
			write(t, o.TokenFile, secret)
			digest := m.put([]byte("object"))
			if c.digest != "" {
				digest = c.digest
			}
			c.change(t, m, &o)
			body, err := o.Fetch(t.Context(), digest)
			if err == nil || !strings.Contains(err.Error(), c.want) || body != nil {
				t.Errorf("Fetch = %q, %v; want %q", body, err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), m.URL)) {
				t.Errorf("the error tells too much: %v", err)
			}
		})
	}
}

func TestAFetchEndsWithItsContext(t *testing.T) {
	m := newMirror(t)
	ctx, cancel := context.WithCancel(t.Context())
	// The mirror answers nothing until the fetch has ended: an answer that comes
	// while the connection closes would be taken.
	ended := make(chan struct{})
	m.answer = func(http.ResponseWriter, *http.Request) {
		cancel()
		<-ended
	}
	_, err := m.options().Fetch(ctx, m.put(nil))
	close(ended)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Fetch = %v", err)
	}
}

func write(t *testing.T, path, body string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
}

// otherCA is a certificate that signed nothing here.
func otherCA(t *testing.T) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
