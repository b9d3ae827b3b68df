package intent_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// key makes a key that depends on the seed alone.
func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func sealer(t testing.TB, seed byte) *intent.Sealer {
	t.Helper()
	s, err := intent.NewSealer(key(seed))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func trust(t testing.TB, seeds ...byte) *intent.Trust {
	t.Helper()
	var keys []ed25519.PublicKey
	for _, s := range seeds {
		keys = append(keys, key(s).Public().(ed25519.PublicKey))
	}
	tr, err := intent.NewTrust(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func payload() intent.Payload {
	priority := int32(50)
	return intent.Payload{
		Application:  v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "counter"},
		UID:          "9f1c",
		Serial:       7,
		Image:        "registry.example.com/bpf/counter:v1",
		ImageDigest:  "sha256:" + strings.Repeat("a", 64),
		ObjectDigest: "sha256:" + strings.Repeat("b", 64),
		Variables:    map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte("10")}},
		Programs: []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{
			Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}, Priority: &priority, ProceedOn: []string{"Pass"},
		}}}},
		Signers: []string{"team-a"},
	}
}

func seal(t testing.TB, s *intent.Sealer, p intent.Payload) intent.Envelope {
	t.Helper()
	env, err := s.Seal(p)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestOpenReturnsWhatWasSealed(t *testing.T) {
	want := payload()
	opened, err := trust(t, 1).Open(seal(t, sealer(t, 1), want))
	if err != nil {
		t.Fatal(err)
	}
	want.Format = intent.FormatVersion
	if diff := cmp.Diff(want, opened.Payload()); diff != "" {
		t.Errorf("payload (-sealed +opened):\n%s", diff)
	}
}

// edit changes one field of the envelope or of the payload within it.
func edit(t *testing.T, env intent.Envelope, change func(envelope, payload map[string]any)) intent.Envelope {
	t.Helper()
	var outer, inner map[string]any
	if err := json.Unmarshal(env, &outer); err != nil {
		t.Fatal(err)
	}
	body, err := base64.StdEncoding.DecodeString(outer["payload"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &inner); err != nil {
		t.Fatal(err)
	}
	before, _ := json.Marshal(inner)
	change(outer, inner)
	if after, _ := json.Marshal(inner); !bytes.Equal(before, after) {
		outer["payload"] = base64.StdEncoding.EncodeToString(after)
	}
	out, err := json.Marshal(outer)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestOpenRefuses(t *testing.T) {
	good := seal(t, sealer(t, 1), payload())
	for name, env := range map[string]intent.Envelope{
		"a seal of a key nobody trusts": seal(t, sealer(t, 2), payload()),
		"a payload changed after it was sealed": edit(t, good, func(_, p map[string]any) {
			p["imageDigest"] = "sha256:" + strings.Repeat("c", 64)
		}),
		"a serial raised after it was sealed": edit(t, good, func(_, p map[string]any) { p["serial"] = 1e6 }),
		"an envelope without signatures":      edit(t, good, func(e, _ map[string]any) { e["signatures"] = []any{} }),
		"another payload type": edit(t, good, func(e, _ map[string]any) {
			e["payloadType"] = "application/vnd.in-toto+json"
		}),
		"bytes that are no envelope":                       []byte("sealed, I promise"),
		"an empty envelope":                                {},
		"half an envelope":                                 good[:len(good)/2],
		"an envelope larger than the bound":                append(append([]byte(nil), good...), bytes.Repeat([]byte(" "), intent.MaxEnvelopeBytes)...),
		"a signature over the payload without its type":    resign(t, good),
		"a payload that is not base64":                     edit(t, good, func(e, _ map[string]any) { e["payload"] = "%%%" }),
		"another key's id over a signature of its content": edit(t, good, func(e, _ map[string]any) { e["signatures"].([]any)[0].(map[string]any)["sig"] = "AAAA" }),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := trust(t, 1).Open(env); !errors.Is(err, intent.ErrSeal) {
				t.Errorf("Open = %v, want ErrSeal", err)
			}
		})
	}
}

// resign signs the bare payload instead of the DSSE pre-authentication
// encoding.
func resign(t *testing.T, env intent.Envelope) intent.Envelope {
	return edit(t, env, func(e, _ map[string]any) {
		body, err := base64.StdEncoding.DecodeString(e["payload"].(string))
		if err != nil {
			t.Fatal(err)
		}
		e["signatures"].([]any)[0].(map[string]any)["sig"] = base64.StdEncoding.EncodeToString(ed25519.Sign(key(1), body))
	})
}

func TestOpenKeepsWithinItsFormat(t *testing.T) {
	body := func(s string) intent.Envelope { return sealRaw(t, []byte(s)) }
	for name, env := range map[string]intent.Envelope{
		"a later format":           body(`{"format":2,"serial":1}`),
		"no format":                body(`{"serial":1}`),
		"a field it does not know": body(`{"format":1,"application":{"kind":"K","name":"n"},"uid":"u","serial":1,"tombstone":true,"sudo":true}`),
		"no uid":                   body(`{"format":1,"application":{"kind":"K","name":"n"},"serial":1,"tombstone":true}`),
		"no programs":              body(`{"format":1,"application":{"kind":"K","name":"n"},"uid":"u","serial":1,"objectDigest":"d"}`),
		"two documents":            body(`{"format":1,"application":{"kind":"K","name":"n"},"uid":"u","serial":1,"tombstone":true}{}`),
		"not JSON":                 body(`format: 1`),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := trust(t, 1).Open(env); !errors.Is(err, intent.ErrFormat) {
				t.Errorf("Open = %v, want ErrFormat", err)
			}
		})
	}
}

// sealRaw seals bytes that no Sealer would.
func sealRaw(t *testing.T, body []byte) intent.Envelope {
	t.Helper()
	pae := "DSSEv1 " + itoa(len(intent.PayloadType)) + " " + intent.PayloadType + " " + itoa(len(body)) + " " + string(body)
	env, err := json.Marshal(map[string]any{
		"payloadType": intent.PayloadType,
		"payload":     base64.StdEncoding.EncodeToString(body),
		"signatures":  []any{map[string]any{"sig": base64.StdEncoding.EncodeToString(ed25519.Sign(key(1), []byte(pae)))}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

func TestRotationTrustsOldAndNewKey(t *testing.T) {
	both := trust(t, 1, 2)
	for _, seed := range []byte{1, 2} {
		if _, err := both.Open(seal(t, sealer(t, seed), payload())); err != nil {
			t.Errorf("key %d: %v", seed, err)
		}
	}
}

func TestSealRefusesWhatOpenWould(t *testing.T) {
	for name, change := range map[string]func(*intent.Payload){
		"no application":   func(p *intent.Payload) { p.Application = v1alpha1.Identity{} },
		"no uid":           func(p *intent.Payload) { p.UID = "" },
		"no serial":        func(p *intent.Payload) { p.Serial = 0 },
		"created before":   func(p *intent.Payload) { p.Created = -1 },
		"no programs":      func(p *intent.Payload) { p.Programs = nil },
		"no object digest": func(p *intent.Payload) { p.ObjectDigest = "" },
		"a selector that is none": func(p *intent.Payload) {
			p.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{strings.Repeat("a", 254) + "/x": "y"}}
		},
	} {
		p := payload()
		change(&p)
		if _, err := sealer(t, 1).Seal(p); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

func TestRevisionNamesWhatIsLoaded(t *testing.T) {
	open := func(change func(*intent.Payload)) string {
		p := payload()
		change(&p)
		o, err := trust(t, 1).Open(seal(t, sealer(t, 1), p))
		if err != nil {
			t.Fatal(err)
		}
		return o.Revision()
	}
	base := open(func(*intent.Payload) {})
	for name, c := range map[string]struct {
		change func(*intent.Payload)
		reload bool
	}{
		"a new serial":                {func(p *intent.Payload) { p.Serial++ }, false},
		"another priority":            {func(p *intent.Payload) { n := int32(9); p.Programs[0].Attach[0].Priority = &n }, false},
		"another interface":           {func(p *intent.Payload) { p.Programs[0].Attach[0].Interfaces.Names = []string{"eth1"} }, false},
		"another signer":              {func(p *intent.Payload) { p.Signers = []string{"team-b"} }, false},
		"another image, same object":  {func(p *intent.Payload) { p.ImageDigest = "sha256:" + strings.Repeat("d", 64) }, false},
		"another object":              {func(p *intent.Payload) { p.ObjectDigest = "sha256:" + strings.Repeat("d", 64) }, true},
		"another value of a variable": {func(p *intent.Payload) { p.Variables["sampling"] = apiextensionsv1.JSON{Raw: []byte("11")} }, true},
		"another hook":                {func(p *intent.Payload) { p.Programs[0].Attach[0].Hook = "tcx/ingress" }, true},
		"another size of a map":       {func(p *intent.Payload) { n := uint32(9); p.Maps = map[string]v1alpha1.Map{"m": {MaxEntries: &n}} }, true},
		"a reader of a map":           {func(p *intent.Payload) { p.Maps = readBy("web") }, false},
	} {
		if got := open(c.change) != base; got != c.reload {
			t.Errorf("%s: revision changed = %v, want %v", name, got, c.reload)
		}
	}
}

func FuzzOpen(f *testing.F) {
	tr := trust(f, 1)
	good := seal(f, sealer(f, 1), payload())
	f.Add([]byte(good))
	f.Add([]byte(seal(f, sealer(f, 2), payload())))
	f.Add([]byte(`{"payloadType":"application/vnd.skep.intent+json","payload":"","signatures":[]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, env []byte) {
		opened, err := tr.Open(env)
		if err != nil {
			if opened.Payload().UID != "" {
				t.Error("an error came with a payload")
			}
			return
		}
		if got := opened.Payload().UID; got != payload().UID {
			t.Errorf("opened something nobody sealed: %+v", opened.Payload())
		}
	})
}
