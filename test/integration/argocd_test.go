package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/argocd"
)

var update = flag.Bool("update", false, "write the objects anew that Argo CD's health is tested with")

// customizations has the scripts for Argo CD, and objects of every state that they tell apart.
const customizations = "../../examples/argocd/resource_customizations/skep.dev"

// script returns one of the scripts for Argo CD.
func (c *cluster) script(name string) string {
	c.t.Helper()
	body, err := os.ReadFile(filepath.Join(customizations, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(body)
}

// live is an object as the API server has it.
func (c *cluster) live(o client.Object) *unstructured.Unstructured {
	c.t.Helper()
	kind, err := apiutil.GVKForObject(o, c.Scheme())
	if err != nil {
		c.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(o), u); err != nil {
		c.t.Fatal(err)
	}
	return u
}

// argoShows waits until an object is in a state, by its name in testdata, and has Argo CD's health.
func (c *cluster) argoShows(state string, o client.Object, want string) {
	c.t.Helper()
	script := c.script("_/health.lua")
	var u *unstructured.Unstructured
	c.until(fmt.Sprintf("the health %s of %s", want, state), func() error {
		u = c.live(o)
		got, err := argocd.HealthOf(script, u)
		if err != nil {
			c.t.Fatal(err)
		}
		if got.Status != want || got.Message == "" {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	if *update {
		c.keepState(state, u)
	}
}

// argoDoes does an action to an application, as Argo CD's API server does.
func (c *cluster) argoDoes(action string, app client.Object) {
	c.t.Helper()
	u := c.live(app)
	offered, err := argocd.ActionsOf(c.script("ClusterBpfApplication/actions/discovery.lua"), u)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, a := range offered {
		if a.Name == action && a.Disabled {
			c.t.Fatalf("action %s is disabled: %v", action, u.Object["status"])
		}
	}
	patch, err := argocd.PatchOf(c.script("ClusterBpfApplication/actions/"+action+"/action.lua"), u)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.Patch(c.t.Context(), app, client.RawPatch(types.MergePatchType, patch)); err != nil {
		c.t.Fatal(err)
	}
}

// keepState writes an object to testdata, without what another run has otherwise.
func (c *cluster) keepState(state string, u *unstructured.Unstructured) {
	c.t.Helper()
	u.SetManagedFields(nil)
	u.SetResourceVersion("")
	body, err := json.Marshal(u)
	if err != nil {
		c.t.Fatal(err)
	}
	for pattern, instead := range map[string]string{
		`127\.0\.0\.1:[0-9]+`:                           "registry.example.com",
		`"20[0-9-]+T[0-9:.]+Z"`:                         `"2026-01-02T03:04:05Z"`,
		`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`:     "00000000-0000-4000-8000-000000000000",
		`("serial":|"skep.dev/rollout-resume":")[0-9]+`: "${1}1767323045000",
	} {
		body = regexp.MustCompile(pattern).ReplaceAll(body, []byte(instead))
	}
	if body, err = yaml.JSONToYAML(body); err != nil {
		c.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(customizations, "_/testdata", state+".yaml"), body, 0o644); err != nil {
		c.t.Fatal(err)
	}
}

func TestArgoCDShowsRolloutsAndSteersThem(t *testing.T) {
	r := newRollout(t, intstr.FromInt32(1))
	r.to(func(s *v1alpha1.BpfApplicationSpec) { s.Rollout.Pause = &metav1.Duration{Duration: time.Hour} })
	r.argoShows("healthy", r.app, "Healthy")

	r.argoDoes("suspend", r.app)
	r.argoShows("suspended", r.app, "Suspended")
	r.argoDoes("resume", r.app)
	r.argoShows("healthy", r.app, "Healthy")

	r.to(toImage(r.second))
	r.reaches(r.second, 1)
	r.condition(r.app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "RolloutProgressing")
	r.argoShows("progressing", r.app, "Progressing")
	r.loaded(r.nodes[0])
	r.argoShows("rollout-paused", r.app, "Suspended")
	r.argoDoes("resume", r.app)
	r.reaches(r.second, 5)

	r.answers(r.nodes[1], r.app, v1alpha1.NodeFailed, "R1 invalid mem access 'scalar'")
	r.argoShows("degraded-by-node", r.app, "Degraded")
	r.argoDoes("undo", r.app)
	r.reaches(r.first, 5)
	r.condition(r.app, v1alpha1.ConditionStalled, metav1.ConditionTrue, "RolloutRolledBack")
	r.argoShows("rolled-back", r.app, "Degraded")
	r.argoDoes("resume", r.app)
	r.reaches(r.second, 1)
}

// TestArgoCDWaitsForTheEndOfASuspendedApplication has a signer revoked, which unloads what runs of a suspended application, too.
func TestArgoCDWaitsForTheEndOfASuspendedApplication(t *testing.T) {
	r := newRollout(t, intstr.FromInt32(1))
	r.argoDoes("suspend", r.app)
	r.condition(r.app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Suspended")
	signer := r.Signer("team-a")
	r.change(signer, func() { signer.Spec.Revoked = true })
	r.condition(r.app, v1alpha1.ConditionReconciling, metav1.ConditionTrue, "Unloading")
	r.argoShows("suspended-unloading", r.app, "Progressing")
	for _, node := range r.nodes {
		r.answers(node, r.app, v1alpha1.NodeRemoved, "")
	}
	r.argoShows("suspended-unloaded", r.app, "Suspended")
}

func TestArgoCDShowsWhatIsDenied(t *testing.T) {
	c := newCluster(t)
	c.control()
	signer := c.Signer("team-a")
	valid := clusterPolicy("no-xdp", `deny contains "xdp is not for everybody" if input.application.spec.programs[_].attach[_].hook == "xdp"`, "")
	broken := clusterPolicy("broken", `deny contains undefined_function(1) if true`, "")
	c.create(signer, valid)
	unsigned, _ := c.Push("app:v1", programs.Object("tracepoint_count"))
	app := application("app", unsigned)
	c.create(app)
	c.argoShows("degraded-by-denial", app, "Degraded")
	c.argoShows("signer", signer, "Healthy")
	c.argoShows("policy", valid, "Healthy")
	c.create(broken)
	c.argoShows("policy-broken", broken, "Degraded")
}
