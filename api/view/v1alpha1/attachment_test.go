package v1alpha1_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

// TestNamesOfAttachmentsTellTheirNode, differ and stay, for names of any length.
func TestNamesOfAttachmentsTellTheirNode(t *testing.T) {
	long := strings.Repeat("a-", 126) + "a"
	for _, node := range []string{"n", "node-1.example.com", long, strings.Repeat(strings.Repeat("n", 62)+".", 4) + "n"} {
		n := view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: node}}
		for _, id := range []v1alpha1.Identity{
			{Kind: v1alpha1.KindBpfApplication, Namespace: "a", Name: "app"}, {Kind: v1alpha1.KindBpfApplication, Namespace: "b", Name: "app"},
			{Kind: v1alpha1.KindClusterBpfApplication, Name: long},
		} {
			n.Applications = append(n.Applications, view.Application{Identity: id, Attachments: []view.Attachment{
				{Program: "p", Hook: "xdp", Target: view.Target{Interface: "eth0"}}, {Program: "p", Hook: "xdp", Target: view.Target{Interface: "eth0"}},
				{Program: "p", Hook: "xdp", Target: view.Target{Interface: "eth1"}},
			}})
		}
		names := map[string]bool{}
		for _, a := range view.Attachments(n) {
			if names[a.Name] || !view.IsOn(a.Name, node) || view.IsOn(a.Name, "other") || len(validation.IsDNS1123Subdomain(a.Name)) > 0 {
				t.Errorf("node %s: %s", node, a.Name)
			}
			names[a.Name] = true
		}
		again := view.Attachments(n)
		if len(names) != 9 || !names[again[0].Name] {
			t.Errorf("node %s: %v", node, names)
		}
	}
}
