package plan_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestMake runs the cases of testdata: what is wanted, what is found, and the actions, one a line,
// or the endings that go before all. The lines are read by parser.
func TestMake(t *testing.T) {
	decisions := map[string]func(plan.Want, plan.State) []plan.Action{"actions": plan.Make, "endings": plan.Endings}
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) (got []txtar.File) {
		p := parser{t: t, interfaces: map[string]int{}}
		for _, f := range a.Files {
			switch f.Name {
			case "want":
				p.want(string(f.Data))
			case "have":
				p.have(string(f.Data))
			}
		}
		for _, f := range a.Files {
			decide := decisions[f.Name]
			if decide == nil {
				continue
			}
			first := lines(decide(p.w, p.h))
			for range 10 {
				if again := lines(decide(p.w, p.h)); again != first {
					t.Fatalf("another run plans otherwise: %s", again)
				}
			}
			got = append(got, golden.Part(f.Name, first))
		}
		return got
	})
}

func lines(actions []plan.Action) string {
	var all strings.Builder
	for _, a := range actions {
		fmt.Fprintln(&all, a)
	}
	return all.String()
}

// parser reads the lines of a case:
//
//	interface NAME            an interface that exists: DEVICE@POD, with index 2, is that of a pod
//	app UID REVISION          a wanted application
//	gone|frozen UID
//	UID                       is team/NAME for an application of the namespace team
//	PRIORITY                  is after:PRIORITY for a program of the cluster that runs after namespaces
//	at UID HOOK TARGET PRIORITY [PROGRAM]    a wanted attachment of UID
//	revision UID REVISION     a pinned revision
//	link UID REVISION HOOK TARGET PRIORITY POSITION [severed]
//	chain NAME [severed] [unknown:UID ...] [off:]UID@REVISION:PRIORITY ...
type parser struct {
	t          *testing.T
	interfaces map[string]int
	w          plan.Want
	h          plan.State
}

func (p *parser) lines(text string, do func(fields []string)) {
	for line := range strings.SplitSeq(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(line, "#") {
			do(fields)
		}
	}
}

func (p *parser) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

func (p *parser) target(hook, name string) plan.Target {
	switch {
	case strings.HasPrefix(hook, "xdp"), strings.HasPrefix(hook, "tcx"):
		if device, pod, found := strings.Cut(name, "@"); found {
			var id uint64
			for _, c := range pod {
				id = id<<8 + uint64(c)
			}
			return plan.Target{Ifindex: 2, Interface: device, NetnsID: id, In: "pod " + pod}
		}
		if p.interfaces[name] == 0 {
			p.interfaces[name] = len(p.interfaces) + 1
		}
		return plan.Target{Ifindex: p.interfaces[name], Interface: name}
	case hook == "uprobe":
		file, container, _ := strings.Cut(name, "@")
		return plan.Target{Binary: file, BinaryID: "overlay:1", Symbol: "work", Container: container, In: "container " + container}
	case strings.HasPrefix(hook, "cgroup"):
		return plan.Target{Cgroup: name}
	}
	return plan.Target{Tracepoint: name}
}

func (p *parser) attachment(uid, hook, target, priority string) plan.Attachment {
	priority, after := strings.CutPrefix(priority, "after:")
	return plan.Attachment{Application: identity(uid), Program: "f", Instance: plan.Instance("f", hook, target),
		Hook: hook, Target: p.target(hook, target), Priority: int32(p.number(priority)), AfterNamespaces: after}
}

func identity(uid string) v1alpha1.Identity {
	if namespace, name, found := strings.Cut(uid, "/"); found {
		return v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: name}
	}
	return v1alpha1.Identity{Name: uid}
}

func (p *parser) want(text string) {
	p.lines(text, func(f []string) {
		switch f[0] {
		case "app":
			p.w.Applications = append(p.w.Applications, plan.Application{UID: f[1], Identity: identity(f[1]), Revision: f[2]})
		case "gone":
			p.w.Gone = append(p.w.Gone, f[1])
		case "frozen":
			p.w.Frozen = append(p.w.Frozen, f[1])
		case "at":
			for i := range p.w.Applications {
				if p.w.Applications[i].UID == f[1] {
					a := p.attachment(f[1], f[2], f[3], f[4])
					if len(f) > 5 {
						a.Program, a.Instance = f[5], f[5]
					}
					p.w.Applications[i].Attachments = append(p.w.Applications[i].Attachments, a)
				}
			}
		default:
			p.t.Fatalf("want: %v", f)
		}
	})
}

func (p *parser) have(text string) {
	p.h.Revisions = map[string][]string{}
	p.lines(text, func(f []string) {
		switch f[0] {
		case "interface":
			at := p.target("xdp", f[1])
			p.h.Interfaces = append(p.h.Interfaces, plan.Interface{Device: at.Device(), Name: at.Interface, In: at.In})
		case "revision":
			p.h.Revisions[f[1]] = append(p.h.Revisions[f[1]], f[2])
		case "link":
			revision := strings.TrimPrefix(f[2], "?")
			p.h.Links = append(p.h.Links, plan.Link{UID: f[1], Revision: revision, Attachment: p.attachment(f[1], f[3], f[4], f[5]),
				Position: p.number(f[6]), Severed: len(f) > 7})
		case "chain":
			on := p.target("xdp", f[1])
			c := plan.Chain{Device: on.Device(), Interface: on.String()}
			for _, m := range f[2:] {
				if m == "severed" {
					c.Severed = true
					continue
				}
				if user, ok := strings.CutPrefix(m, "unknown:"); ok {
					c.Unknown, c.Users = true, append(c.Users, user)
					continue
				}
				m, isOff := strings.CutPrefix(m, "off:")
				uid, rest, _ := strings.Cut(m, "@")
				revision, priority, _ := strings.Cut(rest, ":")
				priority, after := strings.CutPrefix(priority, "after:")
				c.Members = append(c.Members, plan.Member{
					UID: uid, Identity: identity(uid), Revision: revision, Program: "f", Priority: int32(p.number(priority)), AfterNamespaces: after,
				})
				if isOff {
					c.Off = append(c.Off, c.Members[len(c.Members)-1])
				}
			}
			p.h.Chains = append(p.h.Chains, c)
		default:
			p.t.Fatalf("have: %v", f)
		}
	})
}

func TestSelect(t *testing.T) {
	all := []plan.Interface{
		{Name: "lo"}, {Name: "eth0", Primary: true, Physical: true}, {Name: "eth1", Physical: true, Master: "bond0"}, {Name: "veth9", Kind: "veth"},
		{Name: "bond0", Kind: "bond"},
	}
	for sentence, c := range map[string]struct {
		selection *v1alpha1.Interfaces
		want      string
		err       string
	}{
		"all physical ones":                 {&v1alpha1.Interfaces{Names: []string{"*"}, Kinds: []string{"physical"}}, "eth0 eth1", ""},
		"by two kinds":                      {&v1alpha1.Interfaces{Names: []string{"*"}, Kinds: []string{"veth", "bond"}}, "veth9 bond0", ""},
		"by a name and another kind":        {&v1alpha1.Interfaces{Names: []string{"veth*"}, Kinds: []string{"physical"}}, "", ""},
		"the primary one, if it is of kind": {&v1alpha1.Interfaces{Primary: true, Kinds: []string{"bond"}}, "", ""},
		"members of a bond":                 {&v1alpha1.Interfaces{Names: []string{"*"}, MemberOf: "bond0"}, "eth1", ""},
		"members of a bond but for some":    {&v1alpha1.Interfaces{Names: []string{"*"}, MemberOf: "bond0", Exclude: []string{"eth*"}}, "", ""},
		"members of a bond of a kind":       {&v1alpha1.Interfaces{Names: []string{"*"}, MemberOf: "bond0", Kinds: []string{"veth"}}, "", ""},
		"a kind alone means nothing":        {&v1alpha1.Interfaces{Kinds: []string{"physical"}, MemberOf: "bond0"}, "", "neither names nor primary"},
		"by a regex":                        {&v1alpha1.Interfaces{Names: []string{"*"}, Regex: `eth[0-9]|bond\d`}, "eth0 eth1 bond0", ""},
		"a regex takes the whole name":      {&v1alpha1.Interfaces{Names: []string{"*"}, Regex: "eth|o"}, "", ""},
		"a regex only narrows":              {&v1alpha1.Interfaces{Names: []string{"eth1", "lo"}, Regex: "eth.*"}, "eth1", ""},
		"the primary one, if it matches":    {&v1alpha1.Interfaces{Primary: true, Regex: "en.*"}, "", ""},
		"a regex alone means nothing":       {&v1alpha1.Interfaces{Regex: ".*"}, "", "neither names nor primary"},
		"a broken regex never means all":    {&v1alpha1.Interfaces{Names: []string{"*"}, Regex: "eth[0"}, "", `interfaces: read regex "eth[0": character 4`},
		"by name":                           {&v1alpha1.Interfaces{Names: []string{"eth1"}}, "eth1", ""},
		"by glob":                           {&v1alpha1.Interfaces{Names: []string{"eth*"}}, "eth0 eth1", ""},
		"a glob takes the whole name":       {&v1alpha1.Interfaces{Names: []string{"eth"}}, "", ""},
		"by a set of letters":               {&v1alpha1.Interfaces{Names: []string{"[lv]*"}}, "lo veth9", ""},
		"the primary one":                   {&v1alpha1.Interfaces{Primary: true}, "eth0", ""},
		"the primary one and others":        {&v1alpha1.Interfaces{Primary: true, Names: []string{"lo", "eth*"}}, "lo eth0 eth1", ""},
		"all but some":                      {&v1alpha1.Interfaces{Names: []string{"*"}, Exclude: []string{"lo", "veth*", "bond*"}}, "eth0 eth1", ""},
		"the primary one can be excluded":   {&v1alpha1.Interfaces{Primary: true, Exclude: []string{"eth0"}}, "", ""},
		"a name that is not there":          {&v1alpha1.Interfaces{Names: []string{"wlan0"}}, "", ""},
		"nothing said means nothing":        {&v1alpha1.Interfaces{}, "", "neither names nor primary"},
		"absent means nothing":              {nil, "", "neither names nor primary"},
		"only an exclusion means nothing":   {&v1alpha1.Interfaces{Exclude: []string{"lo"}}, "", "neither names nor primary"},
		"a broken pattern never means all":  {&v1alpha1.Interfaces{Names: []string{"eth0", "[a"}}, "", `names: "[a" is not a pattern`},
		"a broken exclusion excludes none":  {&v1alpha1.Interfaces{Names: []string{"*"}, Exclude: []string{"["}}, "", `exclude: "[" is not a pattern`},
		"an empty name is a mistake":        {&v1alpha1.Interfaces{Names: []string{""}}, "", "empty name"},
		"a pattern that breaks late breaks": {&v1alpha1.Interfaces{Names: []string{"zzz[", "eth0"}}, "", "not a pattern"},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, err := plan.Select(c.selection, all)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || got != nil {
					t.Fatalf("Select = %v, %v; want an error that says %q", got, err, c.err)
				}
				return
			}
			var names []string
			for _, i := range got {
				names = append(names, i.Name)
			}
			if strings.Join(names, " ") != c.want || err != nil {
				t.Errorf("Select = %v, %v; want %s", names, err, c.want)
			}
		})
	}
}

func TestInstancesAreToldApartWhereTheKernelDoes(t *testing.T) {
	for sentence, c := range map[string]struct{ hook, tracepoint, want string }{
		"xdp is loaded once":                       {"xdp", "", "f"},
		"tcx is loaded once for both directions":   {"tcx/egress", "", "f"},
		"tracepoints are chosen when attaching":    {"tracepoint", "a/b", "f"},
		"raw tracepoints, too":                     {"raw_tp", "b", "f"},
		"tp_btf is loaded for its target":          {"tp_btf", "sys_enter", "f@tp_btf/sys_enter"},
		"uprobe and uretprobe share a program":     {"uretprobe", "", "f"},
		"cgroup hooks differ by attach type":       {"cgroup/bind4", "", "f@cgroup/bind4"},
		"iterators carry their target themselves":  {"iter", "", "f@iter"},
		"what the table lacks keeps the bare name": {"nope", "", "f"},
	} {
		if got := plan.Instance("f", c.hook, c.tracepoint); got != c.want {
			t.Errorf("%s: Instance = %q, want %q", sentence, got, c.want)
		}
	}
}

func TestAKeyIsTheTargetAndNotItsName(t *testing.T) {
	base := plan.Attachment{Program: "f", Hook: "tcx/ingress", Target: plan.Target{Ifindex: 3, Interface: "eth0"}, Priority: 5}
	for sentence, c := range map[string]struct {
		change func(*plan.Attachment)
		same   bool
	}{
		"a renamed interface":      {func(a *plan.Attachment) { a.Interface = "eth1" }, true},
		"another priority":         {func(a *plan.Attachment) { a.Priority = 6 }, true},
		"another verdict":          {func(a *plan.Attachment) { a.ProceedOn = 4 }, true},
		"another interface":        {func(a *plan.Attachment) { a.Ifindex = 4 }, false},
		"another namespace":        {func(a *plan.Attachment) { a.NetnsID = 4 }, false},
		"other words for whose":    {func(a *plan.Attachment) { a.In = "pod a/b" }, true},
		"another program":          {func(a *plan.Attachment) { a.Program = "g" }, false},
		"another hook":             {func(a *plan.Attachment) { a.Hook = "tcx/egress" }, false},
		"a file that was replaced": {func(a *plan.Attachment) { a.BinaryID = "1:2" }, false},
		"another scope":            {func(a *plan.Attachment) { a.Scope = "x" }, false},
		"a cgroup made anew":       {func(a *plan.Attachment) { a.CgroupID = 7 }, false},
		"another process":          {func(a *plan.Attachment) { a.PID = 7 }, false},
	} {
		changed := base
		c.change(&changed)
		if (changed.Key() == base.Key()) != c.same {
			t.Errorf("%s: keys equal is %v", sentence, !c.same)
		}
	}
}

func TestTargetsAreSaidAsInTheDefinition(t *testing.T) {
	for want, target := range map[string]plan.Target{
		"eth0":                        {Ifindex: 2, Interface: "eth0"},
		"eth0 in pod team-a/web":      {Ifindex: 2, Interface: "eth0", NetnsID: 7, In: "pod team-a/web"},
		"eth0 in net:[7]":             {Ifindex: 2, Interface: "eth0", NetnsID: 7},
		"sched/sched_switch":          {Tracepoint: "sched/sched_switch"},
		"/pods":                       {Cgroup: "/pods", CgroupID: 5},
		"/bin/sh:main+0x10 (pid 7)":   {Binary: "/bin/sh", Symbol: "main", Offset: 16, PID: 7},
		"/run/netns/blue":             {NetworkNamespace: "/run/netns/blue", NetnsID: 4},
		"-":                           {NetnsID: 4},
		"/usr/lib/libc.so.6+0x200000": {Binary: "/usr/lib/libc.so.6", Offset: 1 << 21},
		"IPv4 LocalIn priority -5":    {Netfilter: v1alpha1.Netfilter{Family: "IPv4", Hook: "LocalIn", Priority: -5}, NetnsID: 3},
		"IPv6 Forward priority 0 in /run/netns/x": {Netfilter: v1alpha1.Netfilter{Family: "IPv6", Hook: "Forward"}, NetworkNamespace: "/run/netns/x"},
		"cpu-clock 99 Hz (CPU 0)":                 {Event: "cpu-clock", Frequency: 99},
		"page-faults every 100 (pid 7, thread 8)": {Event: "page-faults", Period: 100, PID: 7, Thread: 8, Began: 9},
	} {
		if got := target.String(); got != want {
			t.Errorf("String = %q, want %q", got, want)
		}
	}
}
