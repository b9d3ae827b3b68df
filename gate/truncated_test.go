package gate_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing/collect"
)

const (
	bundleType  = "application/vnd.dev.sigstore.bundle.v0.3+json"
	signingType = "application/vnd.dev.cosign.simplesigning.v1+json"
)

// attach pushes a manifest with some layers beside an image: under a tag, or as what
// refers to it and says of itself to be of a type.
func (w *world) attach(ref, tag, kind string, layers ...v1.Descriptor) {
	w.t.Helper()
	r := w.resolve(ref)
	digest, err := v1.NewHash(r.Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	config := []byte("{}")
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: describe(config, types.MediaType(kind)), Layers: layers}
	if tag == "" {
		m.Subject = &v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: digest, Size: 1}
	}
	manifest := marshal(w.t, m)
	to, err := w.client.Attachments(r)
	if err == nil {
		err = errors.Join(to.PutBlob(w.t.Context(), describe(config, ""), config),
			to.PutManifest(w.t.Context(), describe(manifest, types.OCIManifestSchema1), manifest, tag))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// blob pushes a blob beside an image.
func (w *world) blob(ref string, content []byte, kind types.MediaType) v1.Descriptor {
	w.t.Helper()
	to, err := w.client.Attachments(w.resolve(ref))
	if err == nil {
		err = to.PutBlob(w.t.Context(), describe(content, ""), content)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return describe(content, kind)
}

// junk attaches so many manifests that look like bundles.
func (w *world) junk(ref string, count int) {
	w.t.Helper()
	for i := range count {
		w.attach(ref, "", bundleType, w.blob(ref, fmt.Appendf(nil, "junk %d", i), bundleType))
	}
}

// signatures are so many different layers of one payload.
func (w *world) signatures(ref string, count int) []v1.Descriptor {
	w.t.Helper()
	layers := slices.Repeat([]v1.Descriptor{w.blob(ref, []byte("{}"), signingType)}, count)
	for i := range layers {
		layers[i].Annotations = map[string]string{"dev.cosignproject.cosign/signature": fmt.Sprintf("%08d", i)}
	}
	return layers
}

func (w *world) tag(ref, ending string) string {
	w.t.Helper()
	return strings.Replace(w.resolve(ref).Digest, ":", "-", 1) + ending
}

// TestNoBoundOnEvidenceDenies has whoever may push write more beside an image than is
// read: what is not read may be the signature, so an image without one is not denied.
func TestNoBoundOnEvidenceDenies(t *testing.T) {
	for name, push := range map[string]func(w *world, ref string){
		"more bundles than are read": func(w *world, ref string) { w.junk(ref, 65) },
		"more layers of the tag than are read": func(w *world, ref string) {
			w.attach(ref, w.tag(ref, ".sig"), "", w.signatures(ref, 65)...)
		},
		"more layers in all than are read": func(w *world, ref string) {
			for i := range 3 {
				layers := w.signatures(ref, 60)
				for j := range layers {
					layers[j].Annotations["dev.cosignproject.cosign/signature"] = fmt.Sprintf("%04d%04d", i, j)
				}
				w.attach(ref, "", bundleType, layers...)
			}
		},
		"more values under the tag than are read": func(w *world, ref string) {
			layers := w.signatures(ref, 1)
			for i := range 8192 {
				layers[0].Annotations[fmt.Sprint(i)] = ""
			}
			w.attach(ref, w.tag(ref, ".sig"), "", layers...)
		},
		"more bytes than are read": func(w *world, ref string) {
			for i := range byte(3) {
				w.attach(ref, "", bundleType, w.blob(ref, slices.Repeat([]byte{i}, 3<<20), bundleType))
			}
		},
		"more bytes under a tag than are read": func(w *world, ref string) {
			var layers []v1.Descriptor
			for i := range byte(3) {
				layers = append(layers, w.blob(ref, slices.Repeat([]byte{i}, 3<<20), "application/vnd.dsse.envelope.v1+json"))
			}
			w.attach(ref, w.tag(ref, ".att"), "", layers...)
		},
		"more that is of no type than is read": func(w *world, ref string) {
			for i := range 300 {
				w.attach(ref, "", "application/vnd.oci.empty.v1+json", describe(fmt.Append(nil, i), "text/plain"))
			}
		},
		"more repositories of signers than are read": func(w *world, _ string) {
			for i := range 5 {
				s := w.signers[0]
				s.Name, s.Spec.Repository = fmt.Sprint("s", i), strings.TrimPrefix(w.server.URL, "http://")+fmt.Sprint("/s", i)
				w.signers = append(w.signers, s)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			push(w, ref)
			evaluator, req := w.evaluator(), gate.Request{Application: app(ref, "count_packets", onEth0())}
			v, err := evaluator.Evaluate(t.Context(), req)
			if !errors.Is(err, gate.ErrTruncated) || v.Allowed() {
				t.Errorf("got %v and error %v, want that it could not be determined", rules(v), err)
			}
			// What is denied whatever the rest is, is denied.
			evaluator.SetPolicies(w.policy(rego("deny contains \"counts\" if input.bytecode.programs[_].name == \"count_packets\"")))
			req.Digest = w.resolve(ref).Digest
			if v, err := evaluator.Evaluate(t.Context(), req); err != nil || v.Allowed() || len(rules(v)) != 1 {
				t.Errorf("denied for %v, error %v, want what no signature changes", rules(v), err)
			}
		})
	}
}

// TestWhatIsNoBundleTakesNoPlace attaches a lot that no signature is in: an image without
// one is denied, and one with one is allowed.
func TestWhatIsNoBundleTakesNoPlace(t *testing.T) {
	for name, attach := range map[string]func(w *world, ref string, i int){
		"of another type": func(w *world, ref string, i int) {
			w.attach(ref, "", "application/spdx+json", describe(fmt.Append(nil, i), "application/spdx+json"))
		},
		"of no type, without a layer": func(w *world, ref string, i int) {
			w.attach(ref, "", "application/vnd.oci.empty.v1+json", describe(fmt.Append(nil, i), "text/plain"))
		},
		"a bundle that is too large": func(w *world, ref string, i int) {
			d := describe(fmt.Append(nil, i), bundleType)
			d.Size = 5 << 20
			w.attach(ref, "", bundleType, d)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			for i := range 80 {
				attach(w, ref, i)
			}
			if v := mustEvaluate(t, w.evaluator(), app(ref, "count_packets", onEth0())); v.Allowed() {
				t.Error("it is allowed without a signature")
			}
			w.bundle(ref, "team-a")
			clear(w.memory)
			if v := mustEvaluate(t, w.evaluator(), app(ref, "count_packets", onEth0())); !v.Allowed() {
				t.Errorf("denied for %v", rules(v))
			}
		})
	}
}

// unsignedUnloads unloads what nobody signed.
func unsignedUnloads() policies.Policy {
	p := wantsSomebody
	p.Spec.Running = v1alpha1.RunningUnload
	return p
}

// TestWhoMayPushUnloadsNothing has whoever may push, and not delete, do their worst to
// the signature of what runs, under a policy that unloads what nobody signed.
func TestWhoMayPushUnloadsNothing(t *testing.T) {
	for name, attack := range attacks {
		for _, signature := range []string{"bundle", "tag"} {
			for _, referrers := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, signed by a %s, referrers API %v", name, signature, referrers), func(t *testing.T) {
					w := newWorldOf(t, referrers)
					ref := w.signedBy(signature)
					evaluator := w.evaluator()
					runs := sealed(t, mustEvaluate(t, evaluator, app(ref, "count_packets", onEth0())), gate.Stamp{UID: "u", Serial: 7})
					evaluator.SetPolicies(w.policy(unsignedUnloads()))
					attack(w, ref)
					for range 3 {
						w.now = w.now.Add(11 * time.Minute)
						s := lifecycle.Observation{Live: &runs, Hidden: true}
						s.Running = evaluator.EvaluateRunning(t.Context(), s.Request, s.RunningToEvaluate())
						if move, why := s.Decide(nil, false); move != lifecycle.Keep || !s.Running.Allowed {
							t.Fatalf("Decide = %s (%s), allowed %v; want it kept, and allowed still", move, why, s.Running.Allowed)
						}
					}
				})
			}
		}
	}
}

// signedBy pushes an image that team-a signed by a bundle, or by cosign's tag.
func (w *world) signedBy(signature string) (ref string) {
	w.t.Helper()
	ref = w.push("xdp_count", "v1")
	if signature == "tag" {
		w.sign(ref, "team-a")
	} else {
		w.bundle(ref, "team-a")
	}
	return ref
}

// attacks are what a person does to the signature of an image who may push beside it, and not delete.
var attacks = map[string]func(w *world, ref string){
	"many junk bundles": func(w *world, ref string) { w.junk(ref, 100) },
	"another manifest under the tag": func(w *world, ref string) {
		w.attach(ref, w.tag(ref, ".sig"), "", w.signatures(ref, 1)...)
	},
	"many signatures under the tag": func(w *world, ref string) {
		w.attach(ref, w.tag(ref, ".sig"), "", w.signatures(ref, 100)...)
	},
	"the same payload under the tag, with other signatures": func(w *world, ref string) {
		found, err := collect.All(w.t.Context(), w.client, w.resolve(ref))
		if err != nil || len(found.Artifacts) != 1 {
			w.t.Fatalf("found %+v, %v", found, err)
		}
		layers := w.signatures(ref, 300)
		for i := range layers {
			layers[i].Digest, layers[i].Size = describe(found.Artifacts[0].Content, "").Digest, int64(len(found.Artifacts[0].Content))
		}
		w.attach(ref, w.tag(ref, ".sig"), "", layers...)
	},
	"a manifest under the tag that is longer than is read": func(w *world, ref string) {
		layers := w.signatures(ref, 1)
		layers[0].Annotations["padding"] = strings.Repeat("x", 5<<20)
		w.attach(ref, w.tag(ref, ".sig"), "", layers...)
	},
	"an empty list of referrers, and nothing under the tag": func(w *world, ref string) {
		w.index(ref, w.tag(ref, ""))
		w.attach(ref, w.tag(ref, ".sig"), "")
	},
}

// index puts an empty index under a tag, as whoever may push can where the registry has no
// referrers API.
func (w *world) index(ref, tag string) {
	w.t.Helper()
	r := w.resolve(ref)
	raw := marshal(w.t, v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{}})
	to, err := w.client.Attachments(r)
	if err == nil {
		err = to.PutManifest(w.t.Context(), describe(raw, types.OCIImageIndex), raw, tag)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestASignatureThatIsDeletedIsGone: a registry that has the manifest no more takes the
// signature away, and a restarted Skep does not bring it back.
func TestASignatureThatIsDeletedIsGone(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.bundle(ref, "team-a")
	evaluator, a := w.evaluator(), app(ref, "count_packets", onEth0())
	if !mustEvaluate(t, evaluator, a).Allowed() {
		t.Fatal("denied at first")
	}
	w.deleteSignature(ref)
	w.now = w.now.Add(11 * time.Minute)
	if v := mustEvaluate(t, evaluator, a); v.Allowed() {
		t.Error("what was deleted still counts")
	}
}

// deleteSignature deletes the manifest of the one signature of an image.
func (w *world) deleteSignature(ref string) {
	w.t.Helper()
	found, err := collect.All(w.t.Context(), w.client, w.resolve(ref))
	if err != nil || len(found.Artifacts) != 1 {
		w.t.Fatalf("found %+v, %v", found, err)
	}
	w.deleteManifest(ref, found.Artifacts[0].Manifest)
}

func (w *world) deleteManifest(ref, digest string) {
	w.t.Helper()
	at := w.server.URL + "/v2/" + w.resolve(ref).Repository + "/manifests/" + digest
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodDelete, at, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode >= 300 {
		w.t.Fatalf("delete the signature: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
}

// TestATruncatedListIsAskedForAgain has the junk removed: the answer ends the wait, half a
// minute later.
func TestATruncatedListIsAskedForAgain(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.junk(ref, 65)
	evaluator, a := w.evaluator(), app(ref, "count_packets", onEth0())
	if _, err := evaluator.Evaluate(t.Context(), gate.Request{Application: a}); !errors.Is(err, gate.ErrTruncated) || errors.Is(err, image.ErrNotAsked) {
		t.Fatalf("got error %v", err)
	}
	w.sign(ref, "team-a")
	w.now = w.now.Add(31 * time.Second)
	if v := mustEvaluate(t, evaluator, a); !v.Allowed() {
		t.Errorf("denied for %v", rules(v))
	}
}
