package views

import (
	"encoding/json"
	"fmt"
	"strconv"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// column is a column of a Table; a wide one is shown by kubectl get -o wide alone.
func column(name, format, description string, wide bool) metav1.TableColumnDefinition {
	c := metav1.TableColumnDefinition{Name: name, Type: "string", Format: format, Description: description}
	if wide {
		c.Priority = 1
	}
	return c
}

// table is a Table without rows.
func table(meta metav1.ListMeta, columns ...metav1.TableColumnDefinition) *metav1.Table {
	return &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, ListMeta: meta, ColumnDefinitions: columns,
		Rows: []metav1.TableRow{}}
}

// row adds a row about an object, of which it has what a client asked for.
func row(t *metav1.Table, include metav1.IncludeObjectPolicy, meta metav1.ObjectMeta, object any, cells ...any) {
	var raw runtime.RawExtension
	switch include {
	case metav1.IncludeNone:
	case metav1.IncludeObject:
		raw.Raw, _ = json.Marshal(object) // Its types have nothing that JSON lacks.
	default:
		raw.Object = &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: meta}
	}
	t.Rows = append(t.Rows, metav1.TableRow{Cells: cells, Object: raw})
}

// maxCell bounds a cell, in characters.
const maxCell = 200

// cell is text of an agent's in a cell.
func cell(s string) string { return text.CutRunes(text.Line(s), maxCell) }

// attachmentTable shows attachments.
func attachmentTable(meta metav1.ListMeta, include metav1.IncludeObjectPolicy, items []view.BpfAttachment) *metav1.Table {
	t := table(meta,
		column("Node", "", "The node.", false),
		column("Application", "", "The application.", false),
		column("Program", "", "The function.", false),
		column("Hook", "", "The hook, by the name of libbpf's section.", false),
		column("Target", "", "Where it is attached.", false),
		column("State", "", "Attached, or why not.", false),
		column("ID", "", "The kernel's id of the program.", true),
		column("Position", "", "The place in the order at the target, and of how many, programs of others included.", true),
		column("Runs", "", "How often it ran since it was attached.", true),
		column("Message", "", "Why it has this state.", true),
		column("Name", "name", "The name of the object.", true),
	)
	for _, a := range items {
		position, id, runs := "", "", ""
		if a.Of > 0 {
			position = fmt.Sprintf("%d/%d", a.Position, a.Of)
		}
		if a.ProgramID > 0 {
			id = strconv.FormatUint(uint64(a.ProgramID), 10)
		}
		if a.Runs != nil {
			runs = strconv.FormatUint(*a.Runs, 10)
		}
		row(t, include, a.ObjectMeta, a, a.Node, a.Application.Name, cell(a.Program), cell(a.Hook), cell(a.Target.Text), cell(a.State), id, position, runs,
			cell(a.Message), a.Name)
	}
	return t
}

// applicationTable shows applications, as kubectl get shows those of skep.dev.
func applicationTable(meta metav1.ListMeta, include metav1.IncludeObjectPolicy, items []view.BpfApplication) *metav1.Table {
	t := table(meta,
		column("Name", "name", "The application.", false),
		column("Ready", "", "Whether it runs as it is defined.", false),
		column("Loaded", "", "On how many of its nodes it is loaded.", false),
		column("Signers", "", "Whose signatures counted.", false),
		column("Version", "", "What is sealed for the nodes.", true),
		column("Age", "", "How long it has been there.", false),
		column("Status", "", "Why it is ready or not.", false),
	)
	for _, a := range items {
		ready, status, loaded := "", "", ""
		if c := apimeta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			ready, status = string(c.Status), c.Message
		}
		if a.Status.Nodes != nil {
			loaded = a.Status.Nodes.Summary
		}
		row(t, include, a.ObjectMeta, a, a.Name, ready, cell(loaded), cell(a.Status.SignedBy), cell(a.Status.Version),
			metatable.ConvertToHumanReadableDateType(a.CreationTimestamp), cell(status))
	}
	return t
}

// nodeTable shows nodes.
func nodeTable(meta metav1.ListMeta, include metav1.IncludeObjectPolicy, items []view.NodeView) *metav1.Table {
	t := table(meta,
		column("Name", "name", "The node.", false),
		column("Applications", "", "How many applications have an intent for it.", false),
		column("Programs", "", "How many BPF programs its kernel has, programs of others included.", false),
		column("Kernel", "", "Its kernel.", false),
		column("Agent", "", "The agent's version.", false),
	)
	for _, n := range items {
		programs, apps := len(n.Programs), len(n.Applications)
		if n.Others != nil {
			programs, apps = programs+n.Others.Programs, apps+n.Others.Applications
		}
		row(t, include, n.ObjectMeta, n, n.Name, strconv.Itoa(apps), strconv.Itoa(programs), cell(n.Kernel.Release), cell(n.Agent.Version))
	}
	return t
}
