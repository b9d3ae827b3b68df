package admission_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs the cases of testdata: the intents, what the node has and remembers, what became of
// each application, the actions that follow, and what the node remembers then. The lines are read by
// parser.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		run := func() []txtar.File {
			p := newParser(t)
			p.read(string(a.Files[0].Data), p.intent)
			p.read(string(a.Files[1].Data), p.have)
			return p.run()
		}
		first := run()
		for range 4 {
			if diff := cmp.Diff(first, run()); diff != "" {
				t.Fatalf("another run decides otherwise: %s", diff)
			}
		}
		return first
	})
}

// parser reads the lines of a case. Of intents:
//
//	app UID NAMESPACE CREATED [before]        version 2 is the newest; version 1 ran in whole before
//	at UID VERSION HOOK TARGET PROGRAM [MODE]  a place of a version: DEVICE@POD, or a cgroup
//	cannot UID VERSION pending|fails           a version that cannot be had
//
// and of what the node has:
//
//	share PERCENT                              of each limit for a namespace; 100 where nothing is said
//	interface DEVICE@POD
//	link UID VERSION HOOK TARGET PROGRAM       what runs, also in a chain
//	ran UID VERSION HOOK TARGET PROGRAM FUNCTIONS  what ran last, and what it takes
//	left UID HOOK TARGET                       a place where it did not fit a short while ago
type parser struct {
	t    *testing.T
	key  seals.Key
	w    *world
	byID map[string]*application
	// versions are the intents by uid and version, and names are those of their revisions.
	versions map[string]intent.Opened
	names    []string
}

func newParser(t *testing.T) *parser {
	t.Helper()
	return &parser{t: t, key: seals.New(t), byID: map[string]*application{}, versions: map[string]intent.Opened{},
		w: &world{now: time.UnixMilli(1 << 40), sharePercent: 100, records: map[history.At]history.Record{}, state: plan.State{Revisions: map[string][]string{}}}}
}

func (p *parser) read(text string, line func(f []string)) {
	for one := range strings.Lines(text) {
		if fields := strings.Fields(one); len(fields) > 0 {
			line(fields)
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

func (p *parser) intent(f []string) {
	switch f[0] {
	case "app":
		p.app(f[1], strings.TrimPrefix(f[2], "-"), int64(p.number(f[3])), len(f) > 4)
	case "at":
		one, mode := p.byID[f[1]], ""
		if len(f) > 6 {
			mode = f[6]
		}
		a := p.attachment(f[1], f[3], f[4], f[5])
		a.XDPMode = v1alpha1.XDPMode(mode)
		one.attachments[int64(p.number(f[2]))] = append(one.attachments[int64(p.number(f[2]))], a)
	case "cannot":
		p.byID[f[1]].errs[int64(p.number(f[2]))] = map[string]error{"pending": build.ErrLoading, "fails": errors.New("it fails")}[f[3]]
	default:
		p.t.Fatalf("intent: %v", f)
	}
}

func (p *parser) app(uid, namespace string, created int64, before bool) {
	id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: namespace, Name: uid}
	if namespace == "" {
		id.Kind = v1alpha1.KindClusterBpfApplication
	}
	for serial := range int64(2) {
		o := p.key.Open(p.t, intent.Payload{Application: id, UID: uid, Serial: serial + 1, Created: created,
			ObjectDigest: fmt.Sprint("sha256:", serial), Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: plan.XDP}}}}})
		name := fmt.Sprint(serial + 1)
		p.versions[uid+name], p.names = o, append(p.names, o.Revision(), name)
	}
	one := &application{known: version.Known{Newest: p.versions[uid+"2"]}, attachments: map[int64][]plan.Attachment{}, errs: map[int64]error{}}
	if before {
		deployed := p.versions[uid+"1"]
		one.known.Deployed = &deployed
	}
	p.w.applications, p.byID[uid] = append(p.w.applications, one), one
}

// attachment reads a place. The network namespace of a pod is its name in bytes; one that is made anew
// has a plus behind it.
func (p *parser) attachment(uid, hook, target, program string) plan.Attachment {
	a := plan.Attachment{Program: program, Instance: program, Hook: hook, Target: plan.Target{Cgroup: target}}
	if one := p.byID[uid]; one != nil {
		a.Application = one.known.Newest.Payload().Application
	}
	if device, pod, found := strings.Cut(target, "@"); found {
		a.Target = plan.Target{Ifindex: 2, Interface: device, In: "pod " + strings.TrimSuffix(pod, "+")}
		for _, c := range pod {
			a.NetnsID = a.NetnsID<<8 + uint64(c)
		}
	}
	return a
}

func (p *parser) have(f []string) {
	switch f[0] {
	case "share":
		p.w.sharePercent = p.number(f[1])
	case "interface":
		t := p.attachment("", plan.XDP, f[1], "").Target
		p.w.state.Interfaces = append(p.w.state.Interfaces, plan.Interface{Device: t.Device(), Name: t.Interface, In: t.In})
	case "left":
		one, place := p.byID[f[1]], plan.PlaceOf(p.attachment(f[1], f[2], f[3], ""))
		if one.leftOut == nil {
			one.leftOut = map[plan.Place]error{}
		}
		one.leftOut[place] = errors.New("it did not fit")
	case "link":
		p.runs(f[1], p.versions[f[1]+f[2]], p.attachment(f[1], f[3], f[4], f[5]))
	case "ran":
		a := p.attachment(f[1], f[3], f[4], f[5])
		r := history.Record{UID: f[1], Hook: f[3], Interface: a.Target.String(), Revision: p.versions[f[1]+f[2]].Revision(), Programs: []string{f[5]},
			Need: plan.Need{Programs: 1, Functions: p.number(f[6])}}
		p.w.records[r.At()] = r
	default:
		p.t.Fatalf("have: %v", f)
	}
}

// runs has a version run at a place.
func (p *parser) runs(uid string, o intent.Opened, a plan.Attachment) {
	s, revision := &p.w.state, o.Revision()
	if !slices.Contains(s.Revisions[uid], revision) {
		s.Revisions[uid] = append(s.Revisions[uid], revision)
	}
	if a.Hook != plan.XDP {
		s.Links = append(s.Links, plan.Link{UID: uid, Attachment: a, Revision: revision, Position: len(s.Links)})
		return
	}
	i := slices.IndexFunc(s.Chains, func(c plan.Chain) bool { return c.Device == a.Target.Device() })
	if i < 0 {
		s.Chains, i = append(s.Chains, plan.Chain{Device: a.Target.Device(), Interface: a.Target.String()}), len(s.Chains)
	}
	s.Chains[i].Members = append(s.Chains[i].Members, plan.Member{UID: uid, Identity: a.Application, Revision: revision, Program: a.Program})
}

// run admits, and writes what follows.
func (p *parser) run() []txtar.File {
	s := p.w.set()
	a := p.w.open(p.t, s)
	round, d := p.w.begin(a, s)
	round.Admit()
	var actions, remembered strings.Builder
	for _, one := range plan.Make(d.Want, d.Look.State) {
		fmt.Fprintln(&actions, one)
	}
	outcomes := p.outcomes(d)
	round.Remember()
	records := a.History.Clone()
	for _, r := range slices.SortedFunc(maps.Values(records), func(x, y history.Record) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) }) {
		fmt.Fprintln(&remembered, r.UID, r.Revision, r.Hook, r.Interface, strings.Join(r.Programs, " "))
	}
	short := strings.NewReplacer(p.names...)
	file := func(name, text string) txtar.File { return golden.Part(name, short.Replace(text)) }
	return []txtar.File{file("outcomes", outcomes), file("actions", actions.String()), file("remembered", remembered.String())}
}

// outcomes are the lines of what became of each application, with its errors.
func (p *parser) outcomes(d *decide.Decisions) string {
	var b strings.Builder
	for _, one := range p.w.applications {
		uid := one.known.Newest.Payload().UID
		out, i := d.Outcomes[uid], d.IndexOf(uid)
		switch {
		case i >= 0:
			fmt.Fprintln(&b, uid, "runs", d.Want.Applications[i].Revision)
			for _, at := range d.Want.Applications[i].Attachments {
				fmt.Fprintln(&b, "  at", at.Hook, at.Target, at.Program)
			}
		case d.IsGone(uid):
			fmt.Fprintln(&b, uid, "goes")
		default:
			fmt.Fprintln(&b, uid, "stays")
		}
		if out.IsPending() {
			fmt.Fprintln(&b, "  is on its way")
		}
		for _, err := range out.Errs {
			fmt.Fprintln(&b, " ", err)
		}
	}
	return b.String()
}
