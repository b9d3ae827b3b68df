package gate_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/hook"
)

// given sets one field of an attachment to something legal.
var given = map[string]func(*v1alpha1.Attachment, hook.Hook){
	"interfaces":      func(a *v1alpha1.Attachment, _ hook.Hook) { a.Interfaces = &v1alpha1.Interfaces{Primary: true} },
	"priority":        func(a *v1alpha1.Attachment, _ hook.Hook) { p := int32(0); a.Priority = &p },
	"afterNamespaces": func(a *v1alpha1.Attachment, _ hook.Hook) { a.AfterNamespaces = true },
	"position":        func(a *v1alpha1.Attachment, _ hook.Hook) { a.Position = v1alpha1.PositionLast },
	"proceedOn":       func(a *v1alpha1.Attachment, _ hook.Hook) { a.ProceedOn = []string{"Drop", "Tx"} },
	"xdpMode":         func(a *v1alpha1.Attachment, _ hook.Hook) { a.XDPMode = v1alpha1.XDPGeneric },
	"functions": func(a *v1alpha1.Attachment, _ hook.Hook) {
		a.Functions = &v1alpha1.Functions{Names: []string{"tcp_connect"}}
	},
	"tracepoint": func(a *v1alpha1.Attachment, h hook.Hook) {
		a.Tracepoint = "sched_switch"
		if h.Name == "tracepoint" {
			a.Tracepoint = "sched/sched_switch"
		}
	},
	"cgroup": func(a *v1alpha1.Attachment, _ hook.Hook) { a.Cgroup = "/" },
	"binary": func(a *v1alpha1.Attachment, h hook.Hook) {
		a.Binary = &v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main"}
		if strings.HasSuffix(h.Name, ".multi") {
			a.Binary = &v1alpha1.UserBinary{Path: "/bin/sh", Symbols: &v1alpha1.Symbols{Names: []string{"main*"}}}
		} else if h.Name == "usdt" {
			a.Binary = &v1alpha1.UserBinary{Path: "/bin/sh", USDT: &v1alpha1.USDT{Provider: "sh", Name: "main"}}
		}
	},
	"networkNamespace": func(a *v1alpha1.Attachment, _ hook.Hook) { a.NetworkNamespace = "/run/netns/blue" },
	"netfilter": func(a *v1alpha1.Attachment, _ hook.Hook) {
		a.Netfilter = &v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn"}
	},
	"perfEvent": func(a *v1alpha1.Attachment, _ hook.Hook) {
		a.PerfEvent = &v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: 99}
	},
	"pods": func(a *v1alpha1.Attachment, _ hook.Hook) { a.Pods = &v1alpha1.Pods{} },
}

// takes says which fields a hook takes, written out apart from the gate's own
// table.
func takes(h hook.Hook) []string {
	fields := map[hook.Shape][]string{
		hook.NetworkDevice: {"interfaces"}, hook.KernelFunction: {"functions"}, hook.Tracepoint: {"tracepoint"},
		hook.Cgroup: {"cgroup"}, hook.UserBinary: {"binary"}, hook.NetworkNamespace: {"networkNamespace"}, hook.PerfEvent: {"perfEvent"},
	}[h.Shape]
	if h.Sharing == hook.Ordered && h.Name != "netfilter" {
		fields = append(fields, "priority", "afterNamespaces")
	}
	if h.Name == "netfilter" {
		fields = append(fields, "netfilter")
	}
	if h.Name == "xdp" {
		fields = append(fields, "proceedOn", "xdpMode")
	}
	if strings.HasPrefix(h.Name, "tcx/") {
		fields = append(fields, "position")
	}
	if h.Name == "lsm_cgroup" {
		fields = append(fields, "functions")
	}
	if h.Namespaceable {
		fields = append(fields, "pods")
	}
	return fields
}

func TestASelectorIsOneThatKubernetesTakes(t *testing.T) {
	for name, s := range map[string]metav1.LabelSelector{
		"a prefix that is too long": {MatchLabels: map[string]string{strings.Repeat("a", 254) + "/role": "edge"}},
		"a value with a blank":      {MatchLabels: map[string]string{"role": "one two"}},
		"an operator that is none":  {MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "role", Operator: "Near", Values: []string{"edge"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			a := app("registry.example.com/a:v1", "p", onEth0())
			a.Spec.NodeSelector = &s
			if _, err := gate.Shape(gate.Request{Application: a}); err == nil || !strings.Contains(err.Error(), "shape/selector at spec.nodeSelector") {
				t.Errorf("Shape = %v", err)
			}
			a.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{strings.Repeat("a", 253) + "/role": "edge"}}
			if _, err := gate.Shape(gate.Request{Application: a}); err != nil {
				t.Errorf("one that can be: %v", err)
			}
		})
	}
}

func TestEveryHookTakesItsOwnFieldsAndNoOthers(t *testing.T) {
	for _, h := range hook.All() {
		if !h.Attachable {
			continue
		}
		for name, set := range given {
			a := v1alpha1.Attachment{Hook: h.Name}
			set(&a, h)
			_, err := gate.Shape(gate.Request{Application: app("registry.example.com/a:v1", "p", a)})
			if want := slices.Contains(takes(h), name); (err == nil) != want {
				t.Errorf("%s with %s: %v, want it taken: %v", h.Name, name, err, want)
			}
		}
	}
}

func TestHooksBeyondTheScopeOrTheAgentAreRefused(t *testing.T) {
	for _, h := range hook.All() {
		onNode := app("registry.example.com/a:v1", "p", v1alpha1.Attachment{Hook: h.Name})
		inPods := app("registry.example.com/a:v1", "p", v1alpha1.Attachment{Hook: h.Name, Pods: &v1alpha1.Pods{}})
		for what, a := range map[string]struct {
			app   v1alpha1.Application
			legal bool
		}{
			"a namespace's on the node": {namespaced(onNode), h.Attachable && h.Namespaceable && h.Shape == hook.NetworkDevice},
			"a namespace's in its Pods": {namespaced(inPods), h.Attachable && h.Namespaceable},
			"a cluster's on the node":   {onNode, h.Attachable},
			"a cluster's in Pods":       {inPods, h.Attachable && h.Namespaceable},
		} {
			if _, err := gate.Shape(gate.Request{Application: a.app}); (err == nil) != a.legal {
				t.Errorf("%s, %s: %v, want it legal: %v", h.Name, what, err, a.legal)
			}
		}
	}
}

func TestPodsAreTheNamespacesOwn(t *testing.T) {
	connect := func(p v1alpha1.Pods) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "cgroup/connect4", Pods: &p}
	}
	labels := func(n int) *metav1.LabelSelector {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprint("l", i)] = ""
		}
		return &metav1.LabelSelector{MatchLabels: all}
	}
	for sentence, c := range map[string]struct {
		at         v1alpha1.Attachment
		namespaced bool
		want       string
	}{
		"a namespace chooses none of others": {
			connect(v1alpha1.Pods{NamespaceSelector: &metav1.LabelSelector{}}), true, "shape/scope at spec.programs[0].attach[0].pods.namespaceSelector",
		},
		"a namespace chooses no place behind the cluster's programs": {
			v1alpha1.Attachment{Hook: "xdp", AfterNamespaces: true, Pods: &v1alpha1.Pods{}}, true, "shape/scope at spec.programs[0].attach[0].afterNamespaces",
		},
		"a cluster does": {v1alpha1.Attachment{Hook: "xdp", AfterNamespaces: true, Pods: &v1alpha1.Pods{}}, false, ""},
		"a namespace has no place among programs of others": {
			v1alpha1.Attachment{Hook: "tcx/egress", Pods: &v1alpha1.Pods{}, Position: v1alpha1.PositionFirst}, true,
			"shape/scope at spec.programs[0].attach[0].position: a BpfApplication places no program among those of others",
		},
		"a place that there is not": {
			v1alpha1.Attachment{Hook: "tcx/egress", Pods: &v1alpha1.Pods{}, Position: "Middle"}, false, `position "Middle" is not known`,
		},
		"a cluster chooses those of namespaces": {connect(v1alpha1.Pods{NamespaceSelector: labels(1)}), false, ""},
		"a selector that is none": {
			connect(v1alpha1.Pods{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a b"}}}), true, "no Pod can be chosen by it",
		},
		"more labels than are looked for": {connect(v1alpha1.Pods{Selector: labels(9)}), true, "9 labels and 0 requirements"},
		"as many as are":                  {connect(v1alpha1.Pods{Selector: labels(8)}), true, ""},
		"a broken glob of containers":     {connect(v1alpha1.Pods{Containers: []string{"[a"}}), true, `container pattern "[a"`},
		"an empty name of a container":    {connect(v1alpha1.Pods{Containers: []string{""}}), true, `container pattern ""`},
		"containers of a shared network": {
			v1alpha1.Attachment{Hook: "xdp", Pods: &v1alpha1.Pods{Containers: []string{"a"}}}, true, "what all containers of a Pod share",
		},
		"a cgroup beside them": {v1alpha1.Attachment{Hook: "sockops", Cgroup: "/", Pods: &v1alpha1.Pods{}}, true, "both cgroup and pods"},
		"a network namespace beside them": {
			v1alpha1.Attachment{Hook: "sk_lookup", NetworkNamespace: "/run/netns/a", Pods: &v1alpha1.Pods{}}, true, "both networkNamespace and pods",
		},
		"a process of the node": {v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main", PID: 1}, Pods: &v1alpha1.Pods{}},
			true,
			"both binary.pid, a process of the node, and pods"},
		"a binary by its name": {
			v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "libssl.so.3", Symbol: "SSL_read"}, Pods: &v1alpha1.Pods{}}, true, "",
		},
		"a binary by a name with dots": {v1alpha1.Attachment{Hook: "uprobe", Binary: &v1alpha1.UserBinary{Path: "..", Symbol: "SSL_read"}, Pods: &v1alpha1.Pods{}},
			true,
			"neither a clean absolute path nor a name"},
	} {
		t.Run(sentence, func(t *testing.T) {
			wide := app("registry.example.com/a:v1", "p", c.at)
			var a v1alpha1.Application = wide
			if c.namespaced {
				a = namespaced(wide)
			}
			_, err := gate.Shape(gate.Request{Application: a})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Shape = %v, want %q", err, c.want)
			}
		})
	}
}

func TestValuesThatAreNoneAreRefused(t *testing.T) {
	nic := func(names, exclude []string) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: names, Exclude: exclude}}
	}
	high, low := int32(1001), int32(-1)
	probe := func(b v1alpha1.UserBinary) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "uprobe", Binary: &b}
	}
	many := func(names, exclude []string, limit int32) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "uprobe.multi", Binary: &v1alpha1.UserBinary{
			Path: "/bin/sh", Symbols: &v1alpha1.Symbols{Names: names, Exclude: exclude, Limit: &limit},
		}}
	}
	filter := func(n v1alpha1.Netfilter) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "netfilter", Netfilter: &n}
	}
	sampled := func(e v1alpha1.PerfEvent) v1alpha1.Attachment {
		return v1alpha1.Attachment{Hook: "perf_event", PerfEvent: &e}
	}
	for name, a := range map[string]v1alpha1.Attachment{
		"a symbol for a USDT probe":      {Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main"}},
		"a USDT probe for a symbol":      probe(v1alpha1.UserBinary{Path: "/bin/sh", USDT: &v1alpha1.USDT{Provider: "sh", Name: "main"}}),
		"a USDT probe without a name":    {Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", USDT: &v1alpha1.USDT{Provider: "sh"}}},
		"a USDT probe with a colon":      {Hook: "usdt", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", USDT: &v1alpha1.USDT{Provider: "sh:x", Name: "main"}}},
		"one place for many":             {Hook: "uprobe.multi", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main"}},
		"an offset for many":             {Hook: "uretprobe.multi", Binary: &v1alpha1.UserBinary{Path: "/bin/sh", Offset: 4096}},
		"many places for one":            probe(v1alpha1.UserBinary{Path: "/bin/sh", Symbols: &v1alpha1.Symbols{Names: []string{"main"}}}),
		"no function of many":            many(nil, []string{"a"}, 1),
		"a function without a name":      many([]string{""}, nil, 1),
		"a function that is a limit":     many([]string{"<=7"}, nil, 1),
		"an exclusion with a blank":      many([]string{"a"}, []string{"a b"}, 1),
		"a limit of none":                many([]string{"a"}, nil, 0),
		"a limit too high":               many([]string{"a"}, nil, 10001),
		"names too long together":        many([]string{strings.Repeat("a", 2048)}, []string{"a"}, 1),
		"no interface at all":            nic(nil, nil),
		"an empty interface name":        nic([]string{""}, nil),
		"a broken glob":                  nic([]string{"eth[0"}, nil),
		"a broken exclusion":             nic([]string{"eth0"}, []string{"["}),
		"an empty exclusion":             nic([]string{"eth0"}, []string{""}),
		"a broken regex":                 {Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"*"}, Regex: "eth[0"}},
		"a regex too long":               {Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Names: []string{"*"}, Regex: strings.Repeat("e", v1alpha1.MaxRegex+1)}},
		"a regex alone":                  {Hook: "xdp", Interfaces: &v1alpha1.Interfaces{Regex: "eth.*"}},
		"a priority too high":            {Hook: "xdp", Interfaces: onEth0().Interfaces, Priority: &high},
		"a priority too low":             {Hook: "xdp", Interfaces: onEth0().Interfaces, Priority: &low},
		"a verdict XDP does not have":    {Hook: "xdp", Interfaces: onEth0().Interfaces, ProceedOn: []string{"pass"}},
		"a tracepoint without category":  {Hook: "tracepoint", Tracepoint: "sched_switch"},
		"a tracepoint out of tracefs":    {Hook: "tracepoint", Tracepoint: "../events"},
		"a raw tracepoint with a space":  {Hook: "raw_tp", Tracepoint: "a b"},
		"a relative cgroup":              {Hook: "cgroup/connect4", Cgroup: "system.slice"},
		"a cgroup out of the mount":      {Hook: "cgroup/connect4", Cgroup: "/../etc"},
		"a relative binary":              probe(v1alpha1.UserBinary{Path: "bin/sh", Symbol: "main"}),
		"a binary by a crooked path":     probe(v1alpha1.UserBinary{Path: "/bin/../sbin/init", Symbol: "main"}),
		"no place in the binary":         probe(v1alpha1.UserBinary{Path: "/bin/sh"}),
		"a negative pid":                 probe(v1alpha1.UserBinary{Path: "/bin/sh", Symbol: "main", PID: -1}),
		"a relative network namespace":   {Hook: "sk_lookup", NetworkNamespace: "blue"},
		"a family without packets":       filter(v1alpha1.Netfilter{Family: "inet", Hook: "LocalIn"}),
		"a hook of nftables' name":       filter(v1alpha1.Netfilter{Family: "IPv4", Hook: "input"}),
		"the kernel's first priority":    filter(v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: math.MinInt32}),
		"the kernel's last priority":     filter(v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: math.MaxInt32}),
		"whole packets too early":        filter(v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: -400, Defragment: true}),
		"an event that perf lacks":       sampled(v1alpha1.PerfEvent{Event: "cycles", Frequency: 99}),
		"neither period nor frequency":   sampled(v1alpha1.PerfEvent{Event: "cpu-clock"}),
		"both period and frequency":      sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Period: 1_000_000, Frequency: 99}),
		"a negative period":              sampled(v1alpha1.PerfEvent{Event: "page-faults", Period: -1}),
		"a period too long":              sampled(v1alpha1.PerfEvent{Event: "page-faults", Period: v1alpha1.MaxPeriod + 1}),
		"a clock's period too short":     sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Period: 9_999}),
		"a negative frequency":           sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: -1}),
		"a frequency too high":           sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: v1alpha1.MaxFrequency + 1}),
		"a negative pid of an event":     sampled(v1alpha1.PerfEvent{Event: "cpu-clock", Frequency: 99, PID: -1}),
		"a network namespace out of run": {Hook: "sk_lookup", NetworkNamespace: "/run/netns/../../proc/1/ns/net"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gate.Shape(gate.Request{Application: app("registry.example.com/a:v1", "p", a)})
			var refusal *gate.Denial
			if !errors.As(err, &refusal) {
				t.Fatalf("Shape = %v, want a refusal", err)
			}
			for _, r := range refusal.Reasons {
				if r.Rule != "shape/fields" || r.Fix == "" || !strings.HasPrefix(r.Path, "spec.programs[0].attach[0].") {
					t.Errorf("reason %+v: want rule, path and fix", r)
				}
			}
			if !strings.Contains(err.Error(), "deny app: shape/fields at spec.programs[0]") {
				t.Errorf("the error does not name object, rule and path: %v", err)
			}
		})
	}
}

func TestAllReasonsAreToldAtOnce(t *testing.T) {
	a := app("", "", v1alpha1.Attachment{Hook: "xpd"}, v1alpha1.Attachment{Hook: "tcx/ingress", ProceedOn: []string{"Pass"}})
	_, err := gate.Shape(gate.Request{Application: a})
	var refusal *gate.Denial
	if !errors.As(err, &refusal) {
		t.Fatal(err)
	}
	var got []string
	for _, r := range refusal.Reasons {
		got = append(got, r.Path)
	}
	want := []string{"spec.bytecode.image", "spec.programs[0].name", "spec.programs[0].attach[0].hook", "spec.programs[0].attach[1].proceedOn"}
	if !slices.Equal(got, want) {
		t.Errorf("paths %q, want %q", got, want)
	}
}

func TestMoreAttachmentsThanAnAPIServerTakesAreDenied(t *testing.T) {
	// listing is an application whose programs list so many attachments each.
	listing := func(attachments ...int) *v1alpha1.ClusterBpfApplication {
		a := app("registry.example.com/a:v1", "p")
		a.Spec.Programs = nil
		for i, n := range attachments {
			a.Spec.Programs = append(a.Spec.Programs, v1alpha1.Program{
				Name: fmt.Sprintf("p%d", i), Attach: slices.Repeat([]v1alpha1.Attachment{{Hook: "iter"}}, n)})
		}
		return a
	}
	full := slices.Repeat([]int{v1alpha1.MaxProgramAttachments}, v1alpha1.MaxAttachments/v1alpha1.MaxProgramAttachments)
	for name, c := range map[string]struct {
		app  *v1alpha1.ClusterBpfApplication
		path string
	}{
		"as many as there may be":                {listing(append(full, 0)...), ""},
		"one too many of a program":              {listing(1, v1alpha1.MaxProgramAttachments+1), "spec.programs[1].attach"},
		"as many programs as there may be":       {listing(slices.Repeat([]int{1}, v1alpha1.MaxPrograms)...), ""},
		"one program too many":                   {listing(make([]int, v1alpha1.MaxPrograms+1)...), "spec.programs"},
		"as many programs as may list many":      {listing(append(make([]int, v1alpha1.MaxProgramsOfMany-1), 16)...), ""},
		"one more of those":                      {listing(append(make([]int, v1alpha1.MaxProgramsOfMany), v1alpha1.MaxFewAttachments+1)...), "spec.programs"},
		"as many attachments as one of many has": {listing(append(make([]int, v1alpha1.MaxProgramsOfMany), v1alpha1.MaxFewAttachments)...), ""},
		"one too many in all":                    {listing(append(full, 1)...), "spec.programs"},
		"the former bounds, all used":            {listing(slices.Repeat([]int{64}, 64)...), "spec.programs[0].attach"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := gate.Shape(gate.Request{Application: c.app})
			var refusal *gate.Denial
			switch errors.As(err, &refusal); {
			case c.path == "" && err != nil:
				t.Error(err)
			case c.path != "" && (refusal == nil || refusal.Reasons[0].Rule != "shape/programs" || refusal.Reasons[0].Path != c.path || refusal.Reasons[0].Fix == ""):
				t.Errorf("Shape = %v, want a denial at %s", err, c.path)
			}
		})
	}
}

func TestAlternativesLeaveNothingOpen(t *testing.T) {
	set := func(names ...string) v1alpha1.ProgramSet { return v1alpha1.ProgramSet{Programs: names} }
	of := func(name string, sets ...v1alpha1.ProgramSet) v1alpha1.Alternative {
		return v1alpha1.Alternative{Name: name, AnyOf: sets}
	}
	for sentence, c := range map[string]struct {
		alternatives []v1alpha1.Alternative
		path         string
	}{
		"two sets":         {[]v1alpha1.Alternative{of("x", set("a"), set("b", "c"))}, ""},
		"two alternatives": {[]v1alpha1.Alternative{of("x", set("a"), set("b")), of("y", set("c"), set("d"))}, ""},
		"no name":          {[]v1alpha1.Alternative{of("", set("a"), set("b"))}, "spec.alternatives[0].name"},
		"one name twice":   {[]v1alpha1.Alternative{of("x", set("a"), set("b")), of("x", set("c"), set("d"))}, "spec.alternatives[1].name"},
		"one set":          {[]v1alpha1.Alternative{of("x", set("a"))}, "spec.alternatives[0].anyOf"},
		"too many sets":    {[]v1alpha1.Alternative{of("x", slices.Repeat([]v1alpha1.ProgramSet{set("a")}, 9)...)}, "spec.alternatives[0].anyOf"},
		"an empty set":     {[]v1alpha1.Alternative{of("x", set("a"), set())}, "spec.alternatives[0].anyOf[1].programs"},
		"too many programs in a set": {
			[]v1alpha1.Alternative{of("x", set("a"), set(slices.Repeat([]string{"b"}, 17)...))}, "spec.alternatives[0].anyOf[1].programs",
		},
		"a program that is not listed": {[]v1alpha1.Alternative{of("x", set("a"), set("nothing"))}, "spec.alternatives[0].anyOf[1].programs"},
		"a program in two sets": {
			[]v1alpha1.Alternative{of("x", set("a"), set("b")), of("y", set("c"), set("b"))}, "spec.alternatives[1].anyOf[1].programs",
		},
		"a program twice in a set":           {[]v1alpha1.Alternative{of("x", set("a", "a"), set("b"))}, "spec.alternatives[0].anyOf[0].programs"},
		"an optional program":                {[]v1alpha1.Alternative{of("x", set("a"), set("optional"))}, "spec.alternatives[0].anyOf[1].programs"},
		"a program with an optional hook":    {[]v1alpha1.Alternative{of("x", set("a"), set("partly"))}, "spec.alternatives[0].anyOf[1].programs"},
		"more than an API server would take": {slices.Repeat([]v1alpha1.Alternative{of("x", set("a"), set("b"))}, 17), "spec.alternatives"},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := app("registry.example.com/a:v1", "a")
			for _, name := range []string{"b", "c", "d"} {
				a.Spec.Programs = append(a.Spec.Programs, v1alpha1.Program{Name: name})
			}
			a.Spec.Programs = append(a.Spec.Programs, v1alpha1.Program{Name: "optional", Optional: true},
				v1alpha1.Program{Name: "partly", Attach: []v1alpha1.Attachment{{Hook: "iter", Optional: true}}})
			a.Spec.Alternatives = c.alternatives
			_, err := gate.Shape(gate.Request{Application: a})
			var denial *gate.Denial
			switch errors.As(err, &denial); {
			case c.path == "" && err != nil:
				t.Error(err)
			case c.path != "" && (denial == nil || denial.Reasons[0].Rule != "shape/alternatives" || denial.Reasons[0].Path != c.path || denial.Reasons[0].Fix == ""):
				t.Errorf("Shape = %v, want a denial at %s", err, c.path)
			}
		})
	}
}

func TestFunctionsAreThoseThatTheHookTakes(t *testing.T) {
	limit := func(n int32) *int32 { return &n }
	many := slices.Repeat([]string{"a"}, 17)
	for sentence, c := range map[string]struct {
		hook string
		f    v1alpha1.Functions
		want string
	}{
		"a name": {"fentry", v1alpha1.Functions{Names: []string{"tcp_connect"}}, ""},
		"a glob of kprobes": {
			"kprobe", v1alpha1.Functions{Names: []string{"tcp_*"}, Exclude: []string{"tcp_v6_*"}, Module: "ipv6", Limit: limit(1000)}, "",
		},
		"an offset":                        {"kprobe", v1alpha1.Functions{Names: []string{"tcp_connect"}, Offset: 16}, ""},
		"thousands by one link":            {"kprobe.multi", v1alpha1.Functions{Names: []string{"*"}, Limit: limit(10000)}, ""},
		"a glob where a program is loaded": {"fentry", v1alpha1.Functions{Names: []string{"tcp_*"}}, "is a glob, and hook fentry takes names"},
		"a glob of system calls":           {"ksyscall", v1alpha1.Functions{Names: []string{"open*"}}, "is a glob, and hook ksyscall takes names"},
		"an exclusion of names":            {"lsm", v1alpha1.Functions{Names: []string{"file_open"}, Exclude: []string{"bpf"}}, "none needs to be excluded"},
		"a module of fexit":                {"fexit", v1alpha1.Functions{Names: []string{"a"}, Module: "m"}, ""},
		"a module of system calls":         {"ksyscall", v1alpha1.Functions{Names: []string{"a"}, Module: "m"}, "takes no functions of modules"},
		"a module of lsm":                  {"lsm", v1alpha1.Functions{Names: []string{"a"}, Module: "m"}, "takes no functions of modules"},
		"an offset of many":                {"kprobe.multi", v1alpha1.Functions{Names: []string{"a"}, Offset: 4}, "name one function on hook kprobe"},
		"an offset in a glob":              {"kprobe", v1alpha1.Functions{Names: []string{"a*"}, Offset: 4}, "name one function on hook kprobe"},
		"an offset beyond any function":    {"kprobe", v1alpha1.Functions{Names: []string{"a"}, Offset: 1 << 40}, "out of range"},
		"no limit":                         {"kprobe.multi", v1alpha1.Functions{Names: []string{"a*"}, Limit: limit(0)}, "use 1 to 10000"},
		"a limit of links":                 {"kprobe", v1alpha1.Functions{Names: []string{"a*"}, Limit: limit(1001)}, "use 1 to 1000"},
		"more names than the limit":        {"kprobe", v1alpha1.Functions{Names: []string{"a", "b"}, Limit: limit(1)}, "raise functions.limit"},
		"no name":                          {"kprobe", v1alpha1.Functions{}, "list 1 to 16 functions.names"},
		"too many names":                   {"kprobe", v1alpha1.Functions{Names: many}, "list 1 to 16 functions.names"},
		"what is no name":                  {"kprobe.multi", v1alpha1.Functions{Names: []string{"foo bar"}}, "is not a name or a glob"},
		"a broken glob":                    {"kprobe", v1alpha1.Functions{Names: []string{"tcp_["}}, "is not a name or a glob"},
	} {
		t.Run(sentence, func(t *testing.T) {
			a := app("registry.example.com/a:v1", "p", v1alpha1.Attachment{Hook: c.hook, Functions: &c.f})
			_, err := gate.Shape(gate.Request{Application: a})
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Shape = %v, want %q", err, c.want)
			}
		})
	}
}
