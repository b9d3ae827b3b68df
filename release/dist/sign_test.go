package dist_test

import (
	"bytes"
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	imageregistry "github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/release/attest"
	"github.com/skep-dev/skep/release/build"
	"github.com/skep-dev/skep/release/dist"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
	fixture "github.com/skep-dev/skep/test/fixture/images"
)

// pair makes a key, with the password of its file, and its public half.
func pair(t *testing.T) (*sign.PrivateKey, []byte) {
	t.Helper()
	private, public, err := sign.GenerateKey([]byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := sign.ParsePrivateKey(private, []byte("open sesame"))
	if err != nil {
		t.Fatal(err)
	}
	return key, public
}

// verifierOf is a public key as cosign's command line loads it.
func verifierOf(t *testing.T, public []byte) signature.Verifier {
	t.Helper()
	key, err := cryptoutils.UnmarshalPEMToPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	v, err := signature.LoadVerifier(key, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestASignedRelease looks at one release in all ways in which it is verified.
func TestASignedRelease(t *testing.T) {
	o, public := signedRelease(t)
	for sentence, verify := range map[string]func(*testing.T, dist.Options, []byte){
		"cosign verifies what was pushed":        cosignVerifies,
		"skep verifies layouts and their copies": skepVerifies,
		"files are signed as cosign signs blobs": filesAreSigned,
		"pushed files are those of the folder":   filesArePushed,
	} {
		t.Run(sentence, func(t *testing.T) { verify(t, o, public) })
	}
}

// signedRelease is a release that was signed and pushed, with the key's public half.
func signedRelease(t *testing.T) (o dist.Options, public []byte) {
	t.Helper()
	o = options(t)
	o.Key, public = pair(t)
	o.Folder, o.Push = fixture.Real(t).Host+"/team", true
	o.More = func(context.Context, dist.Made) ([]dist.Artifact, []dist.File, error) {
		return []dist.Artifact{{Repository: "charts/skep", Tag: "1.2.3-rc.1", Image: empty.Image}}, nil, nil
	}
	if err := dist.Make(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o, public
}

// TestAVersionIsReleasedOnce pushes a release again, which changes nothing, and then another one of
// the same version.
func TestAVersionIsReleasedOnce(t *testing.T) {
	o, _ := signedRelease(t)
	before := references(t, o)
	o.Dir = filepath.Join(t.TempDir(), "release")
	if err := dist.Make(t.Context(), o); err != nil {
		t.Errorf("the same release: %v", err)
	}
	o.Time = committed.Add(time.Hour)
	if err := dist.Make(t.Context(), o); err == nil || !strings.Contains(err.Error(), "it was released already as sha256:") {
		t.Errorf("another release of the same version: %v", err)
	}
	byName := cmpopts.SortSlices(func(a, b name.Digest) bool { return a.String() < b.String() })
	if diff := cmp.Diff(before, references(t, o), byName, cmp.Comparer(func(a, b name.Digest) bool { return a.String() == b.String() })); diff != "" {
		t.Error(diff)
	}
}

// TestWhereTagsCannotBeReadNothingIsPushed: a registry that denies access may have the
// version already.
func TestWhereTagsCannotBeReadNothingIsPushed(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			var pushed atomic.Int64
			server := fixture.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/v2/":
				case r.Method == http.MethodGet || r.Method == http.MethodHead:
					w.WriteHeader(status)
				default:
					pushed.Add(1)
				}
			}))
			o := options(t)
			o.Key, _ = pair(t)
			o.Folder, o.Push = server.Host+"/team", true
			err := dist.Make(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), "could not be determined whether it was released already: log in") || pushed.Load() > 0 {
				t.Errorf("%d uploads, error %v", pushed.Load(), err)
			}
		})
	}
}

// references are all images of a release by digest, those of an index too.
func references(t *testing.T, o dist.Options) []name.Digest {
	t.Helper()
	var all []name.Digest
	for repository, tag := range map[string]string{"skep": o.Version, "skep-controller": o.Version, "skep-agent": o.Version, "charts/skep": "1.2.3-rc.1"} {
		ref, err := name.NewTag(o.Folder + "/" + repository + ":" + tag)
		if err != nil {
			t.Fatal(err)
		}
		d, err := remote.Get(ref)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, ref.Digest(d.Digest.String()))
		if !d.MediaType.IsIndex() {
			continue
		}
		var index v1.IndexManifest
		if err := json.Unmarshal(d.Manifest, &index); err != nil {
			t.Fatal(err)
		}
		for _, m := range index.Manifests {
			all = append(all, ref.Digest(m.Digest.String()))
		}
	}
	return all
}

// cosignVerifies has cosign's library verify what its command line would,
// with the right key and with another.
func cosignVerifies(t *testing.T, o dist.Options, public []byte) {
	t.Helper()
	_, stranger := pair(t)
	all := references(t, o)
	if len(all) != 3*3+1 {
		t.Fatalf("%d images", len(all))
	}
	for _, ref := range all {
		options := &cosign.CheckOpts{SigVerifier: verifierOf(t, public), IgnoreTlog: true, Offline: true, ClaimVerifier: cosign.SimpleClaimVerifier}
		if found, _, err := cosign.VerifyImageSignatures(t.Context(), ref, options); err != nil || len(found) != 1 {
			t.Errorf("%s has %d signatures: %v", ref, len(found), err)
		}
		options.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
		found, _, err := cosign.VerifyImageAttestations(t.Context(), ref, options)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		var kinds []string
		for _, a := range found {
			kinds = append(kinds, predicateOf(t, a))
		}
		if len(kinds) == 0 || kinds[0] != attest.PredicateProvenance || strings.Contains(ref.String(), "/team/skep") != slices.Contains(kinds, attest.PredicateSBOM) {
			t.Errorf("%s is attested %v", ref, kinds)
		}
		other := &cosign.CheckOpts{SigVerifier: verifierOf(t, stranger), IgnoreTlog: true, Offline: true, ClaimVerifier: cosign.SimpleClaimVerifier}
		if _, _, err := cosign.VerifyImageSignatures(t.Context(), ref, other); err == nil {
			t.Errorf("%s is signed by a stranger", ref)
		}
		other.ClaimVerifier = cosign.IntotoSubjectClaimVerifier
		if _, _, err := cosign.VerifyImageAttestations(t.Context(), ref, other); err == nil {
			t.Errorf("%s is attested by a stranger", ref)
		}
	}
}

// predicateOf is what cosign verify-attestation compares with --type.
func predicateOf(t *testing.T, attestation oci.Signature) string {
	t.Helper()
	var envelope struct{ Payload []byte }
	var statement struct{ PredicateType string }
	content, err := attestation.Payload()
	if err == nil {
		err = json.Unmarshal(content, &envelope)
	}
	if err == nil {
		err = json.Unmarshal(envelope.Payload, &statement)
	}
	if err != nil {
		t.Fatal(err)
	}
	return statement.PredicateType
}

// skepVerifies verifies layouts and what was pushed of them, as skep
// verify does.
func skepVerifies(t *testing.T, o dist.Options, public []byte) {
	t.Helper()
	_, stranger := pair(t)
	client, err := imageregistry.NewClient(imageregistry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	refs := []string{o.Folder + "/skep-release:" + o.Version, o.Folder + "/skep-release:" + o.Version + "-signatures"}
	for _, c := range build.Components() {
		refs = append(refs, "oci:"+filepath.Join(o.Dir, "oci", c.Command)+":"+o.Version)
	}
	for _, d := range references(t, o) {
		refs = append(refs, d.String())
	}
	for _, ref := range refs {
		r, err := client.Resolve(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		found, err := collect.All(t.Context(), client, r)
		if err != nil {
			t.Fatal(err)
		}
		if e := evidence(t, found, public); !slices.Equal(e.Signers(), []string{"releaser"}) || len(e.Rejected)+len(found.Skipped) > 0 {
			t.Errorf("%s: %+v", ref, e)
		}
		if e := evidence(t, found, stranger); len(e.Signatures)+len(e.Attestations) > 0 {
			t.Errorf("%s counts for a stranger: %+v", ref, e)
		}
	}
}

func evidence(t *testing.T, found collect.Collected, public []byte) signing.Evidence {
	t.Helper()
	signer := v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: "releaser"}, Spec: v1alpha1.BpfSignerSpec{
		Key: &v1alpha1.KeySigner{PublicKey: string(public)},
	}}
	trust, err := signing.NewTrust([]v1alpha1.BpfSigner{signer})
	if err != nil {
		t.Fatal(err)
	}
	e, err := trust.Verify(t.Context(), found, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// filesAreSigned verifies the files of a release as cosign verify-blob
// and verify-blob-attestation do with a key.
func filesAreSigned(t *testing.T, o dist.Options, public []byte) {
	t.Helper()
	_, stranger := pair(t)
	unsigned := []string{}
	found := sums(t, o.Dir)
	for name := range found {
		if strings.Contains(name, "/") || strings.HasSuffix(name, ".sig") || strings.HasSuffix(name, ".att") {
			continue
		}
		content, signed := read(t, o, name), read(t, o, name+".sig")
		raw, err := base64.StdEncoding.DecodeString(string(signed))
		if err != nil {
			t.Fatal(err)
		}
		if err := verifierOf(t, public).VerifySignature(bytes.NewReader(raw), bytes.NewReader(content)); err != nil {
			unsigned = append(unsigned, name)
		}
		if verifierOf(t, stranger).VerifySignature(bytes.NewReader(raw), bytes.NewReader(content)) == nil {
			t.Errorf("%s is signed by a stranger", name)
		}
	}
	if len(unsigned) > 0 || found[dist.SumsFile+".sig"] == "" {
		t.Errorf("not signed: %v", unsigned)
	}
	for _, c := range []struct{ file, attestation, kind string }{
		{"skep-linux-arm64", "skep-linux-arm64.cdx.json.att", attest.PredicateSBOM},
		{"skep-linux-arm64", "provenance.json.att", attest.PredicateProvenance},
		{"kubectl-skep-linux-amd64", "provenance.json.att", attest.PredicateProvenance},
	} {
		envelope := read(t, o, c.attestation)
		if err := dsse.WrapVerifier(verifierOf(t, public)).VerifySignature(bytes.NewReader(envelope), nil); err != nil {
			t.Errorf("%s: %v", c.attestation, err)
		}
		if dsse.WrapVerifier(verifierOf(t, stranger)).VerifySignature(bytes.NewReader(envelope), nil) == nil {
			t.Errorf("%s is signed by a stranger", c.attestation)
		}
		attestation, err := static.NewAttestation(envelope)
		if err != nil {
			t.Fatal(err)
		}
		if kind := predicateOf(t, attestation); kind != c.kind {
			t.Errorf("%s is %s", c.attestation, kind)
		}
		digest := v1.Hash{Algorithm: "sha256", Hex: found[c.file]}
		if err := cosign.IntotoSubjectClaimVerifier(attestation, digest, nil); err != nil {
			t.Errorf("%s says nothing of %s: %v", c.attestation, c.file, err)
		}
	}
}

func read(t *testing.T, o dist.Options, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(o.Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// filesArePushed reads the artifact of files back, as oras pull does.
func filesArePushed(t *testing.T, o dist.Options, _ []byte) {
	t.Helper()
	want := sums(t, o.Dir)
	for name := range want {
		if strings.Contains(name, "/") {
			delete(want, name)
		}
	}
	got := map[string]string{}
	for _, tag := range []string{o.Version, o.Version + "-signatures"} {
		ref, err := name.NewTag(o.Folder + "/skep-release:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		artifact, err := remote.Image(ref)
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := artifact.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range manifest.Layers {
			layer, err := artifact.LayerByDigest(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			content, err := layer.Compressed()
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(content)
			if err != nil {
				t.Fatal(err)
			}
			got[d.Annotations["org.opencontainers.image.title"]] = image.Sum(b).Hex
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
