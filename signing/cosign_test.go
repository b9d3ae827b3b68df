package signing_test

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/sign"
)

// withCosign is a folder with the programs themselves, as cosign2/cosign and
// cosign3/cosign. make cosign builds them, makes testdata/cosign anew by them, and has
// them verify what Skep signs; it takes too long for every change. Without it, which is
// how CI runs, Skep verifies the golden files, and the library of cosign 2 what Skep
// signs.
var withCosign = flag.String("cosign", "", "folder of cosign's programs, to make testdata/cosign anew")

// generations are the programs that make and verify signatures.
var generations = []string{"cosign2", "cosign3"}

// cosignKeys are the kinds of keys that sign.
var cosignKeys = []string{"ECDSA P-256", "ECDSA P-384", "ECDSA P-521", "RSA 2048", "Ed25519"}

// TestSkepVerifiesWhatCosignMade verifies testdata/cosign: what both generations of
// cosign wrote beside an image, in each form, with keys of each kind and without.
func TestSkepVerifiesWhatCosignMade(t *testing.T) {
	files, err := filepath.Glob("testdata/cosign/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d golden files: %v", len(files), err)
	}
	_, stranger := newKey(t, "stranger")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g := readGolden(t, archive)
			srv := newRegistry(t, true)
			g.push(t, srv)
			collected := collected(t, g.resolved(srv))
			if diff := cmp.Diff(g.evidence, evidenceText(t, verify(t, trustOf(t, g.signer), collected))); diff != "" {
				t.Errorf("evidence (-want +got):\n%s", diff)
			}
			if e := verify(t, trustOf(t, stranger), collected); len(e.Signatures)+len(e.Attestations) > 0 {
				t.Errorf("it counts for a stranger: %+v", e)
			}
		})
	}
}

// golden is one file of testdata/cosign.
type golden struct {
	command   string
	digest    string
	signer    v1alpha1.BpfSigner
	manifests []written
	blobs     [][]byte
	evidence  string
}

// written is a manifest as it was pushed.
type written struct {
	reference string
	content   []byte
}

// A text in an archive ends with a line end, which its content need not have.
func withLineEnd(content []byte) []byte { return append(slices.Clone(content), '\n') }

func readGolden(t *testing.T, archive *txtar.Archive) golden {
	t.Helper()
	g := golden{command: string(archive.Comment)}
	for _, f := range archive.Files {
		content := bytes.TrimSuffix(f.Data, []byte("\n"))
		switch folder, name, _ := strings.Cut(f.Name, "/"); folder {
		case "digest":
			g.digest = string(content)
		case "signer.yaml":
			if err := yaml.UnmarshalStrict(content, &g.signer); err != nil {
				t.Fatal(err)
			}
		case "manifests":
			g.manifests = append(g.manifests, written{name, content})
		case "blobs":
			g.blobs = append(g.blobs, content)
		case "evidence.json":
			g.evidence = string(content)
		}
	}
	return g
}

func (g golden) archive(t *testing.T) *txtar.Archive {
	t.Helper()
	signer, err := yaml.Marshal(g.signer)
	if err != nil {
		t.Fatal(err)
	}
	archive := &txtar.Archive{Comment: []byte(g.command)}
	add := func(name string, content []byte) {
		archive.Files = append(archive.Files, txtar.File{Name: name, Data: withLineEnd(content)})
	}
	add("digest", []byte(g.digest))
	add("signer.yaml", signer)
	for _, m := range g.manifests {
		add("manifests/"+m.reference, m.content)
	}
	for _, b := range g.blobs {
		h, _, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		add("blobs/"+h.String(), b)
	}
	add("evidence.json", []byte(g.evidence))
	return archive
}

// goldenRepository is where the images of golden files are.
const goldenRepository = "bpf/counter"

func (g golden) resolved(c *counting) image.Resolved {
	return image.Resolved{Reference: c.host + "/" + goldenRepository + "@" + g.digest, Registry: c.host, Repository: goldenRepository, Digest: g.digest}
}

// push puts what is attached to the image into a registry, as it was.
func (g golden) push(t *testing.T, c *counting) {
	t.Helper()
	g.pushTo(t, c, goldenRepository)
}

// pushTo is push to a repository.
func (g golden) pushTo(t *testing.T, c *counting, repository string) {
	t.Helper()
	at := "http://" + c.host + "/v2/" + repository
	for _, b := range g.blobs {
		h, _, err := v1.SHA256(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		send(t, http.MethodPost, at+"/blobs/uploads/?digest="+h.String(), "application/octet-stream", b)
	}
	for _, m := range g.manifests {
		var typed struct {
			MediaType string `json:"mediaType"`
		}
		if err := json.Unmarshal(m.content, &typed); err != nil {
			t.Fatal(err)
		}
		send(t, http.MethodPut, at+"/manifests/"+m.reference, typed.MediaType, m.content)
	}
}

func send(t *testing.T, method, url, mediaType string, content []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, url, resp.Status)
	}
}

func evidenceText(t *testing.T, e signing.Evidence) string {
	t.Helper()
	e.TrustRevision = ""
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// recorded notes the manifests that are pushed to a registry.
func recorded(t *testing.T) (*counting, func() []written) {
	t.Helper()
	c := newRegistry(t, true)
	var mu sync.Mutex
	var all []written
	c.answer(func(_ http.ResponseWriter, r *http.Request) bool {
		_, reference, manifest := strings.Cut(r.URL.Path, "/"+goldenRepository+"/manifests/")
		if r.Method != http.MethodPut || !manifest {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		defer mu.Unlock()
		all = append(all, written{reference, body})
		return false
	})
	return c, func() []written {
		mu.Lock()
		defer mu.Unlock()
		found := all
		all = nil
		return found
	}
}

// blobsOf reads what manifests name.
func blobsOf(t *testing.T, c *counting, manifests []written) [][]byte {
	t.Helper()
	seen := map[v1.Hash]bool{}
	var blobs [][]byte
	for _, m := range manifests {
		var parsed v1.Manifest
		if err := json.Unmarshal(m.content, &parsed); err != nil {
			t.Fatal(err)
		}
		for _, d := range append(parsed.Layers, parsed.Config) {
			if seen[d.Digest] || d.Digest.Hex == "" {
				continue
			}
			seen[d.Digest] = true
			resp, err := http.Get("http://" + c.host + "/v2/" + goldenRepository + "/blobs/" + d.Digest.String())
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("read %s: %s, %v", d.Digest, resp.Status, err)
			}
			blobs = append(blobs, b)
		}
	}
	return blobs
}

// cosigns runs the programs.
type cosigns struct {
	t   *testing.T
	dir string
	by  *sigstore
	// env is added to the programs' environment.
	env []string
}

func newCosigns(t *testing.T) *cosigns {
	t.Helper()
	if *withCosign == "" {
		t.Skip("SKIPPED: run make cosign, which builds both generations of cosign")
	}
	return &cosigns{t: t, dir: t.TempDir(), by: serveSigstore(t, newAuthority(t))}
}

// run runs cosign, and returns its command line without what is of this machine.
func (c *cosigns) run(generation string, args ...string) (string, error) {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), filepath.Join(*withCosign, generation, "cosign"), args...)
	cmd.Env = append([]string{"HOME=" + c.dir, "COSIGN_PASSWORD=", "PATH=" + os.Getenv("PATH")}, slices.Concat(c.by.environment(), c.env)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", generation, strings.Join(args, " "), err, out)
	}
	line := generation + " " + strings.Join(args, " ")
	for found, shown := range map[string]string{c.by.dir + "/": "", c.dir + "/": "", c.by.url: "https://sigstore.invalid", c.by.token(): "TOKEN"} {
		line = strings.ReplaceAll(line, found, shown)
	}
	return line, err
}

// pair writes a key as cosign keeps it, and returns where.
func (c *cosigns) pair(kind string, raw any) (private, public string) {
	c.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(raw)
	if err != nil {
		c.t.Fatal(err)
	}
	plain := filepath.Join(c.dir, "plain.pem")
	if err := os.WriteFile(plain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		c.t.Fatal(err)
	}
	prefix := filepath.Join(c.dir, strings.ReplaceAll(kind, " ", "-"))
	if _, err := c.run("cosign2", "import-key-pair", "--yes", "--key", plain, "--output-key-prefix", prefix); err != nil {
		c.t.Fatal(err)
	}
	return prefix + ".key", prefix + ".pub"
}

// TestCosignMakesGoldenFiles makes testdata/cosign anew.
func TestCosignMakesGoldenFiles(t *testing.T) {
	c := newCosigns(t)
	predicate := filepath.Join(c.dir, "predicate.json")
	if err := os.WriteFile(predicate,
		[]byte(`{"buildDefinition":{"buildType":"https://example.com/build/v1"},"runDetails":{"builder":{"id":"https://example.com/ci"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := filepath.Glob("testdata/cosign/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range old {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	verbs := map[string][]string{
		"signature":   {"sign", "--yes"},
		"attestation": {"attest", "--yes", "--type", "slsaprovenance1", "--predicate", predicate},
	}
	raws := keyKinds(t)
	for _, generation := range generations {
		for verb, args := range verbs {
			for form, flags := range formFlags(c) {
				for _, kind := range cosignKeys {
					name := strings.ToLower(strings.ReplaceAll(strings.Join([]string{generation, form, verb, kind}, "-"), " ", "-"))
					private, public := c.pair(kind, raws[kind])
					text, err := os.ReadFile(public)
					if err != nil {
						t.Fatal(err)
					}
					c.make(name, keySigner("ci", text), generation, slices.Concat(args, []string{"--key", private}, flags.keyed))
				}
				name := strings.Join([]string{generation, form, verb, ""}, "-")
				c.make(name+"keyless", c.by.signer(t, "ci"), generation, slices.Concat(args, []string{"--identity-token", c.by.token()}, flags.logged, flags.certified))
				private, public := c.pair("logged", raws["ECDSA P-256"])
				text, err := os.ReadFile(public)
				if err != nil {
					t.Fatal(err)
				}
				logged := keySigner("ci", text)
				logged.Spec.Key.TrustedRoot = c.by.trustedRoot(t)
				logged.Spec.Key.TransparencyLog, logged.Spec.Key.Timestamp = v1alpha1.DemandRequired, v1alpha1.DemandRequired
				c.make(name+"logged-key", logged, generation, slices.Concat(args, []string{"--key", private}, flags.logged))
			}
		}
	}
}

// make has cosign sign an image, and writes what it pushed and what Skep makes of it.
func (c *cosigns) make(name string, signer v1alpha1.BpfSigner, generation string, args []string) {
	c.t.Helper()
	srv, pushes := recorded(c.t)
	r := pushed(c.t, srv)
	pushes()
	line, err := c.run(generation, append(args, r.Registry+"/"+r.Repository+"@"+r.Digest)...)
	if err != nil {
		c.t.Errorf("%s: %v", name, err)
		return
	}
	g := golden{command: strings.ReplaceAll(line, srv.host, "registry.example.com") + "\n", digest: r.Digest, signer: signer, manifests: pushes()}
	g.blobs = blobsOf(c.t, srv, g.manifests)
	e := verify(c.t, trustOf(c.t, signer), collected(c.t, r))
	if len(e.Signatures)+len(e.Attestations) != 1 || len(e.Rejected) > 0 {
		c.t.Errorf("%s: %s: %+v", name, line, e)
	}
	g.evidence = evidenceText(c.t, e)
	if err := os.WriteFile(filepath.Join("testdata/cosign", name+".txtar"), txtar.Format(g.archive(c.t)), 0o644); err != nil {
		c.t.Error(err)
	}
}

// flags are those by which cosign stores a signature in one form: with a key alone,
// with a log and a timestamp, and beside that with a certificate.
type flags struct{ keyed, logged, certified []string }

func formFlags(c *cosigns) map[string]flags {
	tag := []string{"--new-bundle-format=false", "--use-signing-config=false"}
	bundle := []string{"--new-bundle-format=true"}
	unlogged := []string{"--tlog-upload=false"}
	return map[string]flags{
		"tag": {
			keyed:     slices.Concat(tag, unlogged),
			logged:    slices.Concat(tag, []string{"--rekor-url", c.by.url, "--timestamp-server-url", c.by.url + "/api/v1/timestamp"}),
			certified: []string{"--fulcio-url", c.by.url},
		},
		"bundle": {
			keyed:  slices.Concat(bundle, []string{"--use-signing-config=false"}, unlogged),
			logged: slices.Concat(bundle, []string{"--signing-config", c.by.file("signing_config.json"), "--trusted-root", c.by.file("trusted_root.json")}),
		},
	}
}

// TestCosignVerifiesEveryKeyOfSkep has both generations of cosign verify what skep sign
// writes, without a flag for the kind of key.
func TestCosignVerifiesEveryKeyOfSkep(t *testing.T) {
	c := newCosigns(t)
	for kind, raw := range keyKinds(t) {
		for form, options := range map[string]sign.Options{"tag": {}, "bundle": {Bundle: true}} {
			private, public := c.pair(kind, raw)
			for how, data := range map[string]string{"plain": filepath.Join(c.dir, "plain.pem"), "encrypted": private} {
				text, err := os.ReadFile(data)
				if err != nil {
					t.Fatal(err)
				}
				key, err := sign.ParsePrivateKey(text, nil)
				if err != nil {
					t.Fatal(err)
				}
				r := pushed(t, newRegistry(t, true))
				signed(t, r, key, options)
				for _, generation := range generations {
					args := []string{"verify", "--key", public, "--insecure-ignore-tlog=true", fmt.Sprintf("--new-bundle-format=%v", options.Bundle)}
					if options.Bundle {
						args = append(args, "--trusted-root", c.by.file("trusted_root.json"))
					}
					_, err := c.run(generation, append(args, r.Registry+"/"+r.Repository+"@"+r.Digest)...)
					if err != nil {
						t.Errorf("%s, %s, in a %s: %v", kind, how, form, err)
					}
				}
			}
		}
	}
}

// TestCosignSignsInAnotherRepository has both generations sign under COSIGN_REPOSITORY:
// Skep finds it there. Cosign 2 leaves bundles beside the image all the same.
func TestCosignSignsInAnotherRepository(t *testing.T) {
	c := newCosigns(t)
	private, public := c.pair("elsewhere", keyKinds(t)["ECDSA P-256"])
	text, err := os.ReadFile(public)
	if err != nil {
		t.Fatal(err)
	}
	for _, generation := range generations {
		for form, flags := range formFlags(c) {
			r, elsewhere := pushed(t, newRegistry(t, true)), newRegistry(t, true)
			signer := keySigner("ci", text)
			signer.Spec.Repository = elsewhere.host + "/team/signatures"
			c.env = []string{"COSIGN_REPOSITORY=" + signer.Spec.Repository}
			if _, err := c.run(generation,
				slices.Concat([]string{"sign", "--yes", "--key", private}, flags.keyed, []string{r.Registry + "/" + r.Repository + "@" + r.Digest})...); err != nil {
				t.Error(err)
				continue
			}
			trust := trustOf(t, signer)
			found, err := collectFor(t, newClient(t), r, trust)
			if e := verify(t, trust, found); err != nil || !slices.Equal(e.Signers(), []string{"ci"}) {
				t.Errorf("%s in a %s: %v, %+v", generation, form, err, e)
			}
		}
	}
}

// TestCosignsLibraryVerifiesEveryKeyOfSkep is the same by the library of the second
// generation, with the key as its command line reads it.
func TestCosignsLibraryVerifiesEveryKeyOfSkep(t *testing.T) {
	material := trustedMaterial(t, newAuthority(t).trustedRoot(t))
	srv := newRegistry(t, true)
	for kind, raw := range keyKinds(t) {
		key, signer := parsedKey(t, "alice", raw)
		public, err := cryptoutils.UnmarshalPEMToPublicKey([]byte(signer.Spec.Key.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		verifier, err := signature.LoadVerifier(public, crypto.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		for _, bundle := range []bool{false, true} {
			r := pushed(t, srv)
			signed(t, r, key, sign.Options{Bundle: bundle})
			options := &cosign.CheckOpts{SigVerifier: verifier, IgnoreTlog: true, Offline: true, ClaimVerifier: cosign.SimpleClaimVerifier}
			if bundle {
				options.NewBundleFormat, options.TrustedMaterial, options.ClaimVerifier = true, material, cosign.IntotoSubjectClaimVerifier
				found, _, err := cosign.VerifyImageAttestations(t.Context(), digestOf(t, r), options)
				if err != nil || len(found) != 1 {
					t.Errorf("%s in a bundle: %d, %v", kind, len(found), err)
				}
				continue
			}
			if found, _, err := cosign.VerifyImageSignatures(t.Context(), digestOf(t, r), options); err != nil || len(found) != 1 {
				t.Errorf("%s in a tag: %d, %v", kind, len(found), err)
			}
		}
	}
}
