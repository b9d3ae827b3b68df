package gate_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// world is a real registry with a few images, and what a gate needs.
type world struct {
	t        testing.TB
	server   *httptest.Server
	requests atomic.Int64
	down     atomic.Bool
	// lost is a blob that the registry does not hand out.
	lost atomic.Value
	// refuses is the status that a path is answered with; 0 means as usual.
	refuses  atomic.Pointer[func(path string) int]
	underWay atomic.Int64
	client   *registry.Client
	now      time.Time
	keys     map[string]*sign.PrivateKey
	raw      map[string]*ecdsa.PrivateKey
	signers  []v1alpha1.BpfSigner
	memory   memory
	observer gate.Observer
}

// memory is a gate.Memory in RAM, to be handed to a second Judge as a disk
// would be.
type memory map[string][]byte

func (m memory) Load(name string) ([]byte, bool) { data, ok := m[name]; return data, ok }

func (m memory) Store(name string, data []byte) error { m[name] = data; return nil }

// RoundTrip ends no request that is given up once it is under way, so that comeUp
// can wait for it.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.underWay.Add(1)
	defer w.underWay.Add(-1)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return http.DefaultTransport.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
}

// comeUp has the registry answer again, and nothing counted that was asked while it
// was down.
func (w *world) comeUp() {
	w.arrived()
	w.down.Store(false)
}

// arrived waits until no request is on its way: where several are sent at once, the first
// that fails ends the others.
func (w *world) arrived() {
	for w.underWay.Load() > 0 {
		runtime.Gosched()
	}
}

func newWorld(t testing.TB) *world { return newWorldOf(t, true) }

// newWorldOf is newWorld with or without the referrers API.
func newWorldOf(t testing.TB, referrers bool) *world {
	t.Helper()
	w := &world{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), keys: map[string]*sign.PrivateKey{}, raw: map[string]*ecdsa.PrivateKey{}, memory: memory{}}
	real := containerregistry.New(containerregistry.WithReferrersSupport(referrers), containerregistry.Logger(log.New(io.Discard, "", 0)))
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.requests.Add(1)
		lost, _ := w.lost.Load().(string)
		if w.down.Load() || lost != "" && strings.HasSuffix(r.URL.Path, lost) {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if refuses := w.refuses.Load(); refuses != nil {
			if status := (*refuses)(r.URL.Path); status != 0 {
				rw.WriteHeader(status)
				return
			}
		}
		real.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.server.Close)
	w.renew()
	for _, name := range []string{"team-a", "team-b"} {
		var key *sign.PrivateKey
		w.raw[name], key = plainKey(t)
		public, err := key.Public()
		if err != nil {
			t.Fatal(err)
		}
		w.keys[name] = key
		s := v1alpha1.BpfSigner{ObjectMeta: metav1.ObjectMeta{Name: name}}
		s.Spec.Key = &v1alpha1.KeySigner{PublicKey: string(public)}
		w.signers = append(w.signers, s)
	}
	return w
}

// renew makes a client that asked and cached nothing yet.
func (w *world) renew() {
	w.t.Helper()
	w.client = supply.Client(w.t, registry.Options{CacheDir: w.t.TempDir(), Transport: w})
}

// plainKey makes a key without a password: cosign's own format takes a second
// of scrypt.
func plainKey(t testing.TB) (*ecdsa.PrivateKey, *sign.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := sign.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return key, private
}

// push packs a test program and returns its reference.
func (w *world) push(object, tag string) string {
	w.t.Helper()
	return w.pushObject(object, tag, programs.Object(object))
}

// pushObject packs an object and returns its reference.
func (w *world) pushObject(object, tag string, body []byte) string {
	w.t.Helper()
	facts, err := bytecode.Inspect(strings.NewReader(string(body)), bytecode.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	built, err := image.Build(body, image.BuildOptions{Labels: bytecode.Labels(facts)})
	if err != nil {
		w.t.Fatal(err)
	}
	ref := strings.TrimPrefix(w.server.URL, "http://") + "/bpf/" + strings.ReplaceAll(object, "_", "-") + ":" + tag
	if _, err := w.client.Push(w.t.Context(), ref, built); err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// sign signs what a reference stands for, under cosign's tag.
func (w *world) sign(ref, signer string) { w.signAs(ref, signer, sign.Options{}) }

// bundle signs what a reference stands for, in a bundle.
func (w *world) bundle(ref, signer string) { w.signAs(ref, signer, sign.Options{Bundle: true}) }

func (w *world) signAs(ref, signer string, options sign.Options) {
	w.t.Helper()
	if err := sign.Image(w.t.Context(), w.client, w.resolve(ref), w.keys[signer], options); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) resolve(ref string) image.Resolved {
	w.t.Helper()
	r, err := w.client.Resolve(w.t.Context(), ref)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// signed is push and sign by team-a.
func (w *world) signed(object string) string {
	ref := w.push(object, "v1")
	w.sign(ref, "team-a")
	return ref
}

func (w *world) trust(signers ...v1alpha1.BpfSigner) *signing.Trust {
	w.t.Helper()
	tr, err := signing.NewTrust(signers)
	if err != nil {
		w.t.Fatal(err)
	}
	return tr
}

func (w *world) policy(list ...policies.Policy) *policies.Set {
	w.t.Helper()
	set, err := engine.Compile(w.t.Context(), list, policies.Options{Timeout: time.Minute})
	if err != nil {
		w.t.Fatal(err)
	}
	return set
}

func (w *world) evaluator() *gate.Evaluator {
	w.t.Helper()
	j, err := gate.New(gate.Options{
		Images:   w.client,
		Trust:    w.trust(w.signers...),
		Policies: w.policy(),
		Memory:   w.memory,
		Observer: w.observer,
		Now:      func() time.Time { return w.now },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return j
}

// app is a cluster-wide application with one program on one hook.
func app(ref, program string, attach ...v1alpha1.Attachment) *v1alpha1.ClusterBpfApplication {
	a := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "app", Generation: 1}}
	a.Spec.Bytecode.Image = ref
	a.Spec.Programs = []v1alpha1.Program{{Name: program, Attach: attach}}
	return a
}

func onEth0() v1alpha1.Attachment {
	return v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}
}

// inPods is the same in the Pods of its namespace.
func inPods() v1alpha1.Attachment {
	a := onEth0()
	a.Pods = &v1alpha1.Pods{}
	return a
}

// mustJudge fails the test where it could not be determined.
func mustEvaluate(t *testing.T, j *gate.Evaluator, a v1alpha1.Application) gate.Verdict {
	t.Helper()
	v, err := j.Evaluate(t.Context(), gate.Request{Application: a})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// rules are the rules that denied, in order.
func rules(v gate.Verdict) []string {
	var got []string
	for _, r := range v.Decision().Denied {
		got = append(got, r.Rule)
	}
	return got
}

// sealed is what an agent opens of a verdict.
func sealed(t *testing.T, v gate.Verdict, stamp gate.Stamp) intent.Payload {
	t.Helper()
	sealer, err := intent.NewSealer(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	env, err := v.Seal(sealer, stamp)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	if err != nil {
		t.Fatal(err)
	}
	opened, err := trust.Open(env)
	if err != nil {
		t.Fatal(err)
	}
	return opened.WithEvidence()
}

func TestASignedProgramIsAllowedAndSealed(t *testing.T) {
	w := newWorld(t)
	v := mustEvaluate(t, w.evaluator(), app(w.signed("xdp_count"), "count_packets", onEth0()))
	if !v.Allowed() {
		t.Fatalf("denied: %v", v.Decision().Denied)
	}
	p := sealed(t, v, gate.Stamp{UID: "u", Serial: 7, Created: 5, Source: "app.cue"})
	if p.CreatedAt() != 5 {
		t.Errorf("it was created at %d", p.CreatedAt())
	}
	if p.ImageDigest != v.Image().Digest || p.ObjectDigest == "" || p.Serial != 7 || p.Source != "app.cue" {
		t.Errorf("sealed %+v", p)
	}
	priority := v1alpha1.DefaultPriority
	want := onEth0()
	want.Priority, want.ProceedOn = &priority, []string{"Pass"}
	if diff := cmp.Diff([]v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{want}}}, p.Programs); diff != "" {
		t.Errorf("programs (-want +sealed):\n%s", diff)
	}
	if !v.Same(p) {
		t.Error("the verdict does not recognise its own intent")
	}
	p.Created = 0
	if !v.Same(p) || p.CreatedAt() != 7 {
		t.Error("an intent from before there were ages is sealed anew for that alone")
	}
	if again := mustEvaluate(t, w.evaluator(), app(w.server.URL[7:]+"/bpf/xdp-count:v1", "count_packets")); again.Same(p) {
		t.Error("a refused verdict is the same as an intent")
	}
}

func TestAnIntentSaysWhatItsProgramsDo(t *testing.T) {
	w := newWorld(t)
	v := mustEvaluate(t, w.evaluator(), app(w.signed("tp_btf_core_hidden"), "tp_btf_core_hidden"))
	p := sealed(t, v, gate.Stamp{UID: "u", Serial: 7})
	if diff := cmp.Diff(&intent.Facts{
		Calls: []string{"bpf_get_current_pid_tgid", "bpf_map_lookup_elem", "fact liftsRights", "fact ownCalls", "fact readsPacketSocket", "fact writesRegisters"},
		Reads: map[string][]string{"tp_btf_core_hidden": {"calls 0 1", "a load"}},
	}, p.Facts); diff != "" {
		t.Errorf("facts (-want +sealed):\n%s", diff)
	}
	if p.Facts = nil; v.Same(p) || !v.SameVersion(p) {
		t.Error("an intent without facts is to be sealed anew, as the same version")
	}
}

// TestWhatAnAdminGrantsIsSealed: what is granted is no part of a version. What is taken back is sealed anew, and nothing is loaded for it.
func TestWhatAnAdminGrantsIsSealed(t *testing.T) {
	w := newWorld(t)
	j, a := w.evaluator(), namespaced(app(w.signed("xdp_count"), "count_packets", inPods()))
	grants := func(programs int) {
		j.SetPolicies(w.policy(policies.Policy{Name: "baseline", Spec: v1alpha1.BpfPolicySpec{Profile: "baseline", Parameters: map[string]apiextensionsv1.JSON{
			"sharedTargets": {Raw: fmt.Appendf(nil, `{"shop": {"programs": %d}}`, programs)}}}}))
	}
	grants(8)
	p := sealed(t, mustEvaluate(t, j, a), gate.Stamp{UID: "u", Serial: 7})
	if diff := cmp.Diff(&intent.Grant{TargetPrograms: 8}, p.Grant); diff != "" {
		t.Errorf("granted (-want +sealed):\n%s", diff)
	}
	if again := mustEvaluate(t, j, a); !again.Same(p) {
		t.Error("it is sealed anew for nothing")
	}
	for what, change := range map[string]func(){"a smaller grant": func() { grants(6) }, "none": func() { j.SetPolicies(w.policy()) }} {
		change()
		now := mustEvaluate(t, j, a)
		if now.Same(p) || !now.SameVersion(p) {
			t.Errorf("%s: the former grant stays sealed, or the version is another", what)
		}
		o := lifecycle.Observation{Request: gate.Request{Application: a}, Verdict: now, Live: &p}
		if action, why := o.Decide(signing.Revocations{}, false); action != lifecycle.Seal {
			t.Errorf("%s: the action is %s: %s", what, action, why)
		}
	}
}

func TestARefusedVerdictCannotBeSealed(t *testing.T) {
	w := newWorld(t)
	sealer, err := intent.NewSealer(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	unsigned := mustEvaluate(t, w.evaluator(), app(w.push("xdp_count", "v1"), "count_packets", onEth0()))
	for name, v := range map[string]gate.Verdict{"an unsigned image": unsigned, "the zero verdict": {}} {
		if env, err := v.Seal(sealer, gate.Stamp{UID: "u", Serial: 1}); err == nil {
			t.Errorf("%s was sealed: %s", name, env)
		}
	}
}

func TestWhatIsRefusedSaysWhy(t *testing.T) {
	w := newWorld(t)
	count := w.signed("xdp_count")
	number := func(s string) map[string]apiextensionsv1.JSON {
		return map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(s)}}
	}
	plain, onIngress := w.signed("plain_sections"), v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: onEth0().Interfaces}
	broken := onEth0()
	broken.Interfaces.Names = []string{"eth["}
	for name, c := range map[string]struct {
		app  v1alpha1.Application
		rule string
		path string
		says string
	}{
		"an image nobody signed": {
			app(w.push("xdp_pass", "v1"), "xdp_pass", onEth0()), "baseline/signed", "spec.bytecode.image", "no known signer",
		},
		"a function the object lacks": {app(count, "nope", onEth0()), "inspect/program", "spec.programs[0].name", "count_packets"},
		"a hook that does not exist": {
			app(count, "count_packets", v1alpha1.Attachment{Hook: "xpd"}), "shape/hook", "spec.programs[0].attach[0].hook", `"xpd" is not known`,
		},
		"a hook the agent does not attach": {
			app(count, "count_packets", v1alpha1.Attachment{Hook: "freplace", Functions: &v1alpha1.Functions{Names: []string{"f"}}}), "shape/hook",
			"spec.programs[0].attach[0].hook", "does not attach it: it replaces a function of another program",
		},
		"a socket filter at a socket": {
			app(w.signed("xdp_contents"), "on_socket"), "shape/hook", "spec.programs[0].attach[0].hook", "use tcx/ingress and tcx/egress, where it sees each packet",
		},
		"a hook for another program type": {
			app(count, "count_packets", v1alpha1.Attachment{Hook: "tcx/ingress", Interfaces: onEth0().Interfaces}), "inspect/hook", "spec.programs[0].attach[0].hook",
			"type XDP",
		},
		"a program for a device map at an interface": {
			app(w.signed("xdp_map_entries"), "at_device", onEth0()), "inspect/hook", "spec.programs[0]", "entries of a devmap",
		},
		"a program for a CPU map by its section": {
			app(w.signed("xdp_map_entries"), "at_cpu", v1alpha1.Attachment{Interfaces: onEth0().Interfaces}), "inspect/hook", "spec.programs[0]", "entries of a cpumap",
		},
		"a section that says of no hook, and a definition neither": {
			app(plain, "unspecified", v1alpha1.Attachment{Interfaces: onEth0().Interfaces}), "shape/hook", "spec.programs[0].attach[0].hook", "name the hook",
		},
		"a program of no type as two types": {app(plain, "unspecified", onEth0(), onIngress), "inspect/hook", "spec.programs[0].attach[1].hook", "takes SchedCLS"},
		"an action as a classifier":         {app(plain, "acts", onIngress), "inspect/hook", "spec.programs[0].attach[0].hook", "is of type SchedACT"},
		"no interface":                      {app(count, "count_packets"), "shape/fields", "spec.programs[0].attach[0].interfaces", "needs interfaces"},
		"an interface pattern that is none": {
			app(count, "count_packets", broken), "shape/fields", "spec.programs[0].attach[0].interfaces", `"eth["`},
		"proceedOn where the kernel has none": {
			app(count, "count_packets", v1alpha1.Attachment{Hook: "tcx/egress", Interfaces: onEth0().Interfaces, ProceedOn: []string{"Pass"}}),
			"shape/fields", "spec.programs[0].attach[0].proceedOn", "does not take proceedOn"},
		"a variable the object lacks": {with(app(count, "count_packets", onEth0()), func(s *v1alpha1.BpfApplicationSpec) {
			s.Variables = map[string]apiextensionsv1.JSON{"smapling": {Raw: []byte("1")}}
		}), "inspect/variable", "spec.variables.smapling", "sampling"},
		"no value for a variable": {with(app(count, "count_packets", onEth0()), func(s *v1alpha1.BpfApplicationSpec) {
			s.Variables = number("null")
		}), "inspect/variable", "spec.variables.sampling", "null"},
		"a value its variable cannot take": {with(app(count, "count_packets", onEth0()), func(s *v1alpha1.BpfApplicationSpec) {
			s.Variables = number("-1")
		}), "inspect/variable", "spec.variables.sampling", ""},
		"a map the object lacks": {with(app(count, "count_packets", onEth0()), func(s *v1alpha1.BpfApplicationSpec) {
			s.Maps = map[string]v1alpha1.Map{"count": {}}
		}), "inspect/map", "spec.maps.count", "counts"},
		"an image that is not there": {app(w.server.URL[7:]+"/bpf/none:v1", "p", onEth0()), "resolve/image", "spec.bytecode.image", "none"},
		"a reference that is none":   {app("not a reference", "p", onEth0()), "resolve/image", "spec.bytecode.image", "not a reference"},
		"two programs of one name": {with(app(count, "count_packets", onEth0()), func(s *v1alpha1.BpfApplicationSpec) {
			s.Programs = append(s.Programs, s.Programs[0])
		}), "shape/programs", "spec.programs[1].name", "twice"},
		"a helper that writes user memory": {
			app(w.signed("tp_write_user"), programOf(t, "tp_write_user")), "baseline/helpers", "spec.programs[0]", "bpf_probe_write_user",
		},
		"a hook beyond the namespace": {
			namespaced(app(w.signed("tracepoint_count"), programOf(t, "tracepoint_count"))), "shape/scope", "spec.programs[0].attach[0].pods",
			"reaches beyond a namespace without pods",
		},
		"network devices of the node, from a namespace": {
			namespaced(app(count, "count_packets", onEth0())), "baseline/node-interfaces", "spec.programs[0].attach[0].interfaces", "not granted to namespace shop",
		},
		"every pod of a node by a cgroup, from a " +
			"namespace": {namespaced(app(w.signed("cgroup_connect4"), programOf(t, "cgroup_connect4"), v1alpha1.Attachment{Hook: "cgroup/connect4", Cgroup: "/"})),
			"shape/scope", "spec.programs[0].attach[0].pods", "give pods"},
		"every pod of a node by a cgroup, from a namespace that leaves the hook to the section": {
			namespaced(app(w.signed("cgroup_connect4"), programOf(t, "cgroup_connect4"), v1alpha1.Attachment{Cgroup: "/"})),
			"shape/scope", "spec.programs[0].attach[0].pods", "use a ClusterBpfApplication"},
		"every process of a binary, from a namespace that leaves the hook to the section": {
			namespaced(app(w.signed("uprobe_count"), programOf(t, "uprobe_count"), v1alpha1.Attachment{Binary: &v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main"}})),
			"shape/scope", "spec.programs[0].attach[0].pods", "give pods"},
	} {
		t.Run(name, func(t *testing.T) {
			v := mustEvaluate(t, w.evaluator(), c.app)
			if v.Allowed() {
				t.Fatal("allowed")
			}
			if got, want := v.Invalid() != "", strings.HasPrefix(c.rule, "shape/"); got != want {
				t.Errorf("invalid: %v, want %v", got, want)
			}
			for _, r := range v.Decision().Denied {
				if r.Rule == c.rule && r.Path == c.path && strings.Contains(r.Message+r.Fix, c.says) && r.Fix != "" {
					return
				}
			}
			t.Errorf("denied for %v, want %s at %s saying %q with a fix", v.Decision().Denied, c.rule, c.path, c.says)
		})
	}
}

// TestAnImageThatDoesNotExistIsUnknown: nobody can have signed, or not signed, what is not there.
func TestAnImageThatDoesNotExistIsUnknown(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	gone := w.server.URL[7:] + "/bpf/gone@sha256:" + strings.Repeat("ab", 32)
	for name, c := range map[string]struct {
		ref, digest string
		want        string
	}{
		"a tag":               {w.server.URL[7:] + "/bpf/none:v1", "", lifecycle.ReasonImageNotFound},
		"a digest":            {gone, "", lifecycle.ReasonImageNotFound},
		"a digest of its tag": {ref, "sha256:" + strings.Repeat("ab", 32), lifecycle.ReasonImageNotFound},
		"it exists":           {ref, "", lifecycle.ReasonSigned},
	} {
		req := gate.Request{Application: app(c.ref, "xdp_count", onEth0()), Digest: c.digest}
		verdict, err := w.evaluator().Evaluate(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s := lifecycle.Observation{Request: req, Verdict: verdict}
		got := s.Verified("")
		if got.Reason != c.want || c.want == lifecycle.ReasonImageNotFound && (got.Status != metav1.ConditionUnknown || strings.Contains(got.Message, "signe")) {
			t.Errorf("%s: Verified=%s, reason %s: %s; want reason %s", name, got.Status, got.Reason, got.Message, c.want)
		}
		if allowed := s.Allowed(""); c.want == lifecycle.ReasonImageNotFound && allowed.Status != metav1.ConditionFalse {
			t.Errorf("%s: Allowed=%s: %s", name, allowed.Status, allowed.Message)
		}
	}
}

func TestARefusalNamesNoMoreThanAnybodyReads(t *testing.T) {
	w := newWorld(t)
	a := app(w.signed("xdp_count"), strings.Repeat("n", 1<<20), onEth0())
	for _, r := range mustEvaluate(t, w.evaluator(), a).Decision().Denied {
		if len(r.Message) > 2048 || len(r.Fix) > 2048 || len(r.Path) > 512 {
			t.Errorf("%s: %d bytes at %d, with a fix of %d", r.Rule, len(r.Message), len(r.Path), len(r.Fix))
		}
	}
}

func with(a *v1alpha1.ClusterBpfApplication, change func(*v1alpha1.BpfApplicationSpec)) *v1alpha1.ClusterBpfApplication {
	change(&a.Spec)
	return a
}

// namespaced is the same in a namespace.
func namespaced(a *v1alpha1.ClusterBpfApplication) *v1alpha1.BpfApplication {
	return &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: a.Name}, Spec: a.Spec}
}

// programOf is the name of an object's only program.
func programOf(t *testing.T, object string) string {
	t.Helper()
	facts, err := bytecode.Inspect(strings.NewReader(string(programs.Object(object))), bytecode.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return facts.Programs[0].Name
}

func TestTheSectionFillsInWhatTheDefinitionLeavesOut(t *testing.T) {
	w := newWorld(t)
	v := mustEvaluate(t, w.evaluator(), app(w.signed("tracepoint_count"), programOf(t, "tracepoint_count")))
	if !v.Allowed() {
		t.Fatalf("denied: %v", v.Decision().Denied)
	}
	input, err := w.evaluator().Input(t.Context(), gate.Request{Application: v.Application()})
	if err != nil {
		t.Fatal(err)
	}
	got := input.Application.Spec.Programs[0].Attach[0]
	if got.Hook != "tracepoint" || !strings.Contains(got.Tracepoint, "/") {
		t.Errorf("attachment %+v: want hook tracepoint and the section's category/name", got)
	}
	if v.Application().Body().Programs[0].Attach != nil {
		t.Error("the definition itself was changed")
	}
}

func TestASectionThatSaysNothingTakesTheHookOfTheDefinition(t *testing.T) {
	w := newWorld(t)
	plain := w.signed("plain_sections")
	for name, c := range map[string]struct{ program, hook string }{
		"a section that nobody knows":  {"unspecified", "xdp"},
		"the same for traffic control": {"unspecified", "tcx/ingress"},
		"a section of a type alone":    {"classifies", "tcx/egress"},
	} {
		t.Run(name, func(t *testing.T) {
			v := mustEvaluate(t, w.evaluator(), app(plain, c.program, v1alpha1.Attachment{Hook: c.hook, Interfaces: onEth0().Interfaces}))
			if !v.Allowed() {
				t.Errorf("denied: %v", v.Decision().Denied)
			}
		})
	}
}

func TestSizesThatTheObjectLeavesOpenAreTheDefinitions(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_open_maps")
	n := func(n uint32) *uint32 { return &n }
	whole := map[string]v1alpha1.Map{"no_entries": {MaxEntries: n(16)}, "no_sizes": {MaxEntries: n(16), ValueSize: n(1016)}, "no_values": {ValueSize: n(4)}}
	for name, c := range map[string]struct {
		change func(map[string]v1alpha1.Map)
		want   []string
	}{
		"all of them": {func(map[string]v1alpha1.Map) {}, nil},
		"none of them, which are told at once": {func(m map[string]v1alpha1.Map) {
			m["no_entries"], m["no_sizes"], m["no_values"] = v1alpha1.Map{}, v1alpha1.Map{}, v1alpha1.Map{}
		},
			[]string{"spec.maps.no_entries.maxEntries", "spec.maps.no_sizes.maxEntries", "spec.maps.no_sizes.valueSize", "spec.maps.no_values.valueSize"}},
		"none, of which no program needs two": {func(m map[string]v1alpha1.Map) { clear(m) }, []string{"spec.maps.no_entries.maxEntries"}},
		"half of a map's": {
			func(m map[string]v1alpha1.Map) { m["no_sizes"] = v1alpha1.Map{MaxEntries: n(1)} }, []string{"spec.maps.no_sizes.valueSize"},
		},
		"a size of values that is the object's": {
			func(m map[string]v1alpha1.Map) { m["no_entries"] = v1alpha1.Map{MaxEntries: n(1), ValueSize: n(4)} }, []string{"spec.maps.no_entries.valueSize"},
		},
		"the object's own size of values": {func(m map[string]v1alpha1.Map) { m["no_entries"] = v1alpha1.Map{MaxEntries: n(1), ValueSize: n(8)} }, nil},
		"values that take all memory":     {func(m map[string]v1alpha1.Map) { m["no_values"] = v1alpha1.Map{ValueSize: n(1 << 30)} }, []string{"spec.maps"}},
	} {
		t.Run(name, func(t *testing.T) {
			sizes := maps.Clone(whole)
			c.change(sizes)
			v := mustEvaluate(t, w.evaluator(), with(app(ref, "xdp_open_maps", onEth0()), func(s *v1alpha1.BpfApplicationSpec) { s.Maps = sizes }))
			var paths []string
			for _, r := range v.Decision().Denied {
				paths = append(paths, r.Path)
			}
			if diff := cmp.Diff(c.want, paths); diff != "" {
				t.Errorf("refused at (-want +got):\n%s\n%v", diff, v.Decision().Denied)
			}
		})
	}
}

func TestWhatIsKnownNeedsNoNetwork(t *testing.T) {
	w := newWorld(t)
	j, count := w.evaluator(), app(w.signed("xdp_count"), "count_packets", onEth0())
	first := mustEvaluate(t, j, count)
	pinned := gate.Request{Application: count, Digest: first.Image().Digest}
	before := w.requests.Load()
	ask := func(name string, j *gate.Evaluator, req gate.Request, want ...string) {
		t.Helper()
		v, err := j.Evaluate(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, rules(v)); diff != "" {
			t.Errorf("%s: rules (-want +got):\n%s", name, diff)
		}
		if n := w.requests.Load() - before; n != 0 {
			t.Errorf("%s: %d requests", name, n)
		}
	}
	ask("the same question", j, pinned)
	eth1 := onEth0()
	eth1.Interfaces.Names = []string{"eth1"}
	ask("the same digest on another interface", j, gate.Request{Application: app(count.Spec.Bytecode.Image, "count_packets", eth1), Digest: first.Image().Digest})

	j.SetPolicies(w.policy(policies.Policy{Name: "no", Spec: v1alpha1.BpfPolicySpec{Rego: "package skep.policy\n\ndeny contains \"not today\"\n"}}))
	ask("a changed policy", j, pinned, "no/deny")
	j.SetPolicies(w.policy())
	ask("the policy of before", j, pinned)

	revoked := w.signers[0]
	revoked.Spec.Revoked = true
	j.SetTrust(w.trust(revoked, w.signers[1]))
	ask("a revoked signer", j, pinned, "baseline/signed")
	j.SetTrust(w.trust(w.signers...))
	ask("the signer of before", j, pinned)

	ask("a new process with the memory of the old", w.evaluator(), pinned)
	w.memory[only(t, w.memory)] = []byte("{")
	if _, err := w.evaluator().Evaluate(t.Context(), pinned); err != nil {
		t.Errorf("a damaged memory: %v", err)
	}
	if w.requests.Load() == before {
		t.Error("a damaged memory was believed")
	}
}

func only(t *testing.T, m memory) string {
	t.Helper()
	for name := range m {
		return name
	}
	t.Fatal("nothing was remembered")
	return ""
}

func TestTheSameDigestElsewhereIsAnotherVerdict(t *testing.T) {
	w := newWorld(t)
	j, ref := w.evaluator(), w.signed("xdp_count")
	j.SetPolicies(w.policy(policies.Policy{Name: "eth0", Spec: v1alpha1.BpfPolicySpec{Rego: `package skep.policy

deny contains "only eth0" if input.application.spec.programs[_].attach[_].interfaces.names[_] != "eth0"
`}}))
	eth1 := onEth0()
	eth1.Interfaces.Names = []string{"eth1"}
	for range 2 {
		if v := mustEvaluate(t, j, app(ref, "count_packets", onEth0())); !v.Allowed() {
			t.Errorf("eth0: %v", v.Decision().Denied)
		}
		if v := mustEvaluate(t, j, app(ref, "count_packets", eth1)); v.Allowed() {
			t.Error("eth1 was allowed")
		}
	}
}

func TestAnOutageIsExcusedForABoundedTime(t *testing.T) {
	w := newWorld(t)
	j, count := w.evaluator(), app(w.signed("xdp_count"), "count_packets", onEth0())
	req := gate.Request{Application: count, Digest: mustEvaluate(t, j, count).Image().Digest}
	w.down.Store(true)
	for name, c := range map[string]struct {
		after time.Duration
		told  bool
		// says is what people read of who signed.
		says string
	}{
		"while fresh": {time.Minute, true, "signed by team-a"},
		"stale, but not by far": {
			23 * time.Hour, true, "signed by team-a, as the registry said at " + w.now.UTC().Format(time.RFC3339) + "; it is out of reach since",
		},
		"a day later": {25 * time.Hour, false, ""},
	} {
		start := w.now
		w.now = start.Add(c.after)
		v, err := j.Evaluate(t.Context(), req)
		standing := lifecycle.Observation{Request: req, Verdict: v, Err: err}
		if said := standing.Verified("").Message; err == nil && said != c.says {
			t.Errorf("%s: %q, want %q", name, said, c.says)
		}
		if told := err == nil; told != c.told {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !errors.Is(err, image.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
		w.now = start
	}
}

func TestARegistryThatIsDownIsNoRefusal(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	w.down.Store(true)
	v, err := w.evaluator().Evaluate(t.Context(), gate.Request{Application: app(ref, "count_packets", onEth0())})
	if !errors.Is(err, image.ErrUnavailable) || v.Allowed() {
		t.Errorf("Judge = %v, %v; want ErrUnavailable and no permission", v.Allowed(), err)
	}
}

func TestARegistryOutOfReachIsWaitedForOnceAndNotForEveryImage(t *testing.T) {
	w := newWorld(t)
	j := w.evaluator()
	pinned := func(object, program string) gate.Request {
		r := gate.Request{Application: app(w.signed(object), program, onEth0())}
		v, err := j.Evaluate(t.Context(), r)
		if err != nil || !v.Allowed() {
			t.Fatalf("%s: allowed %v, %v", object, v.Allowed(), err)
		}
		r.Digest = v.Image().Digest
		return r
	}
	one, two := pinned("xdp_count", "count_packets"), pinned("xdp_pass", "xdp_pass")
	asked := func(r gate.Request) int64 {
		t.Helper()
		before := w.requests.Load()
		if v, err := j.Evaluate(t.Context(), r); err != nil || !v.Allowed() {
			t.Errorf("allowed %v, %v", v.Allowed(), err)
		}
		return w.requests.Load() - before
	}
	w.down.Store(true)
	w.now = w.now.Add(11 * time.Minute)
	if asked(one) == 0 {
		t.Error("old evidence was not refreshed")
	}
	// The three places are asked at once, and the first that fails ends the others: what
	// was on its way then arrives later. To ask again takes three, three times.
	if n := asked(one) + asked(two); n > 2 {
		t.Errorf("a registry that was out of reach a moment ago was asked %d times", n)
	}
	w.comeUp()
	w.now = w.now.Add(31 * time.Second)
	if asked(two) == 0 {
		t.Error("a registry that is back is not asked")
	}
}

// bundleOf is the digest of the only bundle of an image.
func (w *world) bundleOf(ref string) string {
	w.t.Helper()
	attached, err := w.client.Attachments(w.resolve(ref))
	if err != nil {
		w.t.Fatal(err)
	}
	found, _, err := attached.Referrers(w.t.Context())
	if err != nil || len(found) != 1 {
		w.t.Fatalf("referrers %v, %v", found, err)
	}
	raw, err := attached.Manifest(w.t.Context(), found[0].Digest)
	if err != nil {
		w.t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		w.t.Fatal(err)
	}
	return m.Layers[0].Digest.String()
}

func TestOneBlobThatIsNotHandedOutIsNoRegistryOutOfReach(t *testing.T) {
	w := newWorld(t)
	j := w.evaluator()
	var requests []gate.Request
	var refs []string
	for _, object := range []string{"xdp_count", "xdp_pass"} {
		ref := w.push(object, "v1")
		w.bundle(ref, "team-a")
		r := gate.Request{Application: app(ref, map[string]string{"xdp_count": "count_packets", "xdp_pass": "xdp_pass"}[object], onEth0())}
		v, err := j.Evaluate(t.Context(), r)
		if err != nil || !v.Allowed() {
			t.Fatalf("%s: allowed %v, %v", object, v.Allowed(), err)
		}
		r.Digest = v.Image().Digest
		refs, requests = append(refs, ref), append(requests, r)
	}
	w.lost.Store(w.bundleOf(refs[0]))
	w.now = w.now.Add(11 * time.Minute)
	for _, r := range requests {
		before := w.requests.Load()
		if v, err := j.Evaluate(t.Context(), r); err != nil || !v.Allowed() {
			t.Errorf("%s: allowed %v, %v", r.Application.GetName(), v.Allowed(), err)
		}
		if w.requests.Load() == before {
			t.Error("the registry was not asked, as if it were out of reach")
		}
	}
}

func TestASignatureMadeLaterIsSeen(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	j, count := w.evaluator(), app(ref, "count_packets", onEth0())
	if mustEvaluate(t, j, count).Allowed() {
		t.Fatal("an unsigned image was allowed")
	}
	w.sign(ref, "team-b")
	w.now = w.now.Add(31 * time.Second)
	v := mustEvaluate(t, j, count)
	evidence := v.Evidence()
	if diff := cmp.Diff([]string{"team-b"}, evidence.Signers()); diff != "" || !v.Allowed() {
		t.Errorf("allowed %v, signers (-want +got):\n%s", v.Allowed(), diff)
	}
}

// TestASecondSignatureMadeLaterIsSeen has a policy ask for two signers.
func TestASecondSignatureMadeLaterIsSeen(t *testing.T) {
	both := wantsSigner("team-b")
	for name, c := range map[string]struct {
		policy policies.Policy
		// since is when the definition took its form, after the first evaluation.
		later, since time.Duration
		allowed      bool
		// meanwhile changes signers or policies.
		meanwhile func(w *world, j *gate.Evaluator)
	}{
		"half a minute later":                   {policy: both, later: 31 * time.Second, allowed: true},
		"at once, where the definition changed": {policy: both, later: time.Second, since: time.Second, allowed: true},
		"not at once":                           {policy: both, later: time.Second},
		"at once, where a signer changed": {policy: both, later: 11 * time.Second, allowed: true, meanwhile: func(w *world, j *gate.Evaluator) {
			changed := w.signers[0]
			changed.Name = "another"
			j.SetTrust(w.trust(append(w.signers, changed)...))
		}},
		"at once, where a policy changed": {policy: both, later: 11 * time.Second, allowed: true, meanwhile: func(w *world, j *gate.Evaluator) {
			other := rego("deny contains \"none\" if input.application.kind == \"None\"")
			other.Name = "other"
			j.SetPolicies(w.policy(both, other))
		}},
		"not at once, where another namespace's policy changed": {policy: both, later: 11 * time.Second, meanwhile: func(w *world, j *gate.Evaluator) {
			other := rego("deny contains \"none\" if input.application.kind == \"None\"")
			other.Namespace = "other"
			j.SetPolicies(w.policy(both, other))
		}},
		"not where what is denied for is no signature":          {policy: rego("deny contains \"never\""), later: 31 * time.Second},
		"nor where that changed, and somebody signed it anyway": {policy: rego("deny contains \"never\""), later: time.Second, since: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ref := w.push("xdp_count", "v1")
			w.sign(ref, "team-a")
			j, began := w.evaluator(), w.now
			j.SetPolicies(w.policy(c.policy))
			req := gate.Request{Application: app(ref, "count_packets", onEth0()), Digest: w.resolve(ref).Digest, Changed: began}
			if n, v := w.taken(t, j, req); v.Allowed() || n == 0 {
				t.Fatalf("allowed %v after %d requests", v.Allowed(), n)
			}
			w.sign(ref, "team-b")
			w.now, req.Changed = began.Add(c.later), began.Add(c.since)
			if c.meanwhile != nil {
				c.meanwhile(w, j)
			}
			n, v := w.taken(t, j, req)
			if v.Allowed() != c.allowed || (n > 0) != c.allowed {
				t.Errorf("allowed %v after %d requests, denied for %v", v.Allowed(), n, rules(v))
			}
		})
	}
}

// TestARequestEndsTheWaitForARegistry has a registry come back after it was out of reach:
// what somebody asks about is asked for at once, and the answer ends the wait of the
// others in that registry.
func TestARequestEndsTheWaitForARegistry(t *testing.T) {
	w := newWorld(t)
	j := w.evaluator()
	j.SetPolicies(w.policy(wantsSigner("team-b")))
	requests := map[string]*gate.Request{}
	for object, program := range map[string]string{"xdp_count": "count_packets", "xdp_pass": "xdp_pass"} {
		ref := w.push(object, "v1")
		w.sign(ref, "team-a")
		requests[object] = &gate.Request{Application: app(ref, program, onEth0()), Digest: w.resolve(ref).Digest}
		w.taken(t, j, *requests[object])
	}
	w.now = w.now.Add(11 * time.Minute)
	w.down.Store(true)
	for _, req := range requests {
		if _, v := w.taken(t, j, *req); v.Allowed() {
			t.Fatal("allowed")
		}
	}
	w.comeUp()
	for _, req := range requests {
		w.sign(req.Application.Body().Bytecode.Image, "team-b")
	}
	w.now = w.now.Add(time.Second)
	if n, v := w.taken(t, j, *requests["xdp_pass"]); v.Allowed() || n > 0 {
		t.Errorf("allowed %v after %d requests, want the wait for the registry", v.Allowed(), n)
	}
	requests["xdp_count"].Changed = w.now
	for _, object := range []string{"xdp_count", "xdp_pass"} {
		if _, v := w.taken(t, j, *requests[object]); !v.Allowed() {
			t.Errorf("%s is denied for %v", object, rules(v))
		}
	}
}

// TestWhatIsDeniedForItsSignaturesIsAskedAboutLessAndLess counts how often a registry is
// asked about an image that nobody signs again.
func TestWhatIsDeniedForItsSignaturesIsAskedAboutLessAndLess(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.sign(ref, "team-a")
	j := w.evaluator()
	j.SetPolicies(w.policy(wantsSigner("team-b")))
	req := gate.Request{Application: app(ref, "count_packets", onEth0())}
	req.Digest = w.resolve(ref).Digest
	began := w.now
	var asked []time.Duration
	for range 60 {
		if n, _ := w.taken(t, j, req); n > 0 {
			asked = append(asked, w.now.Sub(began))
		}
		w.now = w.now.Add(10 * time.Second)
	}
	want := []time.Duration{0, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 6 * time.Minute, 8 * time.Minute}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// TestADenialIsNoLessOneWhileTheRegistryIsAway asks again about what is denied for its
// signatures: with the registry away, and without asking it.
func TestADenialIsNoLessOneWhileTheRegistryIsAway(t *testing.T) {
	w := newWorld(t)
	ref := w.push("xdp_count", "v1")
	w.sign(ref, "team-a")
	j := w.evaluator()
	j.SetPolicies(w.policy(wantsSigner("team-b")))
	req := gate.Request{Application: app(ref, "count_packets", onEth0()), Digest: w.resolve(ref).Digest}
	if _, v := w.taken(t, j, req); v.Outdated() {
		t.Error("what was just collected is outdated")
	}
	w.now = w.now.Add(31 * time.Second)
	v, err := j.Evaluate(registry.CacheOnly(t.Context()), req)
	if err != nil || v.Allowed() || !v.Outdated() {
		t.Errorf("without a registry: allowed %v, outdated %v, %v", v.Allowed(), v.Outdated(), err)
	}
	w.down.Store(true)
	for _, most := range []int{100, 0} {
		n, v := w.taken(t, j, req)
		if v.Allowed() || v.Outdated() || n > most {
			t.Errorf("with the registry away: allowed %v, outdated %v after %d requests, want %d at most", v.Allowed(), v.Outdated(), n, most)
		}
	}
}

func TestAPinnedTagIsNotFollowed(t *testing.T) {
	w := newWorld(t)
	ref := w.signed("xdp_count")
	j, count := w.evaluator(), app(ref, "count_packets", onEth0())
	first := mustEvaluate(t, j, count).Image().Digest
	body := programs.Object("xdp_count_v2")
	built, err := image.Build(body, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Push(t.Context(), ref, built); err != nil {
		t.Fatal(err)
	}
	v, err := j.Evaluate(t.Context(), gate.Request{Application: count, Digest: first})
	if err != nil || v.Image().Digest != first || !v.Allowed() {
		t.Errorf("pinned: digest %s allowed %v, %v", v.Image().Digest, v.Allowed(), err)
	}
	if v := mustEvaluate(t, j, count); v.Image().Digest == first || v.Allowed() {
		t.Errorf("unpinned: digest %s, allowed %v; the moved tag is unsigned", v.Image().Digest, v.Allowed())
	}
}

func TestAStepRefusesTheZeroOfTheOneBefore(t *testing.T) {
	j := newWorld(t).evaluator()
	for name, step := range map[string]func() error{
		"Shape":   func() error { _, err := gate.Shape(gate.Request{}); return err },
		"Resolve": func() error { _, err := j.Resolve(t.Context(), gate.Shaped{}); return err },
		"Verify":  func() error { _, err := j.Verify(t.Context(), gate.Resolved{}); return err },
		"Inspect": func() error { _, err := j.Inspect(t.Context(), gate.Verified{}); return err },
		"Decide":  func() error { _, err := j.Decide(t.Context(), gate.Inspected{}); return err },
	} {
		if err := step(); err == nil {
			t.Errorf("%s took a zero value", name)
		}
	}
}

func TestSerialsOnlyRise(t *testing.T) {
	for _, c := range [][3]int64{{0, 100, 100}, {100, 100, 101}, {200, 100, 201}} {
		if got := gate.NextSerial(c[0], c[1]); got != c[2] {
			t.Errorf("NextSerial(%d, %d) = %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

func TestTheInputHasTheSchemasFields(t *testing.T) {
	w := newWorld(t)
	input, err := w.evaluator().Input(t.Context(), gate.Request{
		Application: app(w.signed("xdp_count"), "count_packets", onEth0()),
		Requester:   policies.Requester{Username: "dev@example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := input.Document()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(doc, &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"version", "application", "requester", "namespace", "image", "signatures", "attestations", "bytecode", "parameters", "now"} {
		if _, ok := got[field]; !ok {
			t.Errorf("the document has no %s", field)
		}
	}
	if name := fmt.Sprint(got["requester"].(map[string]any)["username"]); name != "dev@example.com" {
		t.Errorf("requester %s", name)
	}
}

// A controller does not keep kubectl's copy of a definition in memory, so policies
// see it nowhere: the webhook and the reconcilers decide by the same document.
func TestTheInputHasNoCopyOfTheDefinition(t *testing.T) {
	w := newWorld(t)
	a := app(w.signed("xdp_count"), "count_packets", onEth0())
	a.Annotations = map[string]string{"example.com/owner": "team", gate.AnnotationLastApplied: "{}"}
	input, err := w.evaluator().Input(t.Context(), gate.Request{Application: a})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"example.com/owner": "team"}, input.Application.Metadata.Annotations); diff != "" {
		t.Error(diff)
	}
	if len(a.Annotations) != 2 {
		t.Error("the application itself was changed")
	}
}
