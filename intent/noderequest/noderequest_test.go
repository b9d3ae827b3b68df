package noderequest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

var now = time.UnixMilli(1_800_000_000_000)

func request() mapread.Request {
	return mapread.Request{Header: noderequest.NewHeader("node-1", "ann", now), UID: "9f1c", Operation: mapread.Get, Map: "counts", Key: "7",
		Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "counter"}}
}

// keys are a sealer, and who trusts it.
func keys(t testing.TB) (*intent.Sealer, *intent.Trust) {
	t.Helper()
	key, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := intent.ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	if err != nil {
		t.Fatal(err)
	}
	return sealer, trust
}

func TestARequestIsOpenedOnItsNodeAndInItsTimeOnly(t *testing.T) {
	sealer, trust := keys(t)
	stranger, _ := keys(t)
	sent := request()
	sealed, err := noderequest.Seal(sealer, sent)
	if err != nil {
		t.Fatal(err)
	}
	got, err := noderequest.Open[mapread.Request](trust, sealed, "node-1", now)
	if diff := cmp.Diff(sent, got); diff != "" || err != nil {
		t.Fatal(err, diff)
	}
	forged, err := noderequest.Seal(stranger, request())
	if err != nil {
		t.Fatal(err)
	}
	asView, err := noderequest.Seal(sealer, viewread.Request{Header: sent.Header})
	if err != nil {
		t.Fatal(err)
	}
	asIntent, err := sealer.Sign(intent.EvidenceType, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	wrong := func(body string) intent.Envelope {
		e, err := sealer.Sign(mapread.PayloadType, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	for name, c := range map[string]struct {
		envelope intent.Envelope
		node     string
		at       time.Time
		want     error
		text     string
	}{
		"another node":           {sealed, "node-2", now, nil, `it is for node "node-1", and this is node-2`},
		"too late":               {sealed, "node-1", now.Add(3 * time.Minute), nil, "set the clocks"},
		"too early":              {sealed, "node-1", now.Add(-3 * time.Minute), nil, "set the clocks"},
		"another key":            {forged, "node-1", now, intent.ErrSeal, ""},
		"of another type":        {asIntent, "node-1", now, intent.ErrSeal, ""},
		"of another kind":        {asView, "node-1", now, intent.ErrSeal, ""},
		"cut off":                {sealed[:len(sealed)/2], "node-1", now, intent.ErrSeal, ""},
		"too long":               {append(sealed, make([]byte, noderequest.MaxRequest)...), "node-1", now, intent.ErrSeal, ""},
		"a field it has not":     {wrong(`{"sudo":true}`), "node-1", now, intent.ErrFormat, ""},
		"two documents":          {wrong(`{}{}`), "node-1", now, intent.ErrFormat, ""},
		"nothing that is needed": {wrong(`{}`), "node-1", now, intent.ErrFormat, ""},
	} {
		_, err := noderequest.Open[mapread.Request](trust, c.envelope, c.node, c.at)
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for envelope, want := range map[string]string{string(sealed): mapread.PayloadType, string(asView): viewread.PayloadType, "{": "", "": ""} {
		if got := noderequest.TypeOf(intent.Envelope(envelope)); got != want {
			t.Errorf("%.40s has type %q, not %q", envelope, got, want)
		}
	}
	if _, err := trust.Open(sealed); !errors.Is(err, intent.ErrSeal) {
		t.Errorf("a request is opened as an intent: %v", err)
	}
}

func TestNoDishonestRequestIsSealed(t *testing.T) {
	sealer, _ := keys(t)
	for name, change := range map[string]func(*mapread.Request){
		"an id that is a path":        func(r *mapread.Request) { r.ID = "../" + r.ID[3:] },
		"no user":                     func(r *mapread.Request) { r.User = "" },
		"no node":                     func(r *mapread.Request) { r.Node = "" },
		"no uid":                      func(r *mapread.Request) { r.UID = "" },
		"an operation that writes":    func(r *mapread.Request) { r.Operation = "put" },
		"a list of one map":           func(r *mapread.Request) { r.Operation = mapread.List },
		"no map":                      func(r *mapread.Request) { r.Map = "" },
		"a key without end":           func(r *mapread.Request) { r.Key = strings.Repeat("7", 1<<20) },
		"a name of a map without end": func(r *mapread.Request) { r.Map = strings.Repeat("m", 1<<10) },
	} {
		r := request()
		change(&r)
		if _, err := noderequest.Seal(sealer, r); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

func TestNoDishonestScopeIsSealed(t *testing.T) {
	sealer, _ := keys(t)
	for name, scope := range map[string]view.Scope{
		"of a kind that is none":               {Kind: "Secret"},
		"of a namespace without a kind":        {Namespace: "team-a"},
		"of a namespace of cluster's":          {Kind: v1alpha1.KindClusterBpfApplication, Namespace: "team-a"},
		"of a name without a kind":             {Name: "app"},
		"of a name without end":                {Kind: v1alpha1.KindClusterBpfApplication, Name: strings.Repeat("n", 1<<10)},
		"of a namespace whose name has no end": {Kind: v1alpha1.KindBpfApplication, Namespace: strings.Repeat("n", 1<<10)},
	} {
		if _, err := noderequest.Seal(sealer, viewread.Request{Header: noderequest.NewHeader("node-1", "ann", now), Scope: scope}); err == nil {
			t.Errorf("%s: sealed", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	sealer, trust := keys(f)
	sent := request()
	sealed, err := noderequest.Seal(sealer, sent)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(sealed))
	f.Add([]byte(`{"payloadType":"application/vnd.skep.map-read+json","payload":"e30=","signatures":[]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, envelope []byte) {
		got, err := noderequest.Open[mapread.Request](trust, envelope, "node-1", now)
		if diff := cmp.Diff(sent, got); err == nil && diff != "" {
			t.Error("opened what nobody sealed", diff)
		}
		if err != nil && got.ID != "" {
			t.Error("an error came with a request")
		}
	})
}
