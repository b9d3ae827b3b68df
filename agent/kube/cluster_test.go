package kube_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/need"
)

// relabel changes the labels of the world's Node.
func (w *world) relabel(labels map[string]string) {
	w.t.Helper()
	n := &corev1.Node{}
	if err := w.admin.Get(w.t.Context(), client.ObjectKey{Name: w.name}, n); err != nil {
		w.t.Fatal(err)
	}
	n.Labels = labels
	if err := w.admin.Update(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
}

// quiet waits until nothing was written for a while, and returns how many
// writes there were.
func (w *world) quiet() int64 {
	w.t.Helper()
	return settled(w.t, w.writes.Load)
}

// settled waits until a count has not changed for a second, and returns it.
func settled(t testing.TB, count func() int64) int64 {
	t.Helper()
	last, since := count(), time.Now()
	until(t, "nothing more to happen", func() bool {
		if now := count(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
	return last
}

func TestAnIntentIsLoadedAndReportedAndATombstoneUnloadsIt(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	a, _ := w.start()
	app := w.payload("app")
	w.apply(app)
	is := w.awaits(app, v1alpha1.NodeLoaded)
	if is.Revision == "" || is.Kind != app.Application.Kind || is.Name != "app" || is.Message != "" || !w.pinned(app) {
		t.Errorf("reported %+v, pinned: %v", is, w.pinned(app))
	}
	grave := w.tombstone(app)
	w.apply(grave)
	if is := w.awaits(grave, v1alpha1.NodeRemoved); is.Revision != "" || w.pinned(app) {
		t.Errorf("reported %+v, pinned: %v", is, w.pinned(app))
	}
	if err := w.admin.Delete(t.Context(), &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: app.UID}}); err != nil {
		t.Fatal(err)
	}
	until(t, "the acknowledgement to go with the tombstone", func() bool { return w.reported(app).UID == "" })
	until(t, "the node to forget it", func() bool {
		kept, err := filepath.Glob(filepath.Join(w.dir, "state", "intents", "*"))
		return err == nil && len(kept) == 0 && len(a.Status()) == 0
	})
}

func TestOnlyTheSealCounts(t *testing.T) {
	need.Kernel(t)
	same := func(e intent.Envelope) intent.Envelope { return e }
	for sentence, c := range map[string]struct {
		change func(w *world, p *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope)
		why    string
	}{
		"the payload was altered": {func(w *world, _ *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope) {
			return w.sealer, altered
		}, "seal"},
		"somebody else sealed it": {func(w *world, _ *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope) {
			return seals.New(w.t).Sealer, same
		}, "seal"},
		"there is no envelope in it": {func(w *world, _ *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope) {
			return w.sealer, func(intent.Envelope) intent.Envelope { return []byte("{}") }
		}, "seal"},
		"its format is a later one": {func(w *world, p *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope) {
			return w.sealer, func(intent.Envelope) intent.Envelope { return seals.Later(w.t, w.sealer, *p) }
		}, "format"},
		"it is an old one": {func(w *world, p *intent.Payload) (*intent.Sealer, func(intent.Envelope) intent.Envelope) {
			p.Serial -= 10
			return w.sealer, same
		}, "older"},
	} {
		t.Run(sentence, func(t *testing.T) {
			w := newWorld(t, plane)
			a, _ := w.start()
			good := w.payload("good")
			good.Maps = map[string]v1alpha1.Map{"counts": {Metrics: &v1alpha1.MapMetrics{Name: "calls_total", Type: v1alpha1.MapCounter}}}
			w.apply(good)
			before := w.awaits(good, v1alpha1.NodeLoaded)
			bad := w.payload("good")
			bad.Programs[0].Attach[0].Tracepoint = "sys_exit"
			by, change := c.change(w, &bad)
			w.applyBy(by, bad, change)
			until(t, "it to be told", func() bool { return w.log.times("reason="+c.why) == 1 })
			// What comes after shows that it was looked at and left alone.
			next := w.payload("next")
			w.apply(next)
			w.awaits(next, v1alpha1.NodeLoaded)
			if diff := cmp.Diff(before, w.reported(good)); diff != "" || !w.pinned(good) {
				t.Errorf("pinned: %v, reported (-before +now):\n%s", w.pinned(good), diff)
			}
			if n := w.log.times("reason=" + c.why); n != 1 {
				t.Errorf("logged %d times", n)
			}
			probed(t, a, "/metrics", http.StatusOK, fmt.Sprintf("skep_agent_intents_total{result=%q} 1\n", c.why))
			probed(t, a, "/metrics", http.StatusOK, `skep_map_calls_total{application="good",kind="ClusterBpfApplication",namespace=""} `)
		})
	}
}

// TestASeriesThatContradictsAnotherHidesNone has two applications that the gate of an older controller let have a counter and a gauge of one name.
func TestASeriesThatContradictsAnotherHidesNone(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	a, _ := w.start()
	for name, kind := range map[string]v1alpha1.MapMetricsType{"bad": v1alpha1.MapGauge, "good": v1alpha1.MapCounter, "other": v1alpha1.MapGauge} {
		p := w.payload(name)
		p.Maps = map[string]v1alpha1.Map{"counts": {Metrics: &v1alpha1.MapMetrics{Name: "calls_total", Type: kind}}}
		if name == "other" {
			p.Maps["counts"].Metrics.Name = "calls"
		}
		w.apply(p)
		w.awaits(p, v1alpha1.NodeLoaded)
	}
	probed(t, a, "/metrics", http.StatusOK, `skep_map_calls{application="other",kind="ClusterBpfApplication",namespace=""} `)
	probed(t, a, "/metrics", http.StatusOK, `promhttp_metric_handler_errors_total{cause="gathering"} `)
	until(t, "it to be logged", func() bool { return w.log.times("some metrics are left out of scrapes") > 0 })
}

// altered changes the sealed bytes and leaves the envelope readable.
func altered(e intent.Envelope) intent.Envelope {
	var env map[string]any
	if err := json.Unmarshal(e, &env); err != nil {
		return nil
	}
	// The sixth group of base64 letters is in the middle of a name.
	payload := []byte(env["payload"].(string))
	payload[24] ^= 1
	env["payload"] = string(payload)
	body, err := json.Marshal(env)
	if err != nil {
		return nil
	}
	return body
}

func TestTheNodesLabelsDecideAlsoWhenTheyChange(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.start()
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	w.relabel(nil)
	if is := w.awaits(app, v1alpha1.NodeNotSelected); is.Revision != "" || w.pinned(app) {
		t.Errorf("reported %+v, pinned: %v", is, w.pinned(app))
	}
	w.relabel(map[string]string{"role": "edge", "other": "x"})
	w.awaits(app, v1alpha1.NodeLoaded)
	if !w.pinned(app) {
		t.Error("nothing is pinned")
	}
}

func TestEachChangeIsWrittenOnce(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	_, stop := w.start()
	until(t, "a report", func() bool { return w.report() != nil })
	if n := w.quiet(); n != 1 {
		t.Errorf("%d writes at the start, want the one that makes it", n)
	}
	app, other := w.payload("app"), w.payload("other")
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"a new application", func() { w.apply(app); w.awaits(app, v1alpha1.NodeLoaded) }},
		{"the next", func() { w.apply(other); w.awaits(other, v1alpha1.NodeLoaded) }},
		{"a tombstone", func() { g := w.tombstone(app); w.apply(g); w.awaits(g, v1alpha1.NodeRemoved) }},
		{"labels", func() { w.relabel(nil); w.awaits(other, v1alpha1.NodeNotSelected) }},
		{"somebody's forgery", func() {
			w.forge()
			until(t, "it to be fixed", func() bool { return w.report().Status.Agent.Version == "test" })
		}},
	} {
		before := w.quiet()
		c.do()
		if n := w.quiet() - before; n != 1 {
			t.Errorf("%s: %d writes", c.what, n)
		}
	}
	before := w.quiet()
	w.relabel(map[string]string{"no": "matter"})
	stop()
	a, _ := w.start()
	until(t, "the new agent's turn", func() bool { return len(a.Status()) == 2 })
	if n := w.quiet() - before; n != 0 {
		t.Errorf("%d writes where nothing changed", n)
	}
}

// forge writes into the report what is not so.
func (w *world) forge() {
	w.t.Helper()
	n := w.report()
	n.Status.Agent.Version = "forged"
	n.Status.Kernel.Lockdown = "whatever"
	if err := w.admin.Update(w.t.Context(), n); err != nil {
		w.t.Fatal(err)
	}
}

func TestTheReportIsTheNodesAndTellsOfTheKernel(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.start(func(o *kube.Options) { o.Inventory = nil })
	until(t, "a report", func() bool { return w.report() != nil })
	n := w.report()
	var self corev1.Node
	if err := w.admin.Get(t.Context(), client.ObjectKey{Name: w.name}, &self); err != nil {
		t.Fatal(err)
	}
	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.name, UID: self.UID}}
	if diff := cmp.Diff(want, n.OwnerReferences); diff != "" {
		t.Error(diff)
	}
	k := n.Status.Kernel
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if k.Release != strings.TrimSpace(string(release)) || k.Architecture == "" {
		t.Errorf("kernel %+v", k)
	}
	for _, hook := range []string{"xdp", "raw_tp"} {
		if !strings.Contains(strings.Join(k.Hooks, " "), hook) {
			t.Errorf("hooks %v lack %s", k.Hooks, hook)
		}
	}
	if len(k.MapTypes) < 10 || k.MapTypes[0] != "Hash" {
		t.Errorf("map types %v", k.MapTypes)
	}
	t.Logf("profile: %+v, counts: %+v", k, n.Status.Counts)
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	if c := w.report().Status.Counts; c.Loaded != 1 || c.Programs < 1 || c.Programs == c.Unmanaged {
		t.Errorf("counts %+v", c)
	}
}

// TestAReportIsBoundedWhoeverWritesIt: an agent that was taken over may write
// its own node's.
func TestAReportIsBoundedWhoeverWritesIt(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	words := func(n, length int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("%0*d", length, i))
		}
		return all
	}
	one := v1alpha1.NodeApplication{Kind: v1alpha1.KindBpfApplication, Namespace: "ns", Name: "app", UID: "uid", Serial: 1, State: v1alpha1.NodeLoaded}
	for sentence, forge := range map[string]func(*v1alpha1.BpfNodeStatus){
		"too many applications": func(s *v1alpha1.BpfNodeStatus) {
			for _, uid := range words(513, 5) {
				one.UID = uid
				s.Applications = append(s.Applications, one)
			}
		},
		"an application of no kind": func(s *v1alpha1.BpfNodeStatus) {
			other := one
			other.Kind = "Other"
			s.Applications = append(s.Applications, other)
		},
		"a name that is too long": func(s *v1alpha1.BpfNodeStatus) {
			other := one
			other.Name = strings.Repeat("n", 254)
			s.Applications = append(s.Applications, other)
		},
		"too many in short":      func(s *v1alpha1.BpfNodeStatus) { s.Loaded = words(1025, 5) },
		"too many hooks":         func(s *v1alpha1.BpfNodeStatus) { s.Kernel.Hooks = words(129, 5) },
		"a hook that is no name": func(s *v1alpha1.BpfNodeStatus) { s.Kernel.Hooks = words(1, 65) },
		"too many map types":     func(s *v1alpha1.BpfNodeStatus) { s.Kernel.MapTypes = words(129, 5) },
		"too many modules":       func(s *v1alpha1.BpfNodeStatus) { s.Kernel.LSMs = words(65, 5) },
		"a long release":         func(s *v1alpha1.BpfNodeStatus) { s.Kernel.Release = strings.Repeat("6", 65) },
	} {
		t.Run(sentence, func(t *testing.T) {
			n := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: w.name}}
			forge(&n.Status)
			if err := w.admin.Create(t.Context(), n, client.DryRunAll); !apierrors.IsInvalid(err) {
				t.Errorf("Create = %v", err)
			}
		})
	}
}

// TestTheAgentNeedsNoMoreRightsThanItsPageSays: docs/agent.md has the list.
func TestTheAgentNeedsNoMoreRightsThanItsPageSays(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.create(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"bpfintents"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{v1alpha1.Group}, Resources: []string{"bpfnodes"}, Verbs: []string{"list", "watch", "create", "patch"}},
	}})
	w.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: w.name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: w.name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: w.name}}})
	w.config.Impersonate = rest.ImpersonationConfig{UserName: w.name}
	w.start()
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	// The API server takes a moment to know the roles.
	before := w.log.times("forbidden")
	w.relabel(nil)
	w.awaits(app, v1alpha1.NodeNotSelected)
	if n := w.log.times("forbidden") - before; n != 0 {
		t.Errorf("forbidden %d times", n)
	}
}

func TestWhatTheKernelRefusesIsReportedInItsWordsAndMendsItself(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.start()
	app := w.payload("app")
	app.Programs[0].Attach[0].Tracepoint = "no_such_tracepoint"
	w.apply(app)
	if is := w.awaits(app, v1alpha1.NodeFailed); !strings.Contains(is.Message, "no_such_tracepoint") {
		t.Errorf("reported %+v", is)
	}
	if c := w.report().Status.Counts; c.Failed != 1 || c.Loaded != 0 {
		t.Errorf("counts %+v", c)
	}
	if !meta.IsStatusConditionFalse(w.report().Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("conditions are %+v", w.report().Status.Conditions)
	}
	good := w.payload("app")
	w.apply(good)
	w.awaits(good, v1alpha1.NodeLoaded)
	if !meta.IsStatusConditionTrue(w.report().Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("conditions are %+v", w.report().Status.Conditions)
	}
}

func TestKeysRotateWithoutARestart(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	w.start()
	before := w.payload("before")
	w.apply(before)
	w.awaits(before, v1alpha1.NodeLoaded)
	next := seals.New(t).Sealer
	early := w.payload("early")
	w.applyBy(next, early, func(e intent.Envelope) intent.Envelope { return e })
	until(t, "it to be refused", func() bool { return w.log.times("reason=seal") == 1 })
	w.trust(w.sealer, next)
	w.awaits(early, v1alpha1.NodeLoaded)
	// What is no key leaves those active.
	w.trust()
	until(t, "it to be told", func() bool { return w.log.times("cannot read the keys") == 1 })
	w.trust(next)
	until(t, "the keys to change", func() bool { return w.log.times("the keys that count changed") == 2 })
	w.apply(w.payload("late"))
	until(t, "the old key to be refused", func() bool { return w.log.times("reason=seal") == 2 })
	if is := w.reported(before); is.State != v1alpha1.NodeLoaded {
		t.Errorf("what was loaded before: %+v", is)
	}
}

func TestAbsenceUnloadsNothingAndTheNodeComesBackAlone(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	road := w.road()
	running, stop := w.start()
	one, two := w.payload("one"), w.payload("two")
	away := w.payload("away")
	away.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "core"}}
	for _, p := range []intent.Payload{one, two, away} {
		w.apply(p)
	}
	w.awaits(one, v1alpha1.NodeLoaded)
	w.awaits(two, v1alpha1.NodeLoaded)
	w.awaits(away, v1alpha1.NodeNotSelected)
	bothRun := func(when string) {
		t.Helper()
		if !w.pinned(one) || !w.pinned(two) || w.pinned(away) {
			t.Errorf("%s: pinned %v, %v, %v", when, w.pinned(one), w.pinned(two), w.pinned(away))
		}
	}

	if err := w.admin.Delete(t.Context(), &v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: one.UID}}); err != nil {
		t.Fatal(err)
	}
	// What comes after shows that the deletion was seen.
	three := w.payload("three")
	w.apply(three)
	w.awaits(three, v1alpha1.NodeLoaded)
	bothRun("its intent was deleted")

	if err := plane.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the CRDs to be missed", func() bool { return w.log.times("cannot watch") >= 2 })
	bothRun("every CRD was deleted")
	if _, err := envtest.InstallCRDs(plane.Config, controlplane.CRDInstall()); err != nil {
		t.Fatal(err)
	}
	until(t, "a new report", func() bool { return w.reported(one).State == v1alpha1.NodeLoaded })
	bothRun("the CRDs came back without an intent")

	road.close()
	w.mirror.Close()
	until(t, "the API server to be missed", func() bool { return w.log.times("connection refused") >= 3 })
	bothRun("the API server is out of reach")
	probed(t, running, "/healthz", http.StatusOK, "ok")
	probed(t, running, "/readyz", http.StatusOK, "ok")
	stop()
	bothRun("the agent stopped")
	if err := os.RemoveAll(w.bpffs); err != nil {
		t.Fatal(err)
	}
	a, _ := w.start()
	until(t, "the programs to come back", func() bool { return w.pinned(one) && w.pinned(two) })
	until(t, "every application's turn", func() bool { return len(a.Status()) == 4 })
	bothRun("the node came back alone")
	probed(t, a, "/readyz", http.StatusOK, "ok")
}

// probed waits until a probe of the agent answers so.
func probed(t *testing.T, a *kube.Agent, path string, code int, says string) {
	t.Helper()
	until(t, path+" to say "+says, func() bool {
		w := httptest.NewRecorder()
		a.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		return w.Code == code && strings.Contains(w.Body.String(), says)
	})
}

func TestAnAgentsMetricsAreForThoseWhoMayReadThem(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.name + "-metrics"}, Rules: []rbacv1.PolicyRule{
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	}}
	w.create(role)
	w.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: w.name + "-reader"}}})
	token := func(name string) string {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: w.name + name}}
		w.create(account)
		request := &authenticationv1.TokenRequest{}
		if err := w.admin.SubResource("token").Create(t.Context(), account, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	reader, other := token("-reader"), token("-other")
	a, _ := w.start(func(o *kube.Options) { o.InsecureMetrics = false })
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = a.Serve(t.Context(), l) }()
	scraper := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer scraper.CloseIdleConnections()
	get := func(path, token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String()+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := scraper.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	until(t, "the reader to be let in", func() bool { return get("/metrics", reader) == http.StatusOK })
	until(t, "probes to be answered to anybody", func() bool { return get("/readyz", "") == http.StatusOK && get("/healthz", "") == http.StatusOK })
	for name, want := range map[string]int{"": http.StatusUnauthorized, "x": http.StatusUnauthorized, other: http.StatusForbidden} {
		if got := get("/metrics", name); got != want {
			t.Errorf("a token of %d bytes: %d, want %d", len(name), got, want)
		}
	}
}

func TestANodeWhoseLabelsAreNotKnownLoadsNothing(t *testing.T) {
	need.Kernel(t)
	w := newWorld(t, plane)
	_, stop := w.start()
	app := w.payload("app")
	w.apply(app)
	w.awaits(app, v1alpha1.NodeLoaded)
	stop()
	if err := os.RemoveAll(w.bpffs); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(w.dir, "state", "node.json")
	for sentence, damage := range map[string]func() error{
		"the file is torn": func() error { return os.Truncate(state, 5) },
		"they are those of another node": func() error {
			body, err := os.ReadFile(state)
			if err != nil {
				return err
			}
			return os.WriteFile(state, bytes.ReplaceAll(body, []byte(w.name), []byte("other")), 0o600)
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			a, stop := w.start(func(o *kube.Options) { o.Config.Host = "https://127.0.0.1:1" })
			settled(t, func() int64 { return int64(w.log.times("msg=")) })
			probed(t, a, "/readyz", http.StatusServiceUnavailable, "its labels are not on disk")
			probed(t, a, "/healthz", http.StatusOK, "ok")
			if w.pinned(app) {
				t.Error("it is loaded")
			}
			stop()
			w.config.Host = plane.Config.Host
			_, stop = w.start()
			until(t, "the labels to be known", func() bool { return w.pinned(app) })
			stop()
			if err := os.RemoveAll(w.bpffs); err != nil {
				t.Fatal(err)
			}
		})
	}
}
