package signing_test

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/digitorus/timestamp"
	"github.com/go-openapi/runtime"
	"github.com/sigstore/rekor/pkg/generated/models"
	_ "github.com/sigstore/rekor/pkg/types/intoto/v0.0.1"
	_ "github.com/sigstore/rekor/pkg/types/intoto/v0.0.2"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	prototrustroot "github.com/sigstore/protobuf-specs/gen/pb-go/trustroot/v1"
)

// sigstore has an authority's parts answer as Fulcio, Rekor and a timestamp authority
// do, to whoever asks: cosign itself signs and verifies by it.
type sigstore struct {
	*authority
	t   *testing.T
	url string
	dir string
}

func serveSigstore(t *testing.T, a *authority) *sigstore {
	t.Helper()
	s := &sigstore{authority: a, t: t, dir: t.TempDir()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/signingCert", s.certificateV1)
	mux.HandleFunc("POST /api/v2/signingCert", s.certificateV2)
	mux.HandleFunc("POST /api/v1/log/entries", s.entry)
	mux.HandleFunc("POST /api/v1/timestamp", s.timestamp)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL
	s.write("trusted_root.json", []byte(a.trustedRoot(t)))
	s.write("signing_config.json", s.signingConfig())
	s.write("root.pem", pemOf(t, a.root))
	s.write("chain.pem", pemOf(t, a.intermediate, a.root))
	s.write("tsa.pem", pemOf(t, a.stamper, a.stamperChain, a.root))
	for name, key := range map[string]crypto.PublicKey{"ctlog.pub": a.ctKey.Public(), "rekor.pub": a.logKey.Public()} {
		text, err := cryptoutils.MarshalPublicKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		s.write(name, text)
	}
	return s
}

func (s *sigstore) write(name string, content []byte) {
	if err := os.WriteFile(s.file(name), content, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// file is where cosign finds one of the instance's files.
func (s *sigstore) file(name string) string { return filepath.Join(s.dir, name) }

// environment has cosign of either generation trust this instance and no other.
func (s *sigstore) environment() []string {
	return []string{
		"SIGSTORE_CT_LOG_PUBLIC_KEY_FILE=" + s.file("ctlog.pub"),
		"SIGSTORE_REKOR_PUBLIC_KEY=" + s.file("rekor.pub"),
		"SIGSTORE_ROOT_FILE=" + s.file("chain.pem"),
		"SIGSTORE_TSA_CERTIFICATE_FILE=" + s.file("tsa.pem"),
	}
}

// signingConfig names the instance's services.
func (s *sigstore) signingConfig() []byte {
	service := func(path string) root.Service {
		return root.Service{URL: s.url + path, MajorAPIVersion: 1, ValidityPeriodStart: s.born, Operator: "test"}
	}
	any := root.ServiceConfiguration{Selector: prototrustroot.ServiceSelector_ANY}
	config, err := root.NewSigningConfig(root.SigningConfigMediaType02, []root.Service{service("")}, []root.Service{service("")},
		[]root.Service{service("")}, any, []root.Service{service("/api/v1/timestamp")}, any)
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := config.MarshalJSON()
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// token is an OIDC token that nobody signed: the instance asks for none.
func (s *sigstore) token() string {
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	now := time.Now()
	return part(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": issuer, "sub": subject, "aud": "sigstore", "email": subject, "email_verified": true,
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}) + "." + part("none")
}

// issued is a certificate for a key in PEM, and what it is a part of.
func (s *sigstore) issued(key []byte) [][]byte {
	public, err := cryptoutils.UnmarshalPEMToPublicKey(key)
	if err != nil {
		s.t.Errorf("key for a certificate: %v", err)
		return nil
	}
	at := time.Now().Add(-time.Second).Truncate(time.Second)
	cert := s.certifyKey(s.t, public, issuer, subject, at, false)
	return [][]byte{pemOf(s.t, cert), pemOf(s.t, s.intermediate), pemOf(s.t, s.root)}
}

func (s *sigstore) certificateV1(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		PublicKey struct {
			Content []byte `json:"content"`
		} `json:"publicKey"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		s.t.Errorf("request for a certificate: %v", err)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(bytes.Join(s.issued(asked.PublicKey.Content), nil))
}

func (s *sigstore) certificateV2(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Request struct {
			PublicKey struct {
				Content string `json:"content"`
			} `json:"publicKey"`
		} `json:"publicKeyRequest"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		s.t.Errorf("request for a certificate: %v", err)
	}
	var certificates []string
	for _, one := range s.issued([]byte(asked.Request.PublicKey.Content)) {
		certificates = append(certificates, string(one))
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"signedCertificateEmbeddedSct": map[string]any{"chain": map[string]any{"certificates": certificates}}})
}

func (s *sigstore) entry(w http.ResponseWriter, r *http.Request) {
	proposed, err := models.UnmarshalProposedEntry(r.Body, runtime.JSONConsumer())
	if err != nil {
		s.t.Errorf("proposed entry: %v", err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	logged, id := s.enter(s.t, proposed, time.Now())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", id)
	w.Header().Set("Location", "/api/v1/log/entries/"+id)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{id: logged})
}

func (s *sigstore) timestamp(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	var hashed []byte
	var nonce timestamp.Timestamp
	if asked, err := timestamp.ParseRequest(raw); err == nil {
		hashed, nonce.Nonce, nonce.AddTSACertificate = asked.HashedMessage, asked.Nonce, asked.Certificates
	} else {
		s.t.Errorf("request for a timestamp: %v", err)
	}
	w.Header().Set("Content-Type", "application/timestamp-reply")
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(s.stampHash(s.t, hashed, nonce, time.Now()))
}
