package nodeview_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
)

const marker = "foreign-marker"

// mark puts the marker into every string below a value, and gives each list, map and pointer something to hold it.
func mark(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(marker)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		mark(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		mark(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		mark(key)
		mark(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if strings.HasPrefix(v.Type().PkgPath(), "time") || v.Type().Name() == "Time" {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				mark(v.Field(i))
			}
		}
	default:
	}
}

func marked[T any]() T {
	var one T
	mark(reflect.ValueOf(&one).Elem())
	return one
}

func TestNothingOfOthersIsInAScope(t *testing.T) {
	own := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "web"}
	app := view.Application{Identity: own, UID: "1", Pods: []string{"team-a/web", marker + "/web"}, Message: "it waits.",
		Error: "fetch object: lost", VerifierLog: "; own()", Attachments: []view.Attachment{
			{Program: "own", Hook: "tcx/ingress", Target: view.Target{Text: "eth0", Ifindex: 2}, Position: 3, Of: 4, LinkID: 7, ProgramID: 9,
				Message: "it failed", Notes: []string{"behind " + marker + " (id 4), which can end the chain", "moved by " + marker,
					"has never run, while the interface received packets (5)"}},
			{Program: "own", Hook: "uprobe", Target: view.Target{Text: "/app in pod " + marker + "/web", Pod: marker + "/web"}}}}
	app.Conditions = []metav1.Condition{{Reason: "Queued", Status: "False", Type: "Deployed", Message: "it waits."}}
	whole := marked[view.NodeView]()
	whole.ManagedFields = nil
	whole.TypeMeta.Kind, whole.TypeMeta.APIVersion, whole.Name = view.KindNodeView, view.GroupVersion, "n1"
	whole.Scope, whole.Agent, whole.Kernel = view.Scope{}, v1alpha1.AgentInfo{Version: "v1"}, v1alpha1.KernelProfile{Release: "6"}
	whole.Applications = append(whole.Applications, app)
	unmanaged := marked[view.Member]()
	unmanaged.Application = nil
	whole.Interfaces = append(whole.Interfaces, view.Interface{Hook: "tc/ingress", Target: view.Target{Ifindex: 2}, Error: marker,
		Members: []view.Member{unmanaged, unmanaged, {Application: &own, Program: "own"}, marked[view.Member]()}})
	program := marked[view.Program]()
	program.ID, program.Application, program.Type, program.Name, program.Tag = 9, &own, "SchedCLS", "own", "tag"
	whole.Programs = append(whole.Programs, program)
	joint := app
	joint.UID, joint.Attachments, joint.VerifierLog = "2", nil, agent.JointLog+"\n; return others_secret(); @ "+marker+".c:7"
	whole.Applications = append(whole.Applications, joint)
	load := marked[view.Load]()
	load.Application, load.Waiting = own, "it waits."
	whole.Loads = append(whole.Loads, load)
	before, err := json.Marshal(whole)
	if err != nil || strings.Count(string(before), marker) < 60 {
		t.Fatalf("the marker is in few places: %v, %s", err, before)
	}
	for _, scope := range []view.Scope{
		{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a"}, {Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "web"},
	} {
		n := nodeview.Redact(whole, scope)
		body, err := json.Marshal(n)
		if err != nil || strings.Contains(string(body), marker) || strings.Contains(string(body), "others_secret") {
			t.Errorf("%+v: %v, %s", scope, err, body)
		}
		if len(n.Applications) != 2 || len(n.Programs) != 1 || len(n.Loads) != 1 || *n.Others != (view.Others{Applications: 1, Programs: 1}) || len(n.LeftOut) != 1 {
			t.Fatalf("%+v: %s", scope, body)
		}
		is := n.Applications[0]
		want := "[behind 2 programs of the node, each of which can end the chain has never run, while the interface received packets (5)]"
		if got := fmt.Sprint(is.Attachments[0].Notes); got != want {
			t.Errorf("notes are %s, want %s", got, want)
		}
		if is.Message != "it waits." || is.Error != "fetch object: lost" || len(is.Pods) != 1 || len(is.Attachments) != 1 {
			t.Errorf("the application is %+v", is)
		}
		if got := fmt.Sprint(n.Programs[0].Attached); got != "[tcx/ingress@eth0]" {
			t.Errorf("the program is attached at %s", got)
		}
	}
	if after, _ := json.Marshal(whole); !bytes.Equal(after, before) {
		t.Error("the whole was changed")
	}
	if body, _ := json.Marshal(nodeview.Redact(whole, view.Scope{})); !bytes.Equal(body, before) {
		t.Error("the whole node is not whole")
	}
}

// TestAGuessIsNotConfirmed: what a reader wrote into its own application comes back as it is, whatever others are called.
func TestAGuessIsNotConfirmed(t *testing.T) {
	own := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a", Name: "web"}
	const guesses = "team-b/secret secret_function falco team-b/pod"
	described := func(app, function, program, pod string) view.NodeView {
		others := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team-b", Name: app}
		return view.NodeView{Applications: []view.Application{
			{Identity: others, UID: "1", Pods: []string{"team-b/" + pod}, Attachments: []view.Attachment{{Program: function, Hook: "tcx/ingress"}}},
			{Identity: own, UID: "2", Message: guesses, Error: guesses, VerifierLog: "; " + guesses,
				Conditions:  []metav1.Condition{{Type: "Deployed", Message: "no pod of this node is chosen by pods (" + guesses + ")"}},
				Attachments: []view.Attachment{{Program: "own", Hook: "tcx/ingress", Message: guesses, Target: view.Target{Text: guesses}}}}},
			Interfaces: []view.Interface{{Hook: "tcx/ingress", Members: []view.Member{{Application: &others, Program: function}, {Program: program}}}},
			Programs:   []view.Program{{ID: 3, Name: function, Application: &others}, {ID: 4, Name: program}},
			Loads:      []view.Load{{Application: own, Waiting: guesses}}}
	}
	scope := view.Scope{Kind: v1alpha1.KindBpfApplication, Namespace: "team-a"}
	right, wrong := described("secret", "secret_function", "falco", "pod"), described("a", "b", "c", "d")
	if diff := cmp.Diff(nodeview.Redact(wrong, scope), nodeview.Redact(right, scope)); diff != "" {
		t.Errorf("a guess that is right is answered otherwise (-wrong +right):\n%s", diff)
	}
}

func TestAScopeIsOfSomething(t *testing.T) {
	v := nodeview.New(nodeview.Options{Status: noStatus})
	for _, scope := range []view.Scope{{Kind: "Pod"}, {Namespace: "a"}, {Kind: v1alpha1.KindClusterBpfApplication, Namespace: "a"}, {Name: "a"}} {
		var wrong *nodeview.ScopeError
		if _, err := v.View(t.Context(), scope); !asScopeError(err, &wrong) {
			t.Errorf("%+v: %v", scope, err)
		}
	}
}
