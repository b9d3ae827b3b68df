package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/series"
)

// freePort is one of loopback that nobody listens at.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// asked is the status of a page and what is on it; 0 where nobody answers.
func asked(t *testing.T, address string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(body)
}

// failing are the checks that a page of checks says fail.
func failing(page string) []string {
	var names []string
	for line := range strings.Lines(page) {
		if rest, found := strings.CutPrefix(line, "[-]"); found {
			name, _, _ := strings.Cut(rest, " ")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func TestReadinessTellsTheTruth(t *testing.T) {
	c := ownCluster(t)
	blind := rest.CopyConfig(c.plane.Config)
	blind.Impersonate.UserName = "blind"
	_, err := controller.New(t.Context(), controller.Options{Config: blind, Namespace: "default", Cache: t.TempDir(), Metrics: prometheus.NewRegistry()})
	if err == nil || !strings.Contains(err.Error(), "default/skep-seal") {
		t.Errorf("without a sealing key it starts, or does not say what is missing: %v", err)
	}

	health, profiles := "127.0.0.1:"+strconv.Itoa(freePort(t)), freePort(t)
	c.control(func(o *controller.Options) {
		o.Config, o.HealthAddress, o.PprofPort = blind, health, profiles
		o.Admission.Host, o.Admission.Port, o.Admission.Names = "127.0.0.1", freePort(t), []string{"127.0.0.1"}
	})
	is := func(path string, want int, checks ...string) {
		t.Helper()
		c.until(fmt.Sprintf("%s to say %d %v", path, want, checks), func() error {
			code, page := asked(t, health+path+"?verbose")
			if code != want || !slices.Equal(failing(page), checks) {
				return fmt.Errorf("%d %s", code, page)
			}
			return nil
		})
	}
	is("/readyz", http.StatusInternalServerError, "policies", "webhook")
	is("/healthz", http.StatusOK)
	for host, want := range map[string]int{"127.0.0.1": http.StatusOK, "127.0.0.2": 0} {
		if code, _ := asked(t, fmt.Sprintf("%s:%d/debug/pprof/", host, profiles)); code != want {
			t.Errorf("profiles at %s: %d", host, code)
		}
	}

	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "blind"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "blind"}}}
	c.create(binding)
	is("/readyz", http.StatusOK)

	c.crash("kube-apiserver")
	if err := c.List(t.Context(), &corev1.NodeList{}); err == nil {
		t.Fatal("the API server answers still")
	}
	is("/readyz", http.StatusOK)
	is("/healthz", http.StatusOK)
}

func TestTheControllerCountsWhatItDoesAndForgetsWhatIsGone(t *testing.T) {
	c, registry := newCluster(t), prometheus.NewRegistry()
	c.control(func(o *controller.Options) { o.Metrics = registry })
	c.node("one", nil)
	c.create(c.Signer("team-a"))
	signed, _ := c.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	unsigned, _ := c.Push("unsigned:v1", programs.Object("xdp_count"))
	app, denied := application("app", signed), application("denied", unsigned)
	denied.Spec.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{
		{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"eth0"}}}}}}
	c.create(app, denied)
	c.condition(app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Progressing")
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
	c.condition(denied, v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied")

	const loaded = `skep_application_nodes{kind="ClusterBpfApplication",name="app",namespace="",state="loaded"}`
	is := func(what string, want map[string]float64) {
		t.Helper()
		c.until(what, func() error {
			var amiss []error
			all := series.Of(t, registry)
			for name, n := range want {
				if got, there := all[name]; got != n || !there {
					amiss = append(amiss, fmt.Errorf("%s is %v, want %v", name, got, n))
				}
			}
			return errors.Join(amiss...)
		})
	}
	is("what runs to be counted", map[string]float64{
		loaded: 1, `skep_applications{allowed="True"}`: 1, `skep_applications{allowed="False"}`: 1, `skep_denials{rule="baseline/signed"}`: 1,
		`skep_intents{state="live"}`: 1, `skep_intents{state="tombstone"}`: 0, `skep_intents_sealed_total{action="seal"}`: 1, `skep_unload_protected_applications`: 0,
	})
	all := series.Of(t, registry)
	for _, name := range []string{
		`skep_signature_lookups_total{source="registry"}`, `skep_signature_lookups_total{source="memory"}`, `skep_registry_requests_total{code="200"}`,
		`skep_evaluation_cache_lookups_total{cache="facts",result="hit"}`, `skep_evaluation_cache_lookups_total{cache="facts",result="miss"}`,
		`skep_verdicts_total{verdict="allowed"}`, `skep_verdicts_total{verdict="denied"}`,
	} {
		if all[name] == 0 {
			t.Errorf("%s counts nothing", name)
		}
	}
	for _, o := range []client.Object{app, denied} {
		if err := c.Delete(context.WithoutCancel(t.Context()), o); err != nil {
			t.Fatal(err)
		}
	}
	is("what is gone to be forgotten", map[string]float64{`skep_intents{state="live"}`: 0, `skep_intents{state="tombstone"}`: 1,
		`skep_applications{allowed="True"}`: 0, `skep_applications{allowed="False"}`: 0})
	c.until("no series of the applications", func() error {
		for name := range series.Of(t, registry) {
			if strings.HasPrefix(name, "skep_application_nodes{") || strings.HasPrefix(name, "skep_denials{") {
				return fmt.Errorf("%s is left", name)
			}
		}
		return nil
	})
}
