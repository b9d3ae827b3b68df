package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
)

// The applications of these tests, as a user writes them. The owner counts packets by XDP, and
// the borrower counts the same ones by TCX in the same map.
const (
	ownerOfAMap = `
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: owner}
spec:
  bytecode: {image: %s}
  programs: [{name: count_packets, attach: [{hook: xdp, interfaces: {names: [eth0]}}]}]
  maps: {counts: {sharedWith: [borrower]}}
  rollout: {steps: [100%%]}
`
	borrowerOfAMap = `
apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: borrower}
spec:
  bytecode: {image: %s}
  programs: [{name: count_ingress, attach: [{hook: tcx/ingress, interfaces: {names: [eth0]}}]}]
  maps: {counts: {from: {application: owner, map: counts}}}
  rollout: {steps: [100%%]}
`
)

// written is an application of a text with an image.
func (c *cluster) written(text, image string) *v1alpha1.ClusterBpfApplication {
	c.t.Helper()
	app := new(v1alpha1.ClusterBpfApplication)
	if err := yaml.UnmarshalStrict(fmt.Appendf(nil, text, image), app); err != nil {
		c.t.Fatal(err)
	}
	return app
}

// explains waits until a condition of an application has a status and a message with all words.
func (c *cluster) explains(app *v1alpha1.ClusterBpfApplication, kind string, want metav1.ConditionStatus, words ...string) {
	c.t.Helper()
	c.until(fmt.Sprintf("%s to say %q", app.Name, words), func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		var message string
		for _, condition := range app.Status.Conditions {
			if condition.Type == kind && condition.Status == want {
				message = condition.Message
			}
		}
		for _, word := range words {
			if !strings.Contains(message, word) {
				return fmt.Errorf("conditions %v, nodes %+v", app.Status.Conditions, app.Status.Nodes)
			}
		}
		return nil
	})
}

// sharing waits until so many applications have the map counts on a machine, all of them the
// same one, and so many count packets in it.
func (m *machine) sharing(applications, programs int) {
	m.c.t.Helper()
	m.c.until(fmt.Sprintf("%s to have one map in %d applications", m.name, applications), func() error {
		pins, ids := 0, map[ebpf.MapID]bool{}
		m.pinned(func(name string) {
			if filepath.Base(name) != "m-counts" {
				return
			}
			if one, err := ebpf.LoadPinnedMap(name, &ebpf.LoadPinOptions{ReadOnly: true}); err == nil {
				defer one.Close()
				if info, err := one.Info(); err == nil {
					id, _ := info.ID()
					pins, ids[id] = pins+1, true
				}
			}
		})
		if pins != applications || len(ids) != 1 {
			return fmt.Errorf("%d pins of maps %v", pins, ids)
		}
		return nil
	})
	// Each pin is counted anew.
	const packets = 100
	before, _ := m.counted()
	m.send(packets)
	m.c.until(m.name+" to count", func() error {
		if now, _ := m.counted(); now < before+uint64(packets*applications*programs) {
			return fmt.Errorf("%d counted, by %d programs in %d pins", now-before, programs, applications)
		}
		return nil
	})
}

// TestAMapIsSharedByApplicationsOfACluster: in both orders in which they come and go, on three
// nodes with the kernel of this machine.
func TestAMapIsSharedByApplicationsOfACluster(t *testing.T) {
	need.Kernel(t)
	c := newCluster(t)
	nodes, _ := c.begin(3)
	xdp, _ := c.Push("owner:v1", programs.Object("xdp_count"), "team-a")
	tcx, _ := c.Push("borrower:v1", programs.Object("tcx_count"), "team-a")
	all := func(check func(*machine)) {
		for _, m := range nodes {
			check(m)
		}
	}
	ready := func(apps ...*v1alpha1.ClusterBpfApplication) {
		t.Helper()
		for _, app := range apps {
			c.summary(app, "3/3")
			c.condition(app, v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded")
		}
	}
	remove := func(app *v1alpha1.ClusterBpfApplication) {
		t.Helper()
		if err := c.Delete(t.Context(), app); err != nil {
			t.Fatal(err)
		}
	}

	t.Log("the borrower comes first, and waits")
	owner, borrower := c.written(ownerOfAMap, xdp), c.written(borrowerOfAMap, tcx)
	c.create(borrower)
	c.explains(borrower, v1alpha1.ConditionReady, metav1.ConditionFalse, "map counts", "application owner")
	c.create(owner)
	ready(owner, borrower)
	all(func(m *machine) { m.sharing(2, 2) })

	t.Log("the borrower goes first: the owner keeps its map")
	remove(borrower)
	all(func(m *machine) { m.sharing(1, 1) })
	ready(owner)
	remove(owner)
	all((*machine).clean)

	t.Log("the owner comes first and shares its map with nobody: the borrower says what is missing")
	owner, borrower = c.written(ownerOfAMap, xdp), c.written(borrowerOfAMap, tcx)
	owner.Spec.Maps = nil
	c.create(owner)
	ready(owner)
	c.create(borrower)
	c.explains(borrower, v1alpha1.ConditionReady, metav1.ConditionFalse, "application owner does not share its map counts with borrower",
		"add borrower to spec.maps.counts.sharedWith of owner")
	c.change(owner, func() { owner.Spec.Maps = map[string]v1alpha1.Map{"counts": {SharedWith: []string{"borrower"}}} })
	ready(owner, borrower)
	all(func(m *machine) { m.sharing(2, 2) })

	t.Log("the owner goes first: the borrower keeps the map, and says so")
	remove(owner)
	c.explains(borrower, v1alpha1.ConditionDeployed, metav1.ConditionTrue, "application owner", "is gone")
	all(func(m *machine) { m.sharing(1, 1) })
	remove(borrower)
	all((*machine).clean)
}
