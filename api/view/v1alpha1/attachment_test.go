package v1alpha1_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestWhatFailedIsListedWithoutAnAttachment: a program that the kernel rejected is attached nowhere, and its application has a row that says why.
func TestWhatFailedIsListedWithoutAnAttachment(t *testing.T) {
	id := func(name string) v1alpha1.Identity {
		return v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: name}
	}
	attached := []view.Attachment{{Program: "p", Hook: "xdp", State: "Attached"}}
	n := view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Applications: []view.Application{
		{Identity: id("rejected"), State: v1alpha1.NodeFailed, Message: "the verifier rejects it"},
		{Identity: id("lacking"), State: v1alpha1.NodeUnsupported, Message: "the kernel lacks it"},
		{Identity: id("coming"), State: v1alpha1.NodePending, Message: "it is loaded"},
		{Identity: id("keeps"), State: v1alpha1.NodeFailed, Message: "the previous version runs on", Attachments: attached},
		{Identity: id("runs"), State: v1alpha1.NodeLoaded, Attachments: attached},
		{Identity: id("bare"), State: v1alpha1.NodeLoaded},
		{Identity: id("elsewhere"), State: v1alpha1.NodeNotSelected},
		{Identity: id("gone"), State: v1alpha1.NodeRemoved},
	}}
	var got []string
	for _, a := range view.Attachments(n) {
		if _, has := a.Labels[view.LabelProgram]; has != (a.Program != "") || !view.IsOn(a.Name, "n1") || a.Namespace != "team" {
			t.Errorf("row %+v", a)
		}
		got = append(got, a.Application.Name+" "+a.State+" "+a.Message)
	}
	want := []string{"coming Pending it is loaded", "keeps Attached ", "lacking Unsupported the kernel lacks it", "rejected Failed the verifier rejects it",
		"runs Attached "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
