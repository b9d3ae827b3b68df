package aggregated

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// published is an API server that publishes how it is known.
type published struct {
	client.Reader
	data map[string]string
}

// Get implements client.Reader.
func (p published) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.(*corev1.ConfigMap).Data = p.data
	return nil
}

// authority signs certificates of clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: key}
	a.cert = a.signs("authority")
	return a
}

// signs makes a certificate; the first is its own.
func (a *authority) signs(name string) *x509.Certificate {
	a.t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, IsCA: a.cert == nil, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	by := a.cert
	if by == nil {
		by = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, a.key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return made
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func TestACertificateOfAUserSpeaksForNoOther(t *testing.T) {
	users, front := newAuthority(t), newAuthority(t)
	for name, c := range map[string]struct {
		of, names string
		shown     *x509.Certificate
		let       bool
	}{
		"the front proxy's":                          {front.pem(), `["proxy"]`, front.signs("proxy"), true},
		"another name's":                             {front.pem(), `["proxy"]`, front.signs("ann"), false},
		"a user's by that name":                      {front.pem(), `["proxy"]`, users.signs("proxy"), false},
		"of an authority of its own, without names":  {front.pem(), `[]`, front.signs("any"), true},
		"a user's, of one authority, with names":     {users.pem(), `["proxy"]`, users.signs("ann"), false},
		"a user's, of one authority, without names":  {users.pem(), `[]`, users.signs("ann"), false},
		"a user's, of one among others, and no list": {front.pem() + users.pem(), ``, users.signs("ann"), false},
		"none": {front.pem(), `["proxy"]`, nil, false},
	} {
		p := &frontProxy{reader: published{data: map[string]string{"client-ca-file": users.pem(), "requestheader-client-ca-file": c.of,
			"requestheader-allowed-names": c.names, "requestheader-username-headers": `["X-Remote-User"]`}}}
		_ = p.look(t.Context())
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Remote-User", "admin")
		r.TLS = &tls.ConnectionState{}
		if c.shown != nil {
			r.TLS.PeerCertificates = []*x509.Certificate{c.shown}
		}
		if who, err := p.user(r); (err == nil) != c.let || c.let && who.GetName() != "admin" {
			t.Errorf("%s: %v %v", name, who, err)
		}
	}
}

// TestBeforeTheAPIServerIsKnownNobodyIsLetIn but all find the API: kube-controller-manager deletes no namespace of the cluster while an API does not
// say what it has.
func TestBeforeTheAPIServerIsKnownNobodyIsLetIn(t *testing.T) {
	s := &Server{APIs: []API{{Group: "g", Version: "v", OpenAPI: []byte("{}"), Register: func(mux *http.ServeMux) {
		mux.HandleFunc("GET /apis/g/v/things", func(http.ResponseWriter, *http.Request) { t.Error("a stranger is let in") })
	}}}}
	for path, want := range map[string]int{
		"/apis/g/v/things": http.StatusServiceUnavailable, "/apis/g/v/others": http.StatusServiceUnavailable,
		"/apis/g": http.StatusOK, "/apis/g/v": http.StatusOK, "/openapi/v3": http.StatusOK, "/openapi/v3/apis/g/v": http.StatusOK,
	} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want || w.Header().Get("Connection") != "close" {
			t.Errorf("%s: %d %s %v", path, w.Code, w.Body, w.Header())
		}
	}
}

// TestWhyKubeAPIServerIsNotKnownIsLogged once for many requests, and told no client.
func TestWhyKubeAPIServerIsNotKnownIsLogged(t *testing.T) {
	front := newAuthority(t)
	var said []string
	p := &frontProxy{log: funcr.New(func(_, args string) { said = append(said, args) }, funcr.Options{}),
		reader: published{data: map[string]string{"requestheader-client-ca-file": front.pem(), "requestheader-username-headers": `["X-Remote-User"]`}}}
	if err := p.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	expired := front.signs("proxy")
	expired.NotAfter = time.Now().Add(-time.Hour)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Remote-User", "admin")
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{expired}}
	for range 3 {
		if _, err := p.user(r); err != errNoProxy { //nolint:errorlint // It is returned as it is.
			t.Error(err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "expired") || !strings.Contains(said[0], r.RemoteAddr) {
		t.Errorf("%q", said)
	}
}
