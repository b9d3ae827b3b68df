package nodemode

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/series"
	"github.com/skep-dev/skep/test/harness/workers"
)

func TestMain(m *testing.M) {
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	workers.Use()
	leaks.Main(m)
}

// stage is a registry, a signer and a folder of definitions for one host, with
// a state and pins of its own.
type stage struct {
	t        testing.TB
	registry string
	down     atomic.Bool
	// slow is another name of the registry, whose answers trickle where trickles says so.
	slow    *slowRegistry
	client  *registry.Client
	keys    map[string]*sign.PrivateKey
	signers map[string]*v1alpha1.BpfSigner
	// defs, policies and signersFile are what the host reads.
	defs, policies, signersFile string
	state, bpffs                string
	now                         time.Time
}

// newStage skips the test, loudly, where programs cannot be loaded.
func newStage(t testing.TB) *stage {
	t.Helper()
	need.Kernel(t)
	dir := t.TempDir()
	s := &stage{t: t, keys: map[string]*sign.PrivateKey{}, signers: map[string]*v1alpha1.BpfSigner{},
		defs: filepath.Join(dir, "defs"), policies: filepath.Join(dir, "policies"), signersFile: filepath.Join(dir, "signers.yaml"),
		state: filepath.Join(dir, "state"), bpffs: bpffs(t), now: time.Now()}
	real := containerregistry.New(containerregistry.WithReferrersSupport(true), containerregistry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.slow = newSlowRegistry(t, real)
	s.registry = strings.TrimPrefix(server.URL, "http://")
	s.client = supply.Client(t, registry.Options{})
	for _, d := range []string{s.defs, s.policies} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"team-a", "team-b"} {
		s.makeSigner(name)
	}
	s.writeSigners()
	s.policy("package skep.policy\n\ndeny contains \"nobody signed it\" if count(input.signatures) == 0\n", v1alpha1.RunningKeep)
	return s
}

// bpffs is a folder of this test's own on the BPF file system.
func bpffs(t testing.TB) string {
	t.Helper()
	name := make([]byte, 6)
	if _, err := rand.Read(name); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("/sys/fs/bpf", "host-test-"+hex.EncodeToString(name))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// makeSigner makes a key without a password: cosign's own format takes a
// second of scrypt.
func (s *stage) makeSigner(name string) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.keys[name], err = sign.ParsePrivateKey(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil); err != nil {
		s.t.Fatal(err)
	}
	public, err := s.keys[name].Public()
	if err != nil {
		s.t.Fatal(err)
	}
	o := &v1alpha1.BpfSigner{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfSigner}}
	o.Name = name
	o.Spec.Key = &v1alpha1.KeySigner{PublicKey: string(public)}
	s.signers[name] = o
}

func (s *stage) write(path string, body []byte) {
	s.t.Helper()
	if err := os.WriteFile(path, body, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) yaml(v any) []byte {
	s.t.Helper()
	body, err := yaml.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}

func (s *stage) writeSigners() {
	s.t.Helper()
	var all []byte
	for _, name := range []string{"team-a", "team-b"} {
		all = append(append(all, "---\n"...), s.yaml(s.signers[name])...)
	}
	s.write(s.signersFile, all)
}

// policy replaces the only policy.
func (s *stage) policy(rego string, running v1alpha1.RunningMode) {
	s.t.Helper()
	p := &v1alpha1.ClusterBpfPolicy{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindClusterBpfPolicy}}
	p.Name, p.Spec.Rego, p.Spec.Running = "test", rego, running
	s.write(filepath.Join(s.policies, "policy.yaml"), s.yaml(p))
}

// The two versions of the test program: they differ in their licence, and so in
// their digest.
const (
	first  = "Dual BSD/GPL"
	second = "Dual MIT/GPL"
)

// push packs a version of the test program and has the signers sign it.
func (s *stage) push(version, tag string, signers ...string) string {
	s.t.Helper()
	object := bytes.Replace(programs.Object("tracepoint_count"), []byte(first), []byte(version), 1)
	built, err := image.Build(object, image.BuildOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	ref := s.registry + "/bpf/" + tag
	r, err := s.client.Push(s.t.Context(), ref, built)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range signers {
		if err := sign.Image(s.t.Context(), s.client, r, s.keys[name], sign.Options{}); err != nil {
			s.t.Fatal(err)
		}
	}
	return ref
}

// define writes a definition of one tracepoint program; a program of that kind
// needs no target of the test's own. An empty reference takes it out.
func (s *stage) define(name, ref string) {
	s.t.Helper()
	path := filepath.Join(s.defs, name+".yaml")
	if ref == "" {
		if err := os.Remove(path); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	s.write(path, s.definition(name, ref))
}

// suspend writes a definition anew, suspended.
func (s *stage) suspend(name string) {
	s.t.Helper()
	path := filepath.Join(s.defs, name+".yaml")
	body, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(path, bytes.Replace(body, []byte("spec:\n"), []byte("spec:\n  suspend: true\n"), 1))
}

// definition is the YAML of a definition.
func (s *stage) definition(name, ref string) []byte {
	s.t.Helper()
	a := &v1alpha1.ClusterBpfApplication{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindClusterBpfApplication}}
	a.Name, a.Spec.Bytecode.Image = name, ref
	a.Spec.Programs = []v1alpha1.Program{{Name: "tracepoint_count"}}
	return s.yaml(a)
}

// open makes a host; the caller closes it.
func (s *stage) open(change ...func(*Options)) *Host {
	s.t.Helper()
	o := Options{
		Source: s.defs, Policies: []string{s.policies}, Signers: []string{s.signersFile},
		State: s.state, BPFFS: s.bpffs, AllowedRegistries: []string{transport.AnyPublic, "127.0.0.1:*", "localhost:*"}, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return s.now }, RegistryBackoff: time.Millisecond,
	}
	for _, c := range change {
		c(&o)
	}
	h, err := New(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = h.Close() })
	return h
}

// pass passes once and returns the applications by name. Failures of single
// applications are in their status.
func (s *stage) pass(h *Host) map[string]Application {
	s.t.Helper()
	s.now = s.now.Add(time.Second)
	status, err := h.Once(s.t.Context())
	if err != nil {
		// Shown where the test fails: applications that are meant to fail say so here.
		s.t.Logf("pass: %v; source %q, settings %q", err, status.Source.Error, status.Settings.Error)
	}
	all := map[string]Application{}
	for _, a := range status.Applications {
		all[a.Name] = a
	}
	return all
}

// wantConditions checks what a person would look at.
func wantConditions(t *testing.T, a Application, want map[string]metav1.ConditionStatus) {
	t.Helper()
	for kind, status := range want {
		if c := a.Condition(kind); c.Status != status {
			t.Errorf("%s: %s is %s (%s), want %s", a.Name, kind, c.Status, c.Message, status)
		}
	}
}

// running is the kernel's id of an application's program, 0 where there is
// none.
func running(a Application) uint32 {
	for _, p := range a.Programs {
		return p.ID
	}
	return 0
}

// pins counts the files below the test's pins.
func (s *stage) pins() int {
	s.t.Helper()
	n := 0
	_ = filepath.WalkDir(s.bpffs, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return nil
	})
	return n
}

const (
	yesPlease = metav1.ConditionTrue
	noThanks  = metav1.ConditionFalse
)

func TestFromDefinitionToKernelAndBack(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	app := s.pass(h)["app"]
	wantConditions(t, app, map[string]metav1.ConditionStatus{
		v1alpha1.ConditionVerified: yesPlease, v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionDeployed: yesPlease, v1alpha1.ConditionReady: yesPlease})
	if running(app) == 0 || s.pins() == 0 {
		t.Fatalf("not in the kernel: %+v", app)
	}
	again := s.pass(h)["app"]
	if running(again) != running(app) || again.Agent.Serial != app.Agent.Serial {
		t.Error("a second pass without a change did something")
	}
	s.define("app", "")
	if left := s.pass(h); len(left) != 0 || s.pins() != 0 {
		t.Errorf("left after the definition went: %v, %d pins", left, s.pins())
	}
}

func TestARestartAdoptsWhatRuns(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	s.down.Store(true)
	after := s.pass(s.open())["app"]
	if running(after) == 0 || running(after) != running(before) || after.Digest != before.Digest {
		t.Errorf("before the restart program %d of %s, after it %d of %s", running(before), before.Digest, running(after), after.Digest)
	}
	wantConditions(t, after, map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: yesPlease})
}

func TestOneBadDefinitionStopsNoGoodOne(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("good", ref)
	h := s.open()
	before := s.pass(h)["good"]
	s.write(filepath.Join(s.defs, "bad.yaml"), []byte("apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: [\n"))
	s.define("unsigned", s.push(second, "unsigned:v1"))
	s.define("other", ref)
	all := s.pass(h)
	wantConditions(t, all["other"], map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: yesPlease})
	wantConditions(t, all["unsigned"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks, v1alpha1.ConditionReady: noThanks})
	if running(all["good"]) != running(before) {
		t.Error("what ran was touched")
	}
	if problems := h.Status().Problems; len(problems) != 1 || problems[0].Source.File != "bad.yaml" {
		t.Errorf("problems %v", problems)
	}
	s.write(filepath.Join(s.defs, "good.yaml"), []byte("# skep.dev/\n\t:"))
	all = s.pass(h)
	if running(all["good"]) != running(before) {
		t.Errorf("a definition that broke took its program with it: %+v", all["good"])
	}
	if p := all["good"].Problems; len(p) != 1 || p[0].Source.File != "good.yaml" || p[0].Fix == "" {
		t.Errorf("its problems are %v", p)
	}
	s.write(filepath.Join(s.defs, "good.yaml"), bytes.Replace(s.definition("good", ref), []byte("  programs:"), []byte("  progams:"), 1))
	misspelt := s.pass(h)["good"]
	if said := misspelt.Condition(v1alpha1.ConditionReady).Message; !strings.Contains(said, "good.yaml:8:3: field progams is not known") {
		t.Errorf("says %q of a misspelt field", said)
	}
	if p := misspelt.Problems; len(p) != 1 || !strings.Contains(p[0].Fix, "use one of") {
		t.Errorf("its problems are %v", p)
	}
}

func TestABrokenFileHoldsBackOnlyWhatMayComeFromIt(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	for _, name := range []string{"kept", "moved", "gone", "misspelt"} {
		s.define(name, ref)
	}
	h := s.open()
	before := s.pass(h)
	if len(before) != 4 || running(before["gone"]) == 0 {
		t.Fatalf("%+v", before)
	}
	s.write(filepath.Join(s.defs, "kept.yaml"), []byte("# skep.dev/\n\t:"))
	s.write(filepath.Join(s.defs, "new.yaml"), append(s.definition("moved", ref), "\n\t:"...))
	s.write(filepath.Join(s.defs, "misspelt.yaml"), bytes.Replace(s.definition("misspelt", ref), []byte("skep.dev/"), []byte("skep.dv/"), 1))
	s.define("moved", "")
	s.define("gone", "")
	held := func(h *Host) {
		t.Helper()
		after := s.pass(h)
		for _, name := range []string{"kept", "moved", "misspelt"} {
			if running(after[name]) != running(before[name]) {
				t.Errorf("%s was unloaded, though a broken file may define it", name)
			}
		}
		if running(after["gone"]) != 0 {
			t.Error("a removal was held back by files that have nothing to do with it")
		}
	}
	held(h)
	// After a restart the sealed intents tell where each was found.
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	held(s.open())
}

func TestASourceThatGoesTakesNothingWithIt(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	if err := os.Rename(s.defs, s.defs+".away"); err != nil {
		t.Fatal(err)
	}
	if after := s.pass(h)["app"]; running(after) != running(before) {
		t.Errorf("program %d became %d", running(before), running(after))
	}
	if h.Status().Source.Error == "" {
		t.Error("the status does not tell that the source is gone")
	}
}

func TestANodeComesBackWithEverythingElseAway(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	s.pass(h)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{s.defs, s.policies, s.signersFile} {
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
	}
	s.down.Store(true)
	if err := os.RemoveAll(s.bpffs); err != nil { // as a reboot does
		t.Fatal(err)
	}
	h = s.open()
	after := s.pass(h)["app"]
	if running(after) == 0 {
		t.Errorf("not back: %+v", after)
	}
	status := h.Status()
	if status.Source.Error == "" || status.Settings.Error == "" {
		t.Errorf("the status does not tell what is away: %+v, %+v", status.Source, status.Settings)
	}
	for _, path := range []string{s.defs, s.policies, s.signersFile} {
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	again := s.pass(h)["app"]
	wantConditions(t, again, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionReady: yesPlease})
	if running(again) != running(after) {
		t.Error("the settings came back, and the program was loaded anew")
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), Options{
		Source: s.defs, Policies: []string{"/nowhere"}, State: t.TempDir(), BPFFS: bpffs(t), Log: slog.New(slog.DiscardHandler),
	}); err == nil {
		t.Error("a host with nothing to keep started without its policies")
	}
}

func TestALostStateLeavesTheSourceToDecide(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("stays", ref)
	s.define("goes", ref)
	h := s.open()
	s.pass(h)
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.state); err != nil {
		t.Fatal(err)
	}
	s.define("goes", "")
	h = s.open()
	s.pass(h)
	all := s.pass(h)
	if _, left := all["goes"]; left || running(all["stays"]) == 0 {
		t.Errorf("after the state was lost: %+v", all)
	}
}

func TestAFileBeingWrittenIsNotTakenForGone(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	whole, err := os.ReadFile(filepath.Join(s.defs, "app.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write(filepath.Join(s.defs, "app.yaml"), nil)
	written := make(chan struct{})
	// An editor's second step, well within the time a folder is waited for.
	time.AfterFunc(source.Quiet/4, func() {
		defer close(written)
		_ = os.WriteFile(filepath.Join(s.defs, "app.yaml"), whole, 0o600)
	})
	after := s.pass(h)["app"]
	<-written
	if running(after) == 0 || running(after) != running(before) {
		t.Errorf("program %d became %d", running(before), running(after))
	}
}

// TestAFileThatHoldsNothingTakesNothingWithIt: a command that begins to write a file has emptied it, and may take minutes, or fail.
func TestAFileThatHoldsNothingTakesNothingWithIt(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("app", ref)
	s.define("other", ref)
	h := s.open()
	before := s.pass(h)["app"]
	s.define("other", "")
	kept := func(h *Host, text string) {
		t.Helper()
		after := s.pass(h)
		if running(after["app"]) == 0 || running(after["app"]) != running(before) || !isProblem(after["app"], "app.yaml") {
			t.Errorf("%q: program %d became %d: %+v", text, running(before), running(after["app"]), after["app"])
		}
		if running(after["other"]) != 0 {
			t.Error("a file that is gone keeps what it defined")
		}
	}
	for _, text := range []string{"apiVersion: ", "# apiVersion: skep.dev/v1alpha1", "\x00\x00\x00", " \n\n", ""} {
		s.write(filepath.Join(s.defs, "app.yaml"), []byte(text))
		kept(h, text)
	}
	if problems := h.Status().Problems; len(problems) != 1 || problems[0].Source.File != "app.yaml" {
		t.Errorf("the problems are %v", problems)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = s.open()
	kept(h, "after a restart")
	s.define("app", "")
	if after := s.pass(h)["app"]; running(after) != 0 {
		t.Errorf("its file is gone: %+v", after)
	}
}

// TestAStartWithAnEmptyFileOfSettingsFails: what it held is not known.
func TestAStartWithAnEmptyFileOfSettingsFails(t *testing.T) {
	s := newStage(t)
	signers := filepath.Dir(s.signersFile)
	engine := policies.NewEngine(policies.EngineOptions{})
	t.Cleanup(engine.Close)
	load := func() error {
		_, err := settings.Load(t.Context(), engine, settings.Options{Policies: []string{s.policies}, Signers: []string{signers}})
		return err
	}
	if err := load(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{filepath.Join(signers, "empty.yaml"), filepath.Join(s.policies, "empty.yaml")} {
		s.write(file, nil)
		if err := load(); err == nil || !strings.Contains(err.Error(), "empty.yaml") {
			t.Errorf("%s is empty: %v", file, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// halfWritten is a folder that somebody is writing to while its next reader, or the only one, reads it.
type halfWritten struct {
	source.Folder
	write func(whole bool)
	reads atomic.Int32
}

func (f *halfWritten) Fetch(ctx context.Context) (source.Tree, error) {
	f.write(true)
	t, err := f.Folder.Fetch(ctx)
	if f.reads.Add(1) == 1 {
		f.write(false)
	}
	return t, err
}

func TestAFolderThatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	one, two := s.definition("one", ref), s.definition("two", ref)
	write := func(whole bool) {
		both := slices.Clone(one)
		if whole {
			both = append(append(both, "\n---\n"...), two...)
		}
		s.write(filepath.Join(s.defs, "both.yaml"), both)
	}
	write(true)
	h := s.open()
	before := s.pass(h)
	f := &halfWritten{Folder: source.Folder(s.defs), write: write}
	h.catalog.source = f
	if after := s.pass(h)["two"]; running(after) == 0 || running(after) != running(before["two"]) || f.reads.Load() != 2 {
		t.Errorf("after %d reads, program %d became %d", f.reads.Load(), running(before["two"]), running(after))
	}
}

// isProblem reports whether a file is why the definition of an application is not there.
func isProblem(a Application, file string) bool {
	return len(a.Problems) == 1 && a.Problems[0].Source.File == file
}

func TestADeniedUpdateLeavesTheGoodVersion(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	s.define("app", s.push(second, "app:v2"))
	after := s.pass(h)["app"]
	wantConditions(t, after, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks, v1alpha1.ConditionDeployed: yesPlease})
	if running(after) != running(before) || after.Digest != before.Digest {
		t.Errorf("program %d became %d", running(before), running(after))
	}
	if after.RunningImage != before.Image || after.Image == before.Image || after.WantedDigest == "" || after.WantedDigest == after.Digest {
		t.Errorf("%s %s is wanted and %s %s runs", after.Image, after.WantedDigest, after.RunningImage, after.Digest)
	}
	if before.RunningImage != "" || before.WantedDigest != "" {
		t.Errorf("two versions before there were: %+v", before)
	}
}

const denyAll = "package skep.policy\n\ndeny contains \"not any more\"\n"

func TestAChangedPolicyKeepsOrUnloadsAsItSays(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	s.down.Store(true)
	s.policy(denyAll, v1alpha1.RunningKeep)
	kept := s.pass(h)["app"]
	wantConditions(t, kept, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks, v1alpha1.ConditionDeployed: yesPlease})
	if running(kept) != running(before) {
		t.Error("running: Keep did not keep")
	}
	s.policy(denyAll, v1alpha1.RunningUnload)
	if gone := s.pass(h)["app"]; running(gone) != 0 || s.pins() != 0 {
		t.Errorf("running: Unload left program %d and %d pins", running(gone), s.pins())
	}
}

// TestWhatAPolicyInAuditModeDeniesIsTold: by status, condition and metrics, and it runs.
func TestWhatAPolicyInAuditModeDeniesIsTold(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	p := &v1alpha1.ClusterBpfPolicy{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindClusterBpfPolicy}}
	p.Name, p.Spec.Mode, p.Spec.Rego = "quiet", v1alpha1.PolicyAudit, "package skep.policy\n\ndeny contains \"it counts\" if true\n"
	s.write(filepath.Join(s.policies, "quiet.yaml"), s.yaml(p))
	h := s.open()
	app := s.pass(h)["app"]
	wantConditions(t, app, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionDeployed: yesPlease})
	if len(app.Audited) != 1 || app.Audited[0].Rule != "quiet/deny" || len(app.Reasons)+len(app.Warnings) != 0 {
		t.Errorf("audited %v, denied %v, warned of %v", app.Audited, app.Reasons, app.Warnings)
	}
	if m := app.Condition(v1alpha1.ConditionAllowed).Message; !strings.Contains(m, "; in mode Audit, which denies nothing: quiet/deny: it counts") {
		t.Errorf("its condition says %q", m)
	}
	if n := series.Of(t, h.metrics.registry)[`skep_audited_denials{rule="quiet/deny"}`]; n != 1 {
		t.Errorf("%v are counted", n)
	}
}

// TestWhatRanWithoutBaselineIsKept has a host that replaced baseline start without
// that, as after an upgrade from a version where any policy replaced it.
func TestWhatRanWithoutBaselineIsKept(t *testing.T) {
	s := newStage(t)
	p := &v1alpha1.ClusterBpfPolicy{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindClusterBpfPolicy}}
	p.Name, p.Spec.Rego, p.Spec.Running = "test", "package skep.policy\n\ndeny contains \"never\" if input.application.kind == "+
		"\"Nothing\"\n", v1alpha1.RunningUnload
	p.Spec.Replaces = []v1alpha1.BuiltinPolicy{v1alpha1.PolicyBaseline}
	s.write(filepath.Join(s.policies, "policy.yaml"), s.yaml(p))
	for _, name := range []string{"one", "two", "three"} {
		s.define(name, s.push(first, name+":v1"))
	}
	h := s.open()
	before := s.pass(h)
	wantConditions(t, before["one"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionDeployed: yesPlease})
	if told := h.Status().Settings.Cautions; len(told) != 1 || !strings.HasPrefix(told[0], "policy test replaces baseline for every application") {
		t.Errorf("the status cautions of %q", told)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	p.Spec.Replaces = nil
	s.write(filepath.Join(s.policies, "policy.yaml"), s.yaml(p))
	h = s.open()
	after := s.pass(h)
	if told := h.Status().Settings.Cautions; len(told) != 0 || len(after) != 3 {
		t.Errorf("the status cautions of %q, %d applications", told, len(after))
	}
	for name, app := range after {
		wantConditions(t, app, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks, v1alpha1.ConditionDeployed: yesPlease})
		if id := running(app); id == 0 || id != running(before[name]) || !strings.Contains(app.Condition(v1alpha1.ConditionAllowed).Message, "baseline/signed") {
			t.Errorf("%s: program %d became %d; %s", name, running(before[name]), id, app.Condition(v1alpha1.ConditionAllowed).Message)
		}
	}
}

// TestADefinitionIsDeniedWhileItsRegistryHangs: what the definition says is enough.
func TestADefinitionIsDeniedWhileItsRegistryHangs(t *testing.T) {
	s := newStage(t)
	s.policy("package skep.policy\n\ndeny contains \"not listed\" if startswith(input.application.spec.bytecode.image, \"127.0.0.1\")\n", v1alpha1.RunningKeep)
	s.define("app", strings.Replace(s.push(first, "app:v1", "team-a"), s.registry, s.slow.address, 1))
	s.slow.slowly("/manifests/")
	h := s.open()
	h.Sync(t.Context())
	i := slices.IndexFunc(h.Status().Applications, func(a Application) bool { return a.Name == "app" })
	if i < 0 {
		t.Fatalf("%+v", h.Status())
	}
	app := h.Status().Applications[i]
	if len(app.Reasons) != 1 || app.Reasons[0].Rule != "test/deny" || app.Condition(v1alpha1.ConditionVerified).Status != metav1.ConditionUnknown {
		t.Errorf("%+v", app)
	}
}

func TestNoDefinitionEscapesAPolicyThatUnloads(t *testing.T) {
	for name, escape := range map[string]func(*stage){
		"by suspending it": func(s *stage) { s.suspend("app") },
		"by breaking its file": func(s *stage) {
			s.write(filepath.Join(s.defs, "app.yaml"), []byte("apiVersion: skep.dev/v1alpha1\nkind: ["))
		},
		"by an image out of reach": func(s *stage) { s.define("app", "127.0.0.1:1/bpf/app:v1") },
		"by a wrong function":      func(s *stage) { s.define("app", s.registry+"/bpf/none:v1") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.define("app", s.push(first, "app:v1", "team-a"))
			h := s.open()
			if app := s.pass(h)["app"]; running(app) == 0 {
				t.Fatalf("not loaded: error %q, conditions %+v, status %+v", app.Error, app.Conditions, h.Status())
			}
			escape(s)
			if running(s.pass(h)["app"]) == 0 {
				t.Fatal("gone before any policy said so")
			}
			s.policy(denyAll, v1alpha1.RunningUnload)
			if app := s.pass(h)["app"]; running(app) != 0 {
				t.Errorf("still runs: %+v", app.Conditions)
			}
		})
	}
}

// hanging is a source whose server takes the connection and says nothing, until it is let go.
type hanging struct{ asked, letGo chan struct{} }

func (h hanging) Fetch(ctx context.Context) (source.Tree, error) {
	close(h.asked)
	select {
	case <-ctx.Done():
		return source.Tree{}, ctx.Err()
	case <-h.letGo:
		return source.Tree{}, errors.New("the server closed the connection")
	}
}

// isUnloaded reports whether the agent was told to unload an application.
func isUnloaded(h *Host, name string) bool {
	return slices.ContainsFunc(h.agent.Intents(), func(o intent.Opened) bool {
		p := o.Payload()
		return p.Application.Name == name && p.Tombstone
	})
}

// TestASourceThatHangsHoldsNoRevocationUp revokes a signer while the source does not answer, and
// while it takes long to render: what is denied then ends before the sync has waited for
// that. Nothing else does: what another signer allows, and what the source may define.
func TestASourceThatHangsHoldsNoRevocationUp(t *testing.T) {
	const endless = "import \"list\"\n\nn: list.Range(0, 5000, 1)\nx: [for a in n for b in n if a+b < 0 {a}]\n"
	for name, c := range map[string]struct{ renders bool }{"the server": {}, "rendering": {renders: true}} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.define("revoked", s.push(first, "revoked:v1", "team-a"))
			s.define("both", s.push(first, "both:v1", "team-a", "team-b"))
			s.define("deleted", s.push(second, "deleted:v1", "team-b"))
			h := s.open()
			before := s.pass(h)
			for _, name := range []string{"revoked", "both", "deleted"} {
				if running(before[name]) == 0 {
					t.Fatalf("%s is not loaded", name)
				}
			}
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
			s.define("deleted", "")
			h.catalog.waited = time.Hour
			server := hanging{make(chan struct{}), make(chan struct{})}
			if c.renders {
				s.write(filepath.Join(s.defs, "endless.cue"), []byte("package defs\n\n"+endless))
			} else {
				h.catalog.source = server
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() { h.Sync(ctx); close(done) }()
			defer func() { cancel(); <-done }()
			eventually(t, "the revoked one is unloaded", func() bool { return isUnloaded(h, "revoked") })
			select {
			case <-done:
				t.Error("the sync did not wait for the source")
			default:
			}
			if c.renders {
				cancel()
			} else {
				<-server.asked
				close(server.letGo)
			}
			<-done
			if isUnloaded(h, "both") || isUnloaded(h, "deleted") {
				t.Errorf("more than the revoked one is unloaded: %+v", h.agent.Intents())
			}
			if !c.renders && h.Status().Source.Error == "" {
				t.Error("the status does not say that the source cannot be read")
			}
		})
	}
}

// TestWhatARevocationUnloadsFirstCounts changes signers and policies at once: unload protection
// counts what policies deny whole, whatever a revocation unloaded before.
func TestWhatARevocationUnloadsFirstCounts(t *testing.T) {
	s := newStage(t)
	for name, signer := range map[string]string{"one": "team-a", "two": "team-a", "held": "team-b"} {
		s.define(name, s.push(first, name+":v1", signer))
	}
	h := s.open()
	s.pass(h)
	s.signers["team-a"].Spec.Revoked = true
	s.writeSigners()
	s.policy(denyAll, v1alpha1.RunningUnload)
	for range 2 {
		after := s.pass(h)
		if running(after["one"]) != 0 || running(after["two"]) != 0 || running(after["held"]) == 0 {
			t.Errorf("programs %d, %d and %d run", running(after["one"]), running(after["two"]), running(after["held"]))
		}
	}
	if held := h.Status().UnloadProtection; held == nil {
		t.Error("unload protection holds nothing")
	}
}

// TestAnUnloadCountsOnceAndWhenItIsTaken has unloads of a revocation fail: a sync tries them before and after it reads the source.
func TestAnUnloadCountsOnceAndWhenItIsTaken(t *testing.T) {
	for sentence, c := range map[string]struct {
		// damage returns how it is mended.
		damage func(t *testing.T, s *stage, h *Host) (mend func())
		counts float64
	}{
		"the agent trusts another key": {func(t *testing.T, _ *stage, h *Host) func() {
			other, err := intent.NewSealer(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
			if err != nil {
				t.Fatal(err)
			}
			own := h.sealer
			h.sealer = other
			return func() { h.sealer = own }
		}, 0},
		"the agent acts on it and cannot store it": {func(t *testing.T, s *stage, _ *Host) func() {
			dir := filepath.Join(s.state, "agent", "intents")
			if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
					t.Fatal(err)
				}
			}
		}, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := newStage(t)
			s.define("app", s.push(first, "app:v1", "team-a"))
			h := s.open()
			s.pass(h)
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
			mend := c.damage(t, s, h)
			s.pass(h)
			counted := func() float64 { return series.Of(t, h.metrics.registry)[`skep_intents_sealed_total{action="unload"}`] }
			if n := counted(); n != c.counts || isUnloaded(h, "app") != (n > 0) {
				t.Errorf("%v unloads are counted, want %v", n, c.counts)
			}
			mend()
			s.pass(h)
			if n := counted(); n != 1 || !isUnloaded(h, "app") {
				t.Errorf("%v unloads are counted in the end", n)
			}
		})
	}
}

func TestSettingsThatFailedOnceAreReadAgain(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	real := s.policies + ".real"
	if err := os.Rename(s.policies, real); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, s.policies); err != nil {
		t.Fatal(err)
	}
	h := s.open()
	s.pass(h)
	// A file behind the link changes, and for a while cannot be read.
	s.policy(denyAll, v1alpha1.RunningUnload)
	if err := os.Rename(s.signersFile, s.signersFile+".away"); err != nil {
		t.Fatal(err)
	}
	if s.pass(h); h.Status().Settings.Error == "" {
		t.Error("the status does not tell that the settings cannot be read")
	}
	if err := os.Rename(s.signersFile+".away", s.signersFile); err != nil {
		t.Fatal(err)
	}
	if app := s.pass(h)["app"]; running(app) != 0 || h.Status().Settings.Error != "" {
		t.Errorf("the change was missed: %q", h.Status().Settings.Error)
	}
}

// TestABrokenFileHoldsUpNoOther breaks one file of signers or policies after all were read:
// a revocation in another file acts, and what the broken one held stays, over a restart, too.
func TestABrokenFileHoldsUpNoOther(t *testing.T) {
	const malformed = "apiVersion: skep.dev/v1alpha1\nkind: BpfSigner\nmetadata: {name\n"
	for name, c := range map[string]struct {
		damage func(s *stage, signers string)
		// says is what the status says of it.
		says string
		// restarts: the host starts anew with the broken file.
		restarts bool
	}{
		"a new file that is no YAML": {func(s *stage, signers string) {
			s.write(filepath.Join(signers, "zbroken.yaml"), []byte(malformed))
		}, "zbroken.yaml:", false},
		"another signer's file, which is no YAML now": {func(s *stage, signers string) {
			s.write(filepath.Join(signers, "team-b.yaml"), []byte(malformed))
		}, "team-b.yaml:", true},
		"another signer's file, with a key that is none": {func(s *stage, signers string) {
			broken := *s.signers["team-b"]
			broken.Spec.Key = &v1alpha1.KeySigner{PublicKey: "none"}
			s.write(filepath.Join(signers, "team-b.yaml"), s.yaml(broken))
		}, "team-b", false},
		"another signer's file, which is empty now": {func(s *stage, signers string) {
			s.write(filepath.Join(signers, "team-b.yaml"), nil)
		}, "team-b.yaml: the file holds no definition", false},
		"another signer twice": {func(s *stage, signers string) {
			s.write(filepath.Join(signers, "copy.yaml"), s.yaml(*s.signers["team-b"]))
		}, "team-b", false},
		"a policy that does not compile": {func(s *stage, _ string) {
			s.policy("package skep.policy\n\ndeny contains {", v1alpha1.RunningUnload)
		}, "compile policy", true},
		"a policy file that is no YAML": {func(s *stage, _ string) {
			s.write(filepath.Join(s.policies, "policy.yaml"), []byte(malformed))
		}, "policy.yaml", false},
		"a policy file that is empty now, beside another one": {func(s *stage, _ string) {
			s.write(filepath.Join(s.policies, "other.rego"), []byte("package skep.policy\n\ndeny contains \"never\" if false\n"))
			s.write(filepath.Join(s.policies, "policy.yaml"), nil)
		}, "policy.yaml: the file is empty", false},
		"a policy file that ends behind its first line": {func(s *stage, _ string) {
			s.write(filepath.Join(s.policies, "other.rego"), []byte("package skep.policy\n\ndeny contains \"never\" if false\n"))
			s.write(filepath.Join(s.policies, "policy.yaml"), []byte("# skep.dev/v1alpha1\n"))
		}, "policy.yaml holds no policy any more", false},
		"a policy twice": {func(s *stage, _ string) {
			body, err := os.ReadFile(filepath.Join(s.policies, "policy.yaml"))
			if err != nil {
				s.t.Fatal(err)
			}
			s.write(filepath.Join(s.policies, "copy.yaml"), body)
		}, "rename one of them", false},
		"no folder of policies": {func(s *stage, _ string) {
			if err := os.RemoveAll(s.policies); err != nil {
				s.t.Fatal(err)
			}
		}, "read policies", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			signers := filepath.Join(filepath.Dir(s.signersFile), "signers")
			if err := os.Mkdir(signers, 0o755); err != nil {
				t.Fatal(err)
			}
			write := func() {
				for name, signer := range s.signers {
					s.write(filepath.Join(signers, name+".yaml"), s.yaml(*signer))
				}
			}
			write()
			s.define("revoked", s.push(first, "one:v1", "team-a"))
			s.define("kept", s.push(second, "two:v1", "team-b"))
			var logged bytes.Buffer
			open := func() *Host {
				return s.open(func(o *Options) { o.Signers, o.Log = []string{signers}, slog.New(slog.NewTextHandler(&logged, nil)) })
			}
			h := open()
			before := s.pass(h)
			s.signers["team-a"].Spec.Revoked = true
			write()
			c.damage(s, signers)
			since := s.now.UTC().Format("2006-01-02T")
			if c.restarts {
				// The file is broken when it starts.
				if err := h.Close(); err != nil {
					t.Fatal(err)
				}
				h, since = open(), "an earlier run"
			}
			after := s.pass(h)
			if running(before["revoked"]) == 0 || running(after["revoked"]) != 0 {
				t.Errorf("the revocation did not act: program %d became %d", running(before["revoked"]), running(after["revoked"]))
			}
			wantConditions(t, after["kept"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease})
			if running(after["kept"]) != running(before["kept"]) {
				t.Error("what the broken file held did not stay")
			}
			want := "stays as it was read last, and every other change since " + since
			for _, said := range []string{h.Status().Settings.Error, logged.String()} {
				if !strings.Contains(said, c.says) || !strings.Contains(said, want) {
					t.Errorf("it says %q, want %q and %q in it", said, c.says, want)
				}
			}
		})
	}
}

// TestAReconcileLooksAgainAtOnce signs what is denied: it is seen by and by, and at once where
// somebody asks for another look.
func TestAReconcileLooksAgainAtOnce(t *testing.T) {
	for _, name := range []string{"app", ""} {
		t.Run("named "+name, func(t *testing.T) {
			s := newStage(t)
			s.define("app", s.push(first, "app:v1"))
			h := s.open()
			wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
			s.now = s.now.Add(time.Second)
			s.push(first, "app:v1", "team-a")
			wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
			if _, err := h.Reconcile("another"); err == nil {
				t.Error("what is not there is looked at")
			}
			s.now = s.now.Add(time.Second)
			if names, err := h.Reconcile(name); err != nil || !slices.Equal(names, []string{"app"}) {
				t.Fatalf("Reconcile: %v, %v", names, err)
			}
			s.now = s.now.Add(time.Second)
			if running(s.pass(h)["app"]) == 0 {
				t.Error("the signature was not seen")
			}
		})
	}
}

// TestAnEmptyFolderOfPoliciesSaysWhatIsActive, while it runs and at a start.
func TestAnEmptyFolderOfPoliciesSaysWhatIsActive(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	s.pass(h)
	if err := os.Remove(filepath.Join(s.policies, "policy.yaml")); err != nil {
		t.Fatal(err)
	}
	s.pass(h)
	fix := "holds no .rego file and no policy object: keep one there, or leave out --policy " + s.policies + ";"
	for _, want := range []string{fix, "what that held stays as it was read last"} {
		if said := h.Status().Settings.Error; !strings.Contains(said, want) {
			t.Errorf("the status says %q, want %q in it", said, want)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h = s.open()
	if running(s.pass(h)["app"]) == 0 {
		t.Error("what ran was not kept")
	}
	for _, want := range []string{fix, "what that held stays as it was read last"} {
		if said := h.Status().Settings.Error; !strings.Contains(said, want) {
			t.Errorf("at a start the status says %q, want %q in it", said, want)
		}
	}
}

// TestAStartThatDoesNotKnowTheSettingsEvaluatesNothing: what the last run read is not there or not this host's, or a file
// that cannot be read may have what is missing elsewhere.
func TestAStartThatDoesNotKnowTheSettingsEvaluatesNothing(t *testing.T) {
	empty := func(s *stage) { s.write(filepath.Join(s.policies, "policy.yaml"), nil) }
	move := func(s *stage, from, to string) {
		if err := os.Remove(from); err != nil {
			s.t.Fatal(err)
		}
		s.write(to, []byte("apiVersion: skep.dev/v1alpha1\nkind: {"))
	}
	for name, damage := range map[string]func(s *stage, kept string){
		"no file": func(s *stage, kept string) {
			empty(s)
			if err := os.Remove(kept); err != nil {
				s.t.Fatal(err)
			}
		},
		"what this host did not seal": func(s *stage, kept string) {
			empty(s)
			body, err := os.ReadFile(kept)
			if err != nil {
				s.t.Fatal(err)
			}
			s.write(kept, bytes.Replace(body, []byte(`"payload":"`), []byte(`"payload":"e30g`), 1))
		},
		"a policy that is in another file, which is broken": func(s *stage, _ string) {
			move(s, filepath.Join(s.policies, "policy.yaml"), filepath.Join(s.policies, "moved.yaml"))
			s.write(filepath.Join(s.policies, "other.rego"), []byte("package skep.policy\n\ndeny contains \"never\" if false\n"))
		},
		"a signer that is in another file, which is broken": func(s *stage, _ string) {
			move(s, s.signersFile, filepath.Join(filepath.Dir(s.signersFile), "moved.yaml"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.define("app", s.push(first, "app:v1", "team-a"))
			signers := func(o *Options) { o.Signers = []string{filepath.Dir(s.signersFile)} }
			h := s.open(signers)
			before := s.pass(h)["app"]
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			damage(s, filepath.Join(s.state, "settings.json"))
			h = s.open(signers)
			if after := s.pass(h)["app"]; running(after) == 0 || running(after) != running(before) {
				t.Error("what ran was not kept")
			}
			if said := h.Status().Settings.Error; !strings.Contains(said, "nothing of the source is evaluated") {
				t.Errorf("the status says %q", said)
			}
		})
	}
}

func TestABrokenPolicyLeavesTheOneInForce(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	s.policy("package skep.policy\n\ndeny contains {", v1alpha1.RunningUnload)
	after := s.pass(h)["app"]
	wantConditions(t, after, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease})
	if running(after) != running(before) || h.Status().Settings.Error == "" {
		t.Errorf("program %d became %d; settings error %q", running(before), running(after), h.Status().Settings.Error)
	}
}

func TestAPolicyThatExplodesLeavesTheOneInForce(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	before := s.pass(h)["app"]
	var rego strings.Builder
	rego.WriteString("package skep.policy\n\n")
	for i := range 30 {
		fmt.Fprintf(&rego, "v%d := {\"a\": v%d, \"b\": v%d}\n", i, i+1, i+1)
	}
	rego.WriteString("v30 := 1\n\ndeny contains \"x\" if v0.a.b.a == 2\n")
	heap := heapBytes()
	s.policy(rego.String(), v1alpha1.RunningUnload)
	after := s.pass(h)["app"]
	if running(after) != running(before) || !strings.Contains(h.Status().Settings.Error, "compiling it exceeded its ") {
		t.Errorf("program %d became %d; settings error %q", running(before), running(after), h.Status().Settings.Error)
	}
	if grown := heapBytes() - heap; grown > 64<<20 {
		t.Errorf("the heap of this process grew by %d MiB", grown>>20)
	}
	// One that explodes when it is asked denies, and takes nothing away.
	s.policy("package skep.policy\n\ndeny contains \"x\" if count([[i, j] | some i in numbers.range(1, 9999); some j in numbers.range(1, 9999)]) == 1\n",
		v1alpha1.RunningUnload)
	after = s.pass(h)["app"]
	if running(after) != running(before) {
		t.Errorf("program %d became %d", running(before), running(after))
	}
	wantConditions(t, after, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
	if grown := heapBytes() - heap; grown > 64<<20 {
		t.Errorf("the heap of this process grew by %d MiB", grown>>20)
	}
}

// heapBytes is how much the heap of this process holds.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestUnloadProtectionHoldsAMassDenialUntilItIsConfirmed(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	for i := range 3 {
		s.define(fmt.Sprintf("app-%d", i), ref)
	}
	h := s.open()
	s.pass(h)
	s.policy(denyAll, v1alpha1.RunningUnload)
	held := s.pass(h)
	for name, a := range held {
		if running(a) == 0 {
			t.Errorf("%s was unloaded", name)
		}
	}
	protection := h.Status().UnloadProtection
	if protection == nil || len(protection.Applications) != 3 {
		t.Fatalf("unload protection %+v", protection)
	}
	if _, err := h.Confirm("another revision"); err == nil {
		t.Error("another revision was confirmed")
	}
	if _, err := h.Confirm(protection.Revision); err != nil {
		t.Fatal(err)
	}
	for name, a := range s.pass(h) {
		if running(a) != 0 {
			t.Errorf("%s still runs", name)
		}
	}
}

func TestARevokedSignerUnloadsWithTheRegistryDown(t *testing.T) {
	s := newStage(t)
	s.define("one", s.push(first, "one:v1", "team-a"))
	s.define("two", s.push(second, "two:v1", "team-a", "team-b"))
	h := s.open()
	before := s.pass(h)
	s.down.Store(true)
	s.signers["team-a"].Spec.Revoked = true
	s.writeSigners()
	after := s.pass(h)
	if running(before["one"]) == 0 || running(after["one"]) != 0 {
		t.Errorf("one: program %d became %d", running(before["one"]), running(after["one"]))
	}
	if running(after["two"]) == 0 {
		t.Error("two has a second signer and was unloaded")
	}
}

// TestARevokedSignerUnloadsWhatThePolicyAllowedForItOnly has a second signer
// whose signature counts, and a policy that does not take it.
func TestARevokedSignerUnloadsWhatThePolicyAllowedForItOnly(t *testing.T) {
	for name, escape := range map[string]func(*stage){
		"as it is":      func(*stage) {},
		"by suspending": func(s *stage) { s.suspend("app") },
		"by a broken file": func(s *stage) {
			s.write(filepath.Join(s.defs, "app.yaml"), []byte("apiVersion: skep.dev/v1alpha1\nkind: ["))
		},
		"by an image of another hand": func(s *stage) { s.define("app", s.push(second, "other:v1", "team-b")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.policy(`package skep.policy

deny contains "not by team-a" if not "team-a" in {s.signer | some s in input.signatures}
`, v1alpha1.RunningKeep)
			s.define("app", s.push(first, "app:v1", "team-a", "team-b"))
			h := s.open()
			if app := s.pass(h)["app"]; running(app) == 0 {
				t.Fatalf("not loaded: error %q, conditions %+v", app.Error, app.Conditions)
			}
			escape(s)
			if running(s.pass(h)["app"]) == 0 {
				t.Fatal("gone before anybody was revoked")
			}
			s.down.Store(true)
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
			if app := s.pass(h)["app"]; running(app) != 0 {
				t.Errorf("still runs: %+v", app.Conditions)
			}
		})
	}
}

// wantsTwo is a policy that asks for two signers.
const wantsTwo = `package skep.policy

deny contains "fewer than two" if count({s.signer | some s in input.signatures}) < 2
`

// TestWhoMayPushKeepsNothingOfARevokedSigner has the registry say something else
// than when the application was sealed by two signers, whom the policy wants both.
func TestWhoMayPushKeepsNothingOfARevokedSigner(t *testing.T) {
	for name, attack := range map[string]func(s *stage, digest string){
		"as it is": func(*stage, string) {},
		"by taking the signatures off the tag": func(s *stage, digest string) {
			req, err := http.NewRequestWithContext(s.t.Context(), http.MethodDelete,
				"http://"+s.registry+"/v2/bpf/app/manifests/"+strings.Replace(digest, ":", "-", 1)+".sig", nil)
			if err != nil {
				s.t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				s.t.Fatal(err)
			}
			if _ = resp.Body.Close(); resp.StatusCode >= 300 {
				s.t.Fatal(resp.Status)
			}
		},
		"by a registry that is away": func(s *stage, _ string) { s.down.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.policy(wantsTwo, v1alpha1.RunningKeep)
			s.define("app", s.push(first, "app:v1", "team-a", "team-b"))
			h := s.open()
			app := s.pass(h)["app"]
			if running(app) == 0 {
				t.Fatalf("not loaded: error %q, conditions %+v", app.Error, app.Conditions)
			}
			attack(s, app.Digest)
			if err := h.Close(); err != nil {
				t.Fatal(err)
			}
			// What was known of the registry is lost.
			if err := os.RemoveAll(filepath.Join(s.state, "memory")); err != nil {
				t.Fatal(err)
			}
			h = s.open()
			if running(s.pass(h)["app"]) == 0 {
				t.Fatal("gone before anybody was revoked")
			}
			s.signers["team-a"].Spec.Revoked = true
			s.writeSigners()
			if app := s.pass(h)["app"]; running(app) != 0 {
				t.Errorf("still runs: %+v", app.Conditions)
			}
		})
	}
}

// TestASuspendedDefinitionKeepsNothingOfARevokedSigner has a definition that is
// allowed, and takes the place of nothing while it is suspended.
func TestASuspendedDefinitionKeepsNothingOfARevokedSigner(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	h := s.open()
	s.pass(h)
	s.define("app", s.push(second, "app:v2", "team-b"))
	s.suspend("app")
	if running(s.pass(h)["app"]) == 0 {
		t.Fatal("gone before anybody was revoked")
	}
	s.signers["team-a"].Spec.Revoked = true
	s.writeSigners()
	if app := s.pass(h)["app"]; running(app) != 0 {
		t.Errorf("still runs: %+v", app.Conditions)
	}
}

// TestASecondSignatureIsSeenSoon adds the signature that a policy misses.
func TestASecondSignatureIsSeenSoon(t *testing.T) {
	for name, c := range map[string]struct {
		// change is what happens after the signature was added.
		change func(*stage, *Host) *Host
		seen   metav1.ConditionStatus
	}{
		"nothing": {change: func(_ *stage, h *Host) *Host { return h }, seen: noThanks},
		"half a minute goes by": {seen: yesPlease, change: func(s *stage, h *Host) *Host {
			s.now = s.now.Add(30 * time.Second)
			return h
		}},
		"the definition changes": {seen: yesPlease, change: func(s *stage, h *Host) *Host {
			path := filepath.Join(s.defs, "app.yaml")
			body, err := os.ReadFile(path)
			if err != nil {
				s.t.Fatal(err)
			}
			s.write(path, bytes.Replace(body, []byte("metadata:\n"), []byte("metadata:\n  annotations: {reconcile.fluxcd.io/requestedAt: now}\n"), 1))
			return h
		}},
		"another process starts": {seen: yesPlease, change: func(s *stage, h *Host) *Host {
			if err := h.Close(); err != nil {
				s.t.Fatal(err)
			}
			return s.open()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.policy(wantsTwo, v1alpha1.RunningKeep)
			s.define("app", s.push(first, "app:v1", "team-a"))
			h := s.open()
			wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
			s.push(first, "app:v1", "team-b")
			h = c.change(s, h)
			wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: c.seen})
		})
	}
}

func TestAMovedTagIsReportedAndNotFollowed(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1", "team-a")
	s.define("app", ref)
	h := s.open()
	before := s.pass(h)["app"]
	s.push(second, "app:v1", "team-a")
	s.now = s.now.Add(tagCheckEvery)
	after := s.pass(h)["app"]
	if after.Digest != before.Digest || running(after) != running(before) {
		t.Errorf("digest %s became %s", before.Digest, after.Digest)
	}
	if len(after.Warnings) == 0 || after.Warnings[0].Rule != "resolve/tag" {
		t.Errorf("warnings %v", after.Warnings)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	again := s.pass(s.open())["app"]
	if again.Digest != before.Digest {
		t.Error("a restart followed the tag")
	}
	if len(again.Warnings) == 0 || again.Warnings[0].Rule != "resolve/tag" || again.Condition(v1alpha1.ConditionReady).Status != yesPlease {
		t.Errorf("a start does not look at once whether the tag moved: %v", again.Warnings)
	}
}

func TestADryRunLoadsNothing(t *testing.T) {
	s := newStage(t)
	s.define("app", s.push(first, "app:v1", "team-a"))
	app := s.pass(s.open(func(o *Options) { o.DryRun = true }))["app"]
	wantConditions(t, app, map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: yesPlease, v1alpha1.ConditionReady: metav1.ConditionUnknown})
	if said := app.Condition(v1alpha1.ConditionReady).Message; !strings.Contains(said, "would be loaded") {
		t.Errorf("says %q", said)
	}
	if s.pins() != 0 || app.Agent != nil {
		t.Error("something was loaded")
	}
}

func TestTwoHostsDoNotShareAState(t *testing.T) {
	s := newStage(t)
	s.open(func(o *Options) { o.DryRun = true })
	if _, err := New(t.Context(), Options{Source: s.defs, State: s.state, DryRun: true, Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("a second host opened the same state")
	}
}

func TestRunSeesChangesAndAnswersItsSocket(t *testing.T) {
	s := newStage(t)
	// A long interval: only the watcher can be quick.
	h := s.open(func(o *Options) { o.Interval, o.Now = time.Hour, nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := httptest.NewUnstartedServer(nil)
	go func() { done <- h.Run(ctx, server.Listener) }()
	base := "http://" + server.Listener.Addr().String()
	counted := []byte("spec:\n  maps: {counts: {metrics: {name: calls_total, type: Counter}}}\n")
	s.write(filepath.Join(s.defs, "app.yaml"), bytes.Replace(s.definition("app", s.push(first, "app:v1", "team-a")), []byte("spec:\n"), counted, 1))
	deadline := time.Now().Add(3 * time.Minute)
	for {
		if apps := h.Status().Applications; len(apps) == 1 && running(apps[0]) != 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not loaded: %+v", h.Status())
		}
		<-time.After(20 * time.Millisecond)
	}
	for _, c := range [][2]string{{"/healthz", "ok"}, {"/metrics", `skep_applications{allowed="True"} 1`},
		{"/metrics", `skep_map_calls_total{application="app",kind="ClusterBpfApplication",namespace=""} `}} {
		path, want := c[0], c[1]
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: %v, no %q in it", path, err, want)
		}
	}
	info, err := os.Stat(filepath.Join(s.state, SocketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if s.pins() == 0 {
		t.Error("the programs went with the host")
	}
}

// TestADefinitionSendsNodeModeNowhereInside: whoever may push to git names the
// registry, and node mode is a process of root.
func TestADefinitionSendsNodeModeNowhereInside(t *testing.T) {
	s := newStage(t)
	asked := atomic.Int32{}
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(inside.Close)
	address := strings.TrimPrefix(inside.URL, "http://")
	s.write(filepath.Join(s.defs, "inside.yaml"), s.definition("inside", address+"/bpf/x:v1"))
	h := s.open(func(o *Options) { o.AllowedRegistries = nil })
	a := s.pass(h)["inside"]
	// On a host, whoever reads it is the platform team.
	for _, want := range []string{"registry " + address + " is not allowed: 127.0.0.1 is a loopback address", "add --allowed-registry " + address} {
		if said := a.Condition(v1alpha1.ConditionReady).Message; !strings.Contains(said, want) {
			t.Errorf("it says %q, want %q in it", said, want)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the server inside was asked %d times", n)
	}
}

// TestADefinitionThatComesBackIsNew takes out what was denied, moves its tag, and puts it
// back; nothing is kept of what is gone.
func TestADefinitionThatComesBackIsNew(t *testing.T) {
	s := newStage(t)
	ref := s.push(first, "app:v1")
	s.define("app", ref)
	h := s.open()
	wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
	s.push(second, "app:v1", "team-a")
	wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionAllowed: noThanks})
	s.define("app", "")
	if left := s.pass(h); len(left) != 0 || len(h.tags) != 0 || len(h.catalog.places) != 0 {
		t.Errorf("of what is gone there are left: %v, %d tags, %d places", left, len(h.tags), len(h.catalog.places))
	}
	s.define("app", ref)
	wantConditions(t, s.pass(h)["app"], map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: yesPlease})
	if len(h.tags) != 1 || len(h.catalog.places) != 1 {
		t.Errorf("there are %d tags, %d places", len(h.tags), len(h.catalog.places))
	}
	s.define("app", "")
	if s.pass(h); len(h.tags) != 0 {
		t.Errorf("%d tags are left", len(h.tags))
	}
	if s.pass(h); len(h.catalog.places) != 0 {
		t.Errorf("%d places are left", len(h.catalog.places))
	}
}
