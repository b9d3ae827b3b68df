package gate

import (
	"errors"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cilium/ebpf"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/image/access"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/policies"
)

// Request is one application as a caller hands it in.
type Request struct {
	// Application is the definition. It is not changed.
	Application v1alpha1.Application
	// Requester is who last changed it, as far as the caller knows.
	Requester policies.Requester
	// Namespace is the application's, with its labels.
	Namespace policies.Namespace
	// Reader reads the image with the application's own credentials; nil means the
	// Judge's Images.
	Reader *access.Reader
	// Digest is what the image's tag stood for when this generation was first
	// evaluated, as sha256:…. Empty means to ask the registry now.
	Digest string
	// Sealed is the version that runs, if there is one. What it was allowed by is looked for by
	// its digest, if the request is about the same image.
	Sealed *intent.Payload
	// Passing has nothing stored of what is learned: whether the application comes to
	// be is not known yet. What is learned is known in this process alone, and stored
	// once a request that is not passing needs it. With a Digest nobody is asked about
	// signatures that were collected within StaleFor.
	Passing bool
	// Changed is when the definition took its present form, or somebody asked for another
	// look; the zero time where that is not known. What it is denied for, by signatures
	// that were collected before, is asked again at once, also of a registry that was out
	// of reach before.
	Changed time.Time
}

// Shaped is a request whose definition is whole and legal in itself.
type Shaped struct{ req Request }

// shapeRules begins the rules of what Shape denies.
const shapeRules = "shape/"

// errSkipped is what a step answers to the zero value of the step before it.
var errSkipped = errors.New("the step before this one did not run")

// Shape checks what can be checked in the definition alone: hooks that exist
// and that the agent attaches, fields that fit their hook's target shape,
// hooks that a namespace can hold. It returns a *Denial with every reason.
func Shape(req Request) (Shaped, error) {
	if req.Application == nil {
		return Shaped{}, errors.New("shape: no application")
	}
	id, spec := req.Application.Identity(), req.Application.Body()
	r := &denials{object: id.String()}
	if spec.Bytecode.Image == "" {
		r.add("shape/image", "spec.bytecode.image", "name an image", "no image is named")
	}
	if len(spec.Programs) == 0 {
		r.add("shape/programs", "spec.programs", "list at least one function of the object", "no program is listed")
	}
	if _, err := metav1.LabelSelectorAsSelector(spec.NodeSelector); err != nil {
		r.add("shape/selector", "spec.nodeSelector", "give labels, and requirements of key, operator and values, as Kubernetes takes them",
			"no node can be chosen by it: %v", err)
	}
	shapeBounds(r, spec.Programs)
	shapeMaps(r, spec.Maps)
	shapeSharing(r, id, spec.Maps)
	shapeSize(r, req.Application)
	seen := map[string]bool{}
	for i, p := range spec.Programs {
		at := fmt.Sprintf("spec.programs[%d]", i)
		switch {
		case p.Name == "":
			r.add("shape/programs", at+".name", "name a function of the object", "the program has no name")
		case seen[p.Name]:
			r.add("shape/programs", at+".name", "list the program once and give it several attachments", "program %q is listed twice", p.Name)
		}
		seen[p.Name] = true
		for j, a := range p.Attach {
			shapeAttachment(r, id, fmt.Sprintf("%s.attach[%d]", at, j), a)
		}
	}
	shapeAlternatives(r, spec)
	if err := r.err(); err != nil {
		return Shaped{}, err
	}
	return Shaped{req: req}, nil
}

// shapeBounds denies more attachments than an API server would take: an object
// that was stored before the bounds existed has no others than a new one.
func shapeBounds(r *denials, programs []v1alpha1.Program) {
	all, many := 0, 0
	for i, p := range programs {
		all += len(p.Attach)
		many = max(many, len(p.Attach))
		if n := len(p.Attach); n > v1alpha1.MaxProgramAttachments {
			r.add("shape/programs", fmt.Sprintf("spec.programs[%d].attach", i),
				fmt.Sprintf("list at most %d attachments of one program", v1alpha1.MaxProgramAttachments),
				"%d attachments are listed", n)
		}
	}
	switch n := len(programs); {
	case n > v1alpha1.MaxPrograms:
		r.add("shape/programs", "spec.programs", fmt.Sprintf("list at most %d programs, and make several applications of the rest", v1alpha1.MaxPrograms),
			"%d programs are listed", n)
	case n > v1alpha1.MaxProgramsOfMany && many > v1alpha1.MaxFewAttachments:
		r.add("shape/programs", "spec.programs",
			fmt.Sprintf("list at most %d programs, or at most %d attachments of each", v1alpha1.MaxProgramsOfMany, v1alpha1.MaxFewAttachments),
			"%d programs are listed, of which one lists %d attachments", n, many)
	}
	if all > v1alpha1.MaxAttachments {
		r.add("shape/programs", "spec.programs", fmt.Sprintf("list at most %d attachments in one application", v1alpha1.MaxAttachments), "%d attachments are listed",
			all)
	}
}

// shapeMaps denies more contents than nodes are given, and an onUpdate that nobody knows.
func shapeMaps(r *denials, maps map[string]v1alpha1.Map) {
	all, entries := 0, 0
	for _, name := range sortedKeys(maps) {
		m, at := maps[name], "spec.maps."+name
		if n := len(m.Contents); n > v1alpha1.MaxMapEntries {
			r.add("shape/maps", at+".contents", fmt.Sprintf("list at most %d entries of one map", v1alpha1.MaxMapEntries), "%d entries are listed", n)
		}
		entries += len(m.Contents)
		for _, e := range m.Contents {
			all += len(`{"key":,"value":},`) + len(e.Key.Raw) + len(e.Value.Raw)
		}
		if !slices.Contains([]v1alpha1.MapUpdate{"", v1alpha1.MapKeep, v1alpha1.MapReset}, m.OnUpdate) {
			r.add("shape/maps", at+".onUpdate", fmt.Sprintf("use %s or %s", v1alpha1.MapKeep, v1alpha1.MapReset), "onUpdate %q is not known", m.OnUpdate)
		}
	}
	if entries > v1alpha1.MaxContents {
		r.add("shape/maps", "spec.maps", "list fewer entries, or have a program of yours write them",
			"the contents of all maps list more than %d entries", v1alpha1.MaxContents)
	} else if all > v1alpha1.MaxMapContents {
		r.add("shape/maps", "spec.maps", "list fewer entries, or have a program of yours write them",
			"the contents of all maps have %d bytes as JSON, at most %d are allowed", all, v1alpha1.MaxMapContents)
	}
}

// shapeAlternatives denies alternatives that leave open what a node runs.
func shapeAlternatives(r *denials, spec *v1alpha1.BpfApplicationSpec) {
	const rule = "shape/alternatives"
	if n := len(spec.Alternatives); n > v1alpha1.MaxAlternatives {
		r.add(rule, "spec.alternatives", fmt.Sprintf("list at most %d alternatives", v1alpha1.MaxAlternatives), "%d alternatives are listed", n)
		return
	}
	programs := map[string]v1alpha1.Program{}
	for _, p := range spec.Programs {
		programs[p.Name] = p
	}
	named, setOf := map[string]bool{}, map[string]string{}
	for i, alternative := range spec.Alternatives {
		at := fmt.Sprintf("spec.alternatives[%d]", i)
		if alternative.Name == "" || named[alternative.Name] {
			r.add(rule, at+".name", "give every alternative a name of its own, such as connect", "%q names no alternative, or another one", alternative.Name)
		}
		named[alternative.Name] = true
		if n := len(alternative.AnyOf); n < 2 || n > v1alpha1.MaxAnyOf {
			r.add(rule, at+".anyOf", fmt.Sprintf("list 2 to %d sets of programs", v1alpha1.MaxAnyOf), "%d sets are listed", n)
			continue
		}
		for j, set := range alternative.AnyOf {
			at := fmt.Sprintf("%s.anyOf[%d].programs", at, j)
			if n := len(set.Programs); n < 1 || n > v1alpha1.MaxProgramSet {
				r.add(rule, at, fmt.Sprintf("list 1 to %d programs", v1alpha1.MaxProgramSet), "%d programs are listed", n)
				continue
			}
			for _, name := range set.Programs {
				shapeChosen(r, rule, at, programs, name, setOf[name])
				setOf[name] = at
			}
		}
	}
}

// shapeChosen denies a program of a set that the definition does not list, or that would be
// chosen twice.
func shapeChosen(r *denials, rule, at string, programs map[string]v1alpha1.Program, name, other string) {
	p, ok := programs[name]
	switch {
	case !ok:
		r.add(rule, at, "list it in spec.programs, too, with its attachments", "program %q is not listed in spec.programs", name)
	case other != "":
		r.add(rule, at, "list every program in one set", "program %q is in %s already", name, other)
	case p.Optional || slices.ContainsFunc(p.Attach, func(a v1alpha1.Attachment) bool { return a.Optional }):
		r.add(rule, at, "remove optional: a set is left out as a whole", "program %q of a set is optional, or an attachment of it is", name)
	}
}

// shapeAttachment checks one attachment as written. Where it names no hook,
// the object's section decides later and completeAttachment checks it then.
func shapeAttachment(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment) {
	if a.Hook == "" {
		return
	}
	h, ok := hook.Lookup(a.Hook)
	if !ok {
		r.add("shape/hook", at+".hook", "use one of: "+strings.Join(hook.Names(), ", "), "hook %q is not known", a.Hook)
		return
	}
	checkScope(r, id, at, h, a)
	if !h.Attachable {
		why, instead := h.Obstacle()
		r.add("shape/hook", at+".hook", "use "+instead, "hook %s is known, but this version of Skep does not attach it: %s", h.Name, why)
		return
	}
	checkFields(r, at, h, a)
}

// completeAttachment checks an attachment whose hook and target were filled in
// from the object.
func completeAttachment(r *denials, id v1alpha1.Identity, at string, a v1alpha1.Attachment) {
	shapeAttachment(r, id, at, a)
	h, _ := hook.Lookup(a.Hook)
	if !h.Attachable {
		return
	}
	for _, f := range fields {
		if f.isMissing(h, a) {
			r.add("shape/fields", at+"."+f.name, f.howToSet(h), "hook %s needs %s, and neither the definition nor the program's section names it", h.Name, f.name)
		}
	}
}

// checkScope denies an attachment that reaches beyond its namespace, in the words of the schema and
// the CRD. A policy decides whether a namespace may have the node's own network devices.
func checkScope(r *denials, id v1alpha1.Identity, at string, h hook.Hook, a v1alpha1.Attachment) {
	if id.Kind != v1alpha1.KindBpfApplication {
		return
	}
	switch {
	case !h.Namespaceable:
		r.add("shape/scope", at+".hook", "use a "+v1alpha1.KindClusterBpfApplication, "%s reaches beyond a namespace", h.Name)
	case a.Pods == nil && !h.ReachesNode():
		r.add("shape/scope", at+".pods", "give pods, such as {} for all Pods of the namespace, or use a "+v1alpha1.KindClusterBpfApplication,
			"%s reaches beyond a namespace without pods", h.Name)
	case a.Pods != nil && a.Pods.NamespaceSelector != nil:
		r.add("shape/scope", at+".pods.namespaceSelector", "remove namespaceSelector, or use a "+v1alpha1.KindClusterBpfApplication,
			"a %s reaches the Pods of its own namespace alone", id.Kind)
	}
	if a.AfterNamespaces {
		r.add("shape/scope", at+".afterNamespaces", "remove afterNamespaces, or use a "+v1alpha1.KindClusterBpfApplication,
			"programs of a %s run between those of the cluster", id.Kind)
	}
	if a.Position != "" {
		r.add("shape/scope", at+".position", "remove position, or use a "+v1alpha1.KindClusterBpfApplication,
			"a %s places no program among those of others", id.Kind)
	}
}

// field is one field of an attachment that only some hooks take.
type field struct {
	name     string
	given    func(v1alpha1.Attachment) bool
	takes    func(hook.Hook) bool
	required func(hook.Hook) bool
	// legal returns what is wrong with a given value and its fix, or "".
	legal func(v1alpha1.Attachment) (wrong, fix string)
	// inPods fields need not be given with pods.
	inPods bool
}

// isMissing reports whether an attachment to the hook needs the field and does not have it.
func (f field) isMissing(h hook.Hook, a v1alpha1.Attachment) bool {
	return f.required(h) && !f.given(a) && (a.Pods == nil || !f.inPods)
}

// howToSet says how an attachment to the hook gets the field.
func (f field) howToSet(h hook.Hook) string {
	fix := fmt.Sprintf("set %s, such as %s", f.name, h.Needs())
	if f.inPods && h.Namespaceable {
		fix += ", or pods"
	}
	return fix
}

// hasShape makes a predicate over a hook's shape.
func hasShape(s hook.Shape) func(hook.Hook) bool {
	return func(h hook.Hook) bool { return h.Shape == s }
}

// attachesIn makes a predicate over the field that says where in a binary a hook
// attaches.
func attachesIn(field string) func(hook.Hook) bool {
	return func(h hook.Hook) bool { return h.InBinary() == field }
}

func never(hook.Hook) bool { return false }

func isTCX(h hook.Hook) bool {
	return h.AttachType == ebpf.AttachTCXIngress || h.AttachType == ebpf.AttachTCXEgress
}

func isNetfilter(h hook.Hook) bool { return h.ProgramType == ebpf.Netfilter }

// fields is the table of the fields that depend on the hook. All rules about
// which hook takes what are here.
var fields = []field{
	{
		"interfaces", func(a v1alpha1.Attachment) bool { return a.Interfaces != nil }, hasShape(hook.NetworkDevice), hasShape(hook.NetworkDevice), legalInterfaces,
		true,
	},
	{"priority", func(a v1alpha1.Attachment) bool { return a.Priority != nil }, hook.Hook.TakesPriority, never, legalPriority, false},
	{"afterNamespaces", func(a v1alpha1.Attachment) bool { return a.AfterNamespaces }, hook.Hook.TakesPriority, never, nil, false},
	{"position", func(a v1alpha1.Attachment) bool { return a.Position != "" }, isTCX, never, legalPosition, false},
	{"proceedOn", func(a v1alpha1.Attachment) bool { return a.ProceedOn != nil }, func(h hook.Hook) bool { return h.Name == "xdp" }, never, legalProceedOn, false},
	{"xdpMode", func(a v1alpha1.Attachment) bool { return a.XDPMode != "" }, func(h hook.Hook) bool { return h.Name == "xdp" }, never, legalXDPMode, false},
	{"functions", func(a v1alpha1.Attachment) bool { return a.Functions != nil }, hook.Hook.TakesFunctions, hook.Hook.TakesFunctions, legalFunctions, false},
	{"tracepoint", func(a v1alpha1.Attachment) bool { return a.Tracepoint != "" }, hasShape(hook.Tracepoint), hasShape(hook.Tracepoint), legalTracepoint, false},
	{"cgroup", func(a v1alpha1.Attachment) bool { return a.Cgroup != "" }, hasShape(hook.Cgroup), hasShape(hook.Cgroup), legalCgroup, true},
	{"binary", func(a v1alpha1.Attachment) bool { return a.Binary != nil }, hasShape(hook.UserBinary), hasShape(hook.UserBinary), legalBinary, false},
	{"binary.symbol", func(a v1alpha1.Attachment) bool { return a.Binary != nil && a.Binary.Symbol != "" }, attachesIn(hook.InSymbol), never, nil, false},
	{"binary.offset", func(a v1alpha1.Attachment) bool { return a.Binary != nil && a.Binary.Offset != 0 }, attachesIn(hook.InSymbol), never, nil, false},
	{
		"binary.symbols", func(a v1alpha1.Attachment) bool { return a.Binary != nil && a.Binary.Symbols != nil }, attachesIn(hook.InSymbols),
		attachesIn(hook.InSymbols), legalSymbols, false,
	},
	{
		"binary.usdt", func(a v1alpha1.Attachment) bool { return a.Binary != nil && a.Binary.USDT != nil }, attachesIn(hook.InUSDT), attachesIn(hook.InUSDT),
		legalUSDT, false,
	},
	{"networkNamespace", func(a v1alpha1.Attachment) bool { return a.NetworkNamespace != "" }, hasShape(hook.NetworkNamespace), never, legalNamespace, false},
	{"netfilter", func(a v1alpha1.Attachment) bool { return a.Netfilter != nil }, isNetfilter, isNetfilter, legalNetfilter, false},
	{"perfEvent", func(a v1alpha1.Attachment) bool { return a.PerfEvent != nil }, hasShape(hook.PerfEvent), hasShape(hook.PerfEvent), legalPerfEvent, false},
	{"pods", func(a v1alpha1.Attachment) bool { return a.Pods != nil }, func(h hook.Hook) bool { return h.Namespaceable }, never, legalPods, false},
}

// checkFields denies fields the hook does not take and values that are not
// legal.
func checkFields(r *denials, at string, h hook.Hook, a v1alpha1.Attachment) {
	for _, f := range fields {
		if !f.given(a) {
			continue
		}
		if !f.takes(h) {
			r.add("shape/fields", at+"."+f.name, "remove "+f.name, "hook %s (target %s) does not take %s", h.Name, h.Shape, f.name)
			continue
		}
		if f.legal == nil {
			continue
		}
		if wrong, fix := f.legal(a); wrong != "" {
			r.add("shape/fields", at+"."+f.name, fix, "%s", wrong)
		}
	}
	if h.Name == "tracepoint" && a.Tracepoint != "" && strings.Count(a.Tracepoint, "/") != 1 {
		r.add("shape/fields", at+".tracepoint", "write category/name, such as syscalls/sys_enter_execve", "tracepoint %q has no category", a.Tracepoint)
	}
}

func legalInterfaces(a v1alpha1.Attachment) (string, string) {
	i := a.Interfaces
	if len(i.Names) == 0 && !i.Primary {
		return "none of names and primary is given", `give one, such as names: ["*"] for all`
	}
	for _, pattern := range append(append([]string(nil), i.Names...), i.Exclude...) {
		// An empty or broken pattern must not come to mean every interface.
		if _, err := path.Match(pattern, "eth0"); err != nil || pattern == "" {
			return fmt.Sprintf("interface pattern %q is not a name or a glob", pattern), "write a name such as eth0 or a glob such as eth*"
		}
	}
	if i := slices.IndexFunc(i.Kinds, func(kind string) bool { return !linkKind.MatchString(kind) }); i >= 0 {
		return fmt.Sprintf("%q is no link type", a.Interfaces.Kinds[i]), "write link types of ip-link(8), such as bond, or physical"
	}
	if strings.ContainsFunc(i.MemberOf, func(c rune) bool { return unicode.IsSpace(c) || c == '/' }) {
		return fmt.Sprintf("%q is no interface", i.MemberOf), "name a bond, team, bridge or VRF"
	}
	if _, err := i.Expression(); err != nil {
		return err.Error(), fmt.Sprintf("write a regular expression of at most %d characters in the syntax of RE2, such as en[op].+", v1alpha1.MaxRegex)
	}
	return "", ""
}

// containerPattern is what the API server takes as the name of a container, or a glob.
var containerPattern = regexp.MustCompile(`^[a-z0-9*?\[\]^-]{1,63}$`)

// legalPods checks pods, and what the fields beside it mean in Pods.
func legalPods(a v1alpha1.Attachment) (string, string) {
	h, _ := hook.Lookup(a.Hook)
	for _, s := range []*metav1.LabelSelector{a.Pods.Selector, a.Pods.NamespaceSelector} {
		if wrong := wrongSelector(s); wrong != "" {
			return "no Pod can be chosen by it: " + wrong, "give labels, and requirements of key, operator and values, as Kubernetes takes them"
		}
	}
	for _, name := range a.Pods.Containers {
		if _, err := path.Match(name, "app"); err != nil || !containerPattern.MatchString(name) {
			return fmt.Sprintf("container pattern %q is not a name or a glob", name), "write a name such as app or a glob such as istio-*"
		}
	}
	switch {
	case len(a.Pods.Containers) > v1alpha1.MaxPodContainers:
		return fmt.Sprintf("%d containers are named", len(a.Pods.Containers)), fmt.Sprintf("name at most %d", v1alpha1.MaxPodContainers)
	case len(a.Pods.Containers) > 0 && !h.TakesContainers():
		return fmt.Sprintf("hook %s attaches to what all containers of a Pod share", h.Name), "remove pods.containers"
	case a.Cgroup != "":
		return "both cgroup and pods are given", "remove one of them"
	case a.NetworkNamespace != "":
		return "both networkNamespace and pods are given", "remove one of them"
	case a.Binary != nil && a.Binary.PID != 0:
		return "both binary.pid, a process of the node, and pods are given", "remove one of them"
	}
	return "", ""
}

// wrongSelector says what is wrong with a selector of Pods, or returns "".
func wrongSelector(s *metav1.LabelSelector) string {
	if s == nil {
		return ""
	}
	if n, m := len(s.MatchLabels), len(s.MatchExpressions); n > v1alpha1.MaxPodLabels || m > v1alpha1.MaxPodRequirements {
		return fmt.Sprintf("%d labels and %d requirements are listed, at most %d and %d are allowed", n, m, v1alpha1.MaxPodLabels, v1alpha1.MaxPodRequirements)
	}
	for _, e := range s.MatchExpressions {
		if n := len(e.Values); n > v1alpha1.MaxPodValues {
			return fmt.Sprintf("%d values of %s are listed, at most %d are allowed", n, e.Key, v1alpha1.MaxPodValues)
		}
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return err.Error()
	}
	return ""
}

// linkKind is a link type of ip-link(8).
var linkKind = regexp.MustCompile(`^[a-z0-9_]{1,16}$`)

func legalPosition(a v1alpha1.Attachment) (string, string) {
	if slices.Contains([]v1alpha1.Position{v1alpha1.PositionFirst, v1alpha1.PositionLast}, a.Position) {
		return "", ""
	}
	return fmt.Sprintf("position %q is not known", a.Position), "use First or Last, or leave it out"
}

func legalXDPMode(a v1alpha1.Attachment) (string, string) {
	if slices.Contains([]v1alpha1.XDPMode{v1alpha1.XDPAuto, v1alpha1.XDPNative, v1alpha1.XDPGeneric}, a.XDPMode) {
		return "", ""
	}
	return fmt.Sprintf("xdpMode %q is not known", a.XDPMode), "use Auto, Native or Generic"
}

func legalPriority(a v1alpha1.Attachment) (string, string) {
	if *a.Priority < 0 || *a.Priority > 1000 {
		return fmt.Sprintf("priority %d is out of range", *a.Priority), "use 0 to 1000; lower runs first"
	}
	return "", ""
}

func legalProceedOn(a v1alpha1.Attachment) (string, string) {
	var names []string
	for _, v := range hook.XDPVerdicts() {
		names = append(names, v.Name)
	}
	if len(a.ProceedOn) == 0 {
		return "proceedOn lists no verdict", "leave it out to mean Pass, or list some of " + strings.Join(names, ", ")
	}
	for _, want := range a.ProceedOn {
		known := false
		for _, n := range names {
			known = known || n == want
		}
		if !known {
			return fmt.Sprintf("verdict %q is not one an XDP program returns", want), "use " + strings.Join(names, ", ")
		}
	}
	return "", ""
}

// The bounds of functions, which a section may exceed. maxLinks is how many may be
// attached to by a link each.
const (
	maxLinks          = 1000
	maxFunctionNames  = 16
	maxFunctionOffset = 1 << 20
)

// functionPattern is what the API server takes as the name of a function, or a glob.
var functionPattern = regexp.MustCompile(`^[A-Za-z0-9_.*?\[\]^-]{1,256}$`)

func legalFunctions(a v1alpha1.Attachment) (string, string) {
	f := a.Functions
	h, _ := hook.Lookup(a.Hook)
	if len(f.Names) == 0 || max(len(f.Names), len(f.Exclude)) > maxFunctionNames {
		return fmt.Sprintf("%d names and %d exclusions are listed", len(f.Names), len(f.Exclude)),
			fmt.Sprintf("list 1 to %d functions.names and at most %[1]d exclusions", maxFunctionNames)
	}
	for _, name := range slices.Concat(f.Names, f.Exclude) {
		// An empty or broken pattern must not come to mean every function.
		if _, err := path.Match(name, "tcp_connect"); err != nil || !functionPattern.MatchString(name) {
			return fmt.Sprintf("function pattern %q is not a name or a glob", name), "write a name such as tcp_connect or a glob such as tcp_*"
		}
		if !h.FindsFunctions() && strings.ContainsAny(name, `*?[`) {
			return fmt.Sprintf("%q is a glob, and hook %s takes names", name, h.Name), "list the functions by name, or use kprobe.multi"
		}
	}
	limit, most := int32(v1alpha1.DefaultFunctions), int32(maxLinks)
	if f.Limit != nil {
		limit = *f.Limit
	}
	if h.AttachesAtOnce() {
		most = v1alpha1.MaxFunctions
	}
	switch {
	case len(f.Exclude) > 0 && !h.FindsFunctions():
		return fmt.Sprintf("hook %s takes names alone, of which none needs to be excluded", h.Name), "remove functions.exclude"
	case f.Module != "" && !h.TakesModule():
		return fmt.Sprintf("hook %s takes no functions of modules", h.Name), "remove functions.module"
	case f.Offset != 0 && (h.Name != "kprobe" || len(f.Names) != 1 || strings.ContainsAny(f.Names[0], `*?[`)):
		return fmt.Sprintf("offset %d is that in one function that is named, on hook kprobe", f.Offset),
			"name one function on hook kprobe, or write functions without an offset, which counts before that of a section"
	case f.Offset > maxFunctionOffset:
		return fmt.Sprintf("offset %d is out of range", f.Offset), fmt.Sprintf("use at most %d", maxFunctionOffset)
	case limit < 1 || limit > most:
		return fmt.Sprintf("limit %d is out of range for hook %s", limit, h.Name), fmt.Sprintf("use 1 to %d", most)
	case len(f.Names) > int(limit):
		return fmt.Sprintf("%d functions are named, and the limit is %d", len(f.Names), limit), "raise functions.limit"
	}
	return "", ""
}

func legalTracepoint(a v1alpha1.Attachment) (string, string) {
	for part := range strings.SplitSeq(a.Tracepoint, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsAny(part, " \t\n\x00:") {
			return fmt.Sprintf("tracepoint %q is not a name", a.Tracepoint), "write it as bpftrace -l or perf list does"
		}
	}
	return "", ""
}

func legalCgroup(a v1alpha1.Attachment) (string, string) {
	if !path.IsAbs(a.Cgroup) || path.Clean(a.Cgroup) != a.Cgroup {
		return fmt.Sprintf("cgroup %q is not a clean absolute path", a.Cgroup), "write the path below the cgroup2 mount, such as / or /system.slice"
	}
	return "", ""
}

// wrongPath reports whether a binary is named neither by a clean absolute path nor by a name to
// look for.
func wrongPath(file string) bool {
	if strings.Contains(file, "/") {
		return !path.IsAbs(file) || path.Clean(file) != file
	}
	return file == "" || file[0] == '.'
}

func legalBinary(a v1alpha1.Attachment) (string, string) {
	b := a.Binary
	switch {
	case wrongPath(b.Path):
		return fmt.Sprintf("binary path %q is neither a clean absolute path nor a name", b.Path),
			"write the full path, such as /usr/bin/bash, or a name to look for, such as libssl.so.3"
	case strings.HasPrefix(b.Path, "/proc/self/"), strings.HasPrefix(b.Path, "/proc/thread-self/"):
		return fmt.Sprintf("binary path %q leads to Skep itself, which attaches the program", b.Path), "write the full path of the binary, such as /usr/bin/bash"
	case b.Symbol == "" && b.Offset == 0 && b.Symbols == nil && b.USDT == nil:
		return "none of symbol, offset, symbols and usdt is given", "set symbol, offset or both; for a hook with .multi symbols, and for usdt usdt"
	case b.PID < 0:
		return fmt.Sprintf("pid %d is negative", b.PID), "use a process id, or 0 for every process"
	}
	return "", ""
}

func legalSymbols(a v1alpha1.Attachment) (string, string) {
	s := a.Binary.Symbols
	if len(s.Names) == 0 {
		return "no function is chosen", "set names"
	}
	if s.Limit != nil && (*s.Limit < 1 || *s.Limit > v1alpha1.MaxFunctions) {
		return fmt.Sprintf("limit %d is out of range", *s.Limit), fmt.Sprintf("use 1 to %d", v1alpha1.MaxFunctions)
	}
	n := 0
	for _, name := range slices.Concat(s.Names, s.Exclude) {
		n += len(name)
		if name == "" || strings.ContainsAny(name[:1], "!<") || strings.ContainsFunc(name, unicode.IsSpace) {
			return fmt.Sprintf("%q is not the name of a function or a glob", name), "write a name such as SSL_read or a glob such as SSL_*"
		}
	}
	if n > v1alpha1.MaxSymbolNames {
		return fmt.Sprintf("names and exclude have %d bytes together, and at most %d fit", n, v1alpha1.MaxSymbolNames), "use globs, or several attachments"
	}
	return "", ""
}

func legalUSDT(a v1alpha1.Attachment) (string, string) {
	for _, part := range []string{a.Binary.USDT.Provider, a.Binary.USDT.Name} {
		if part == "" || strings.ContainsFunc(part, func(r rune) bool { return r == ':' || unicode.IsSpace(r) }) {
			return fmt.Sprintf("%q is not the provider or the name of a probe", part), "write both as bpftrace -l lists them: path:provider:name"
		}
	}
	return "", ""
}

func legalNamespace(a v1alpha1.Attachment) (string, string) {
	if n := a.NetworkNamespace; !path.IsAbs(n) || path.Clean(n) != n {
		return fmt.Sprintf("network namespace %q is not a clean absolute path", n), "write a path such as /run/netns/blue"
	}
	return "", ""
}

func legalPerfEvent(a v1alpha1.Attachment) (string, string) {
	e := a.PerfEvent
	event, known := hook.LookupEvent(e.Event)
	// A clock's period is in nanoseconds.
	const shortest = 1_000_000_000 / v1alpha1.MaxFrequency
	switch {
	case !known:
		var names []string
		for _, e := range hook.Events() {
			names = append(names, e.Name)
		}
		return fmt.Sprintf("perf event %q is not known", e.Event), "use one of: " + strings.Join(names, ", ")
	case (e.Period == 0) == (e.Frequency == 0):
		return "not exactly one of period and frequency is given", "set period or frequency"
	case e.Period < 0 || e.Period > v1alpha1.MaxPeriod:
		return fmt.Sprintf("period %d is out of range", e.Period), fmt.Sprintf("use 1 to %d", v1alpha1.MaxPeriod)
	case event.IsClock() && e.Period != 0 && e.Period < shortest:
		return fmt.Sprintf("a period of %d ns samples %s more than %d times a second", e.Period, e.Event, v1alpha1.MaxFrequency),
			fmt.Sprintf("use %d or more", shortest)
	case e.Frequency < 0 || e.Frequency > v1alpha1.MaxFrequency:
		return fmt.Sprintf("frequency %d is out of range", e.Frequency), fmt.Sprintf("use 1 to %d a second", v1alpha1.MaxFrequency)
	case e.PID < 0:
		return fmt.Sprintf("pid %d is negative", e.PID), "use a process id, or 0 for every CPU"
	}
	return "", ""
}

func legalNetfilter(a v1alpha1.Attachment) (string, string) {
	n, families := a.Netfilter, hook.NetfilterFamilies()
	switch _, known := families[n.Family]; {
	case !known:
		return fmt.Sprintf("netfilter family %q is not known", n.Family), "use one of: " + strings.Join(sortedKeys(families), ", ")
	case !slices.Contains(hook.NetfilterHooks(), n.Hook):
		return fmt.Sprintf("netfilter hook %q is not known", n.Hook), "use one of: " + strings.Join(hook.NetfilterHooks(), ", ")
	case n.Priority == math.MinInt32 || n.Priority == math.MaxInt32:
		return fmt.Sprintf("the kernel keeps netfilter priority %d for itself", n.Priority), "use one between"
	case n.Defragment && n.Priority <= v1alpha1.DefragmentPriority:
		return fmt.Sprintf("packets are defragmented at priority %d, and the program would run before at %d", v1alpha1.DefragmentPriority, n.Priority),
			"use a higher priority, or remove defragment"
	}
	return "", ""
}
