package convert

import (
	"cmp"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// defaultPriority is bpfman's where a manifest gives none: the last.
const defaultPriority = 1000

// device reads the fields of network devices.
func (f *fields) device(a *v1alpha1.Attachment) []v1alpha1.Attachment {
	priority := int32(defaultPriority)
	if n, ok := f.number(defaultPriority, "priority"); ok {
		priority = int32(n)
	}
	a.Priority = &priority
	in, discovered := f.interfaces()
	a.Interfaces = in
	a.Pods = f.pods(a.Hook, "networknamespaces", "containers")
	switch {
	case !discovered || f.d.namespaced:
	case a.Pods == nil:
		f.d.missing(join(f.path, "interfaceSelector"), f.place, "bpfman looks in the network namespaces of /var/run/netns as well, those of pods among them, "+
			"and Skep on the node alone; for pods, add an attachment with pods: {} and these interfaces (docs/pods.md)")
	default:
		f.d.missing(join(f.path, "networkNamespaces"), f.place, "beside interfaceAutoDiscovery bpfman does not read it, and attaches on the node and in every "+
			"network namespace; here these pods alone are chosen, so write what is meant")
	}
	return []v1alpha1.Attachment{*a}
}

// interfaces reads a selector of interfaces, or the one interface of the first generations, and
// reports whether bpfman would look for them.
func (f *fields) interfaces() (in *v1alpha1.Interfaces, discovered bool) {
	in = &v1alpha1.Interfaces{}
	f.name(in, "interface")
	if s := f.mapping(f.place+".interfaces", "interfaceselector"); s != nil {
		discovered = s.choose(in)
	}
	if len(in.Names) == 0 && !in.Primary {
		return nil, discovered
	}
	return in, discovered
}

// choose reads a selector of interfaces.
func (f *fields) choose(in *v1alpha1.Interfaces) (discovered bool) {
	f.name(in, "interfaces", "interface")
	primary := f.take("primarynodeinterface")
	if in.Primary = f.flagOf(primary); in.Primary {
		f.note(primary, "bpfman means the interface of the node's InternalIP, and Skep that of the default route; name the interface where a node has two")
	}
	discovery := f.mapping(f.place, "interfacesdiscoveryconfig")
	if discovery == nil {
		discovery = f
	}
	discovered = discovery.discover(in)
	discovery.rest()
	f.rest()
	return discovered
}

// name reads the names of interfaces.
func (f *fields) name(in *v1alpha1.Interfaces, names ...string) {
	if list := f.take(names...); list != nil {
		in.Names = append(in.Names, f.literal(list, listed(f, list))...)
	}
}

// literal notes names that Skep would take as globs. bpfman takes each as it is.
func (f *fields) literal(list *field, names []string) []string {
	for _, name := range names {
		if strings.ContainsAny(name, `*?[\`) {
			f.todo(list, name+": bpfman takes it as the name of one interface, and Skep as a glob; leave it if that is meant, or correct it")
		}
	}
	return names
}

// discover reads how bpfman finds interfaces: all of them but some, or those on a list. It reports
// whether bpfman does.
func (f *fields) discover(in *v1alpha1.Interfaces) bool {
	exclude, allowed := f.take("excludeinterfaces"), f.take("allowedinterfaces")
	if !f.flag("interfaceautodiscovery") {
		f.note(exclude, "without interfaceAutoDiscovery bpfman does not read it, and it is left out")
		f.note(allowed, "without interfaceAutoDiscovery bpfman does not read it, and it is left out")
		return false
	}
	if len(in.Names) > 0 || in.Primary {
		// bpfman takes one of them. The fewer interfaces stay.
		f.d.missing(join(f.path, "interfaceAutoDiscovery"), f.place,
			"interfaces are named as well, so none is looked for, and the settings of that are left out; write those that are meant")
		return false
	}
	in.Names, in.Exclude = []string{"*"}, []string{"lo"}
	if exclude != nil {
		in.Exclude = f.excluded(exclude)
	}
	if allowed != nil {
		f.allow(in, allowed)
	}
	return true
}

// excluded reads the names that bpfman leaves out.
func (f *fields) excluded(list *field) []string {
	var names []string
	for _, name := range listed(f, list) {
		if strings.Contains(name, "/") {
			f.note(list, name+" is left out: bpfman reads no regular expression here, and no interface has that name")
			continue
		}
		names = append(names, name)
	}
	return f.literal(list, names)
}

// allow reads the names and regular expressions of which bpfman takes any; none of them is all.
func (f *fields) allow(in *v1alpha1.Interfaces, list *field) {
	if list.node.Kind == yaml.SequenceNode && len(list.node.Content) == 0 {
		return
	}
	var names, expressions []string
	for _, name := range listed(f, list) {
		name = strings.Trim(name, " ")
		part, is := expression(name)
		if !is {
			names = append(names, name)
			continue
		}
		whole, err := wholeName(part)
		if err != nil {
			// It stays, so that vet rejects it: without names, pods would mean eth0.
			f.todo(list, fmt.Sprintf("%s cannot be read (%v), and bpfman reads nothing from it on; correct it", name, err))
			names = append(names, name)
			in.Names = names
			return
		}
		expressions = append(expressions, whole)
	}
	if len(expressions) == 0 {
		in.Names = f.literal(list, names)
		return
	}
	for _, name := range names {
		expressions = append(expressions, regexp.QuoteMeta(name))
	}
	in.Regex = strings.Join(expressions, "|")
}

// expression returns what stands between the slashes of a regular expression.
func expression(name string) (string, bool) {
	inner, begins := strings.CutPrefix(name, "/")
	inner, ends := strings.CutSuffix(inner, "/")
	return inner, begins && ends
}

// wholeName returns the expression that matches all of a name where part matches some of it, as
// bpfman has it. It may stand among alternatives.
func wholeName(part string) (string, error) {
	tree, err := syntax.Parse(part, syntax.Perl)
	if err != nil {
		return "", err
	}
	if strings.Contains(part, `\Q`) {
		// What follows would be quoted as well.
		part = tree.String()
	}
	if strings.Contains(part, "|") || strings.Contains(part, "(?") {
		return ".*(?:" + part + ").*", nil
	}
	pieces := []*syntax.Regexp{tree}
	if tree.Op == syntax.OpConcat {
		pieces = tree.Sub
	}
	whole := part
	switch first := pieces[0]; {
	case first.Op == syntax.OpBeginText && strings.HasPrefix(whole, "^"):
		whole = whole[1:]
	case !isAnything(first):
		whole = ".*" + whole
	}
	switch last := pieces[len(pieces)-1]; {
	case last.Op == syntax.OpEndText && strings.HasSuffix(whole, "$"):
		whole = whole[:len(whole)-1]
	case !isAnything(last):
		whole += ".*"
	}
	// Nothing of a name is no interface, and an empty expression would be none.
	return cmp.Or(whole, "^$"), nil
}

// isAnything reports whether an expression is .*, or as much.
func isAnything(e *syntax.Regexp) bool {
	return e.Op == syntax.OpStar && (e.Sub[0].Op == syntax.OpAnyCharNotNL || e.Sub[0].Op == syntax.OpAnyChar)
}
