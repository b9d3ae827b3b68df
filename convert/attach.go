package convert

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// hookType is a type of programs of bpfman's.
type hookType struct {
	// hook is Skep's name; for types with directions, what precedes it.
	hook string
	// atReturn is the hook of retprobe: true; empty where there is none.
	atReturn string
	// directed types have ingress and egress.
	directed bool
	// target reads where to attach: one attachment a target.
	target func(*fields, *v1alpha1.Attachment) []v1alpha1.Attachment
}

// typeOf returns the type of a name in lower case.
func typeOf(name string) (hookType, bool) {
	types := map[string]hookType{
		"xdp":        {hook: "xdp", target: (*fields).xdp},
		"tc":         {hook: "tc", directed: true, target: (*fields).tc},
		"tcx":        {hook: "tcx", directed: true, target: (*fields).device},
		"tracepoint": {hook: "tracepoint", target: (*fields).tracepoint},
		"kprobe":     {hook: "kprobe", atReturn: "kretprobe", target: (*fields).functions},
		"kretprobe":  {hook: "kretprobe", target: (*fields).functions},
		"fentry":     {hook: "fentry", target: (*fields).traced},
		"fexit":      {hook: "fexit", target: (*fields).traced},
		"uprobe":     {hook: "uprobe", atReturn: "uretprobe", target: (*fields).binary},
		"uretprobe":  {hook: "uretprobe", target: (*fields).binary},
	}
	t, known := types[name]
	return t, known
}

// attach adds the attachments that fields name to a program.
func (d *draft) attach(index int, name string, f *fields) {
	program := &d.app.Spec.Programs[index]
	f.place = fmt.Sprintf("%s.attach[%d]", programPlace(index), len(program.Attach))
	t, known := typeOf(name)
	if !known {
		d.missing(f.path, f.place, name+": "+unknownType(name))
		return
	}
	a := v1alpha1.Attachment{Hook: t.hook}
	if t.atReturn != "" && f.flag("retprobe") {
		a.Hook = t.atReturn
	}
	if t.directed {
		a.Hook += "/" + f.direction()
	}
	added := d.room(f, t.target(f, &a))
	program.Attach = append(program.Attach, added...)
	d.scope(f, a.Hook, added)
}

// scope notes what a namespace cannot do with a hook.
func (d *draft) scope(f *fields, name string, added []v1alpha1.Attachment) {
	h, known := hook.Lookup(name)
	if !d.namespaced || !known || len(added) == 0 || added[0].Pods != nil {
		return
	}
	why := "no pods are chosen; a BpfApplication attaches in the pods of its namespace: set pods"
	if h.ReachesNode() {
		why += ", or have a policy grant the node's interfaces (docs/adr/0062-a-namespace-reaches-its-own-pods.md)"
	}
	d.missing(f.path, f.place, why)
}

// direction reads ingress or egress.
func (f *fields) direction() string {
	one := f.take("direction")
	if one != nil {
		if v := strings.ToLower(one.node.Value); v == "ingress" || v == "egress" {
			return v
		}
	}
	f.d.missing(f.path+".direction", f.place, "it is neither ingress nor egress; write the hook with the one that is meant")
	return ""
}

// listed reads a list of texts that was taken.
func listed(f *fields, list *field) []string {
	list.taken = false
	return f.texts(fold(list.name))
}

// xdp reads a device and the verdicts after which the next program runs.
func (f *fields) xdp(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	taken := f.proceedOn()
	if taken == nil {
		return f.device(a)
	}
	for _, v := range listed(f, taken) {
		if fold(v) == "dispatcherreturn" {
			f.note(taken, v+": a chain of Skep's has no dispatcher that returns, and the value is left out")
			continue
		}
		i := slices.IndexFunc(hook.XDPVerdicts(), func(known hook.Verdict) bool { return strings.EqualFold(known.Name, v) })
		if i < 0 {
			f.todo(taken, v+" is no verdict of XDP, and is left out; correct it")
			continue
		}
		a.ProceedOn = append(a.ProceedOn, hook.XDPVerdicts()[i].Name)
	}
	if len(a.ProceedOn) == 0 {
		f.todo(taken, "no verdict is left; the next program runs after Pass then, as the default is, and bpfman ran none")
	}
	return f.device(a)
}

// proceedOn takes the verdicts after which the next program runs; nil where bpfman's default is
// meant, as by a list without any.
func (f *fields) proceedOn() *field {
	taken := f.take("proceedon")
	if taken != nil && taken.node.Kind == yaml.SequenceNode && len(taken.node.Content) == 0 {
		return nil
	}
	return taken
}

// tc reads a device. With filters of clsact, the program's verdict says itself whether the next
// one runs.
func (f *fields) tc(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	taken := f.proceedOn()
	if taken == nil {
		return f.device(a)
	}
	all := listed(f, taken)
	pipes := slices.ContainsFunc(all, func(v string) bool { return fold(v) == "pipe" })
	other := slices.DeleteFunc(all, func(v string) bool {
		return slices.Contains([]string{"unspec", "pipe", "dispatcherreturn"}, fold(v))
	})
	switch {
	case len(other) > 0:
		f.todo(taken, strings.Join(other, ", ")+": such a verdict ends the filters of clsact; have the program return TC_ACT_UNSPEC where the next "+
			"one is to run (docs/hooks.md)")
	case !pipes:
		f.todo(taken, "Pipe is not listed, and bpfman runs no further program after TC_ACT_PIPE; the next filter of clsact runs then, so have the program "+
			"return TC_ACT_OK where it is to be the last (docs/hooks.md)")
	default:
		f.note(taken, "not needed: the next filter runs after these verdicts in any case")
	}
	return f.device(a)
}

// tracepoint reads one tracepoint or several.
func (f *fields) tracepoint(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	var list []v1alpha1.Attachment
	for _, name := range f.texts("name", "names") {
		next := *a
		next.Tracepoint = name
		list = append(list, next)
	}
	return list
}

// functions reads functions of the kernel for kprobes.
func (f *fields) functions(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	names := f.texts("function", "funcname", "funcnames", "functionname", "name")
	a.Functions = &v1alpha1.Functions{Names: names}
	if n, ok := f.number(math.MaxUint32, "offset"); ok && n > 0 {
		a.Functions.Offset = n
	}
	f.todo(f.take("containers"), "bpfman never used the containers of kprobes; set pods if the tasks of pods are meant (docs/pods.md)")
	if len(names) == 0 {
		return nil
	}
	return []v1alpha1.Attachment{*a}
}

// traced reads the function of fentry and fexit, and whether it is attached at all.
func (f *fields) traced(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	// Only the generations whose field was func_name had no way to detach it.
	attached := f.has("funcname") && !f.has("attach", "mode") || f.flag("attach")
	names := f.texts("function", "funcname", "functionname")
	if mode := f.text("mode"); mode != "" {
		attached = fold(mode) == "attach"
	}
	if !attached || len(names) == 0 {
		return nil
	}
	a.Functions = &v1alpha1.Functions{Names: names}
	return []v1alpha1.Attachment{*a}
}

// binary reads a function of an executable or library: one attachment a target.
func (f *fields) binary(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	place := v1alpha1.UserBinary{Symbol: f.text("function", "funcname", "functionname")}
	place.Offset, _ = f.number(math.MaxInt64, "offset")
	if pid, ok := f.number(math.MaxInt32, "pid"); ok {
		place.PID = int32(pid)
	}
	a.Pods = f.pods(a.Hook, "containers")
	if a.Pods == nil && !f.d.namespaced {
		f.d.add(Note{Line: f.d.line, Path: f.path + ".containers", Text: "no containers: bpfman then looks in its agent's files, Skep in those of the node"}, f.place,
			"")
	}
	if place.Symbol == "" && place.Offset == 0 {
		f.d.missing(f.path+".function", f.place, "no function: bpfman then means the beginning of the file, which is no place of a program; "+
			"set binary.symbol")
	}
	targets := f.take("target", "targets")
	if targets == nil {
		return nil
	}
	var list []v1alpha1.Attachment
	for _, target := range listed(f, targets) {
		next, at := *a, place
		at.Path = f.library(targets, target)
		next.Binary = &at
		list = append(list, next)
	}
	return list
}

// library returns the path of a target: bpfman takes the name of a library without its end.
func (f *fields) library(targets *field, target string) string {
	switch {
	case path.IsAbs(target) || strings.Contains(target, ".so"):
		return target
	case target == "libc":
		return "libc.so.6"
	}
	f.todo(targets, target+": bpfman looks for the library of that name, whatever its version; Skep wants it in full, such as libssl.so.3")
	return target + ".so"
}

// pods reads a selector of containers; nil where none is given, which means the node.
func (f *fields) pods(hookName string, names ...string) *v1alpha1.Pods {
	c := f.mapping(f.place+".pods", names...)
	if c == nil {
		return nil
	}
	if inner := c.mapping(c.place, "podselector"); inner != nil {
		c.rest()
		c = inner
	}
	p := &v1alpha1.Pods{}
	if s := c.selector("pods"); s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
		p.Selector = s
	}
	f.d.podNamespace(c, p)
	containers := c.take("containernames")
	if h, known := hook.Lookup(hookName); containers != nil && known && !h.TakesContainers() {
		c.note(containers, written(containers.node)+": the containers of a pod share its network, so single ones are not chosen")
	} else if containers != nil {
		p.Containers = listed(c, containers)
	}
	c.rest()
	return p
}

// labelNamespace is the label by which the API server names each namespace.
const labelNamespace = "kubernetes.io/metadata.name"

// podNamespace reads the namespace of pods, which an application of a namespace does not choose.
func (d *draft) podNamespace(c *fields, p *v1alpha1.Pods) {
	namespace := c.take("namespace")
	switch {
	case namespace == nil:
	case namespace.node.Kind != yaml.ScalarNode:
		// Without one, the pods of every namespace would be chosen.
		c.wrong(namespace, "text")
		p.NamespaceSelector = invalidSelector()
	case namespace.node.Value == "":
	case !d.namespaced:
		p.NamespaceSelector = namespaceOf(namespace)
	case namespace.node.Value != d.app.Metadata.Namespace:
		// Vet rejects it: without it the pods of another namespace would be chosen.
		p.NamespaceSelector = namespaceOf(namespace)
		c.todo(namespace, written(namespace.node)+": a BpfApplication reaches the pods of its own namespace alone; write a ClusterBpfApplication for others")
	}
}

func namespaceOf(name *field) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{labelNamespace: name.node.Value}}
}
