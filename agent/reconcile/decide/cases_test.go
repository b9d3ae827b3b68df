package decide_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/program/loader"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/sharing"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/seals"
	"github.com/skep-dev/skep/test/harness/golden"
)

// TestCases runs the cases of testdata: the intents, what the node has, and what is decided for each
// application. The lines are read by parser.
func TestCases(t *testing.T) {
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) []txtar.File {
		run := func() string {
			p := newParser(t)
			for _, f := range a.Files[:min(2, len(a.Files))] {
				for line := range strings.Lines(string(f.Data)) {
					if fields := strings.Fields(line); len(fields) > 0 {
						p.line(fields)
					}
				}
			}
			return p.decide()
		}
		first := run()
		for range 4 {
			if diff := cmp.Diff(first, run()); diff != "" {
				t.Fatalf("another run decides otherwise: %s", diff)
			}
		}
		return []txtar.File{golden.Part("decided", first)}
	})
}

// parser reads the lines of a case. Of intents:
//
//	app UID SERIAL [WORD ...]   the newest intent, whose words are tombstone, for:KEY=VALUE (its nodes), created:TIME,
//	                            previous:SERIAL, withdrawn:SERIAL, and waits (its rollout has come to no node)
//	cannot UID SERIAL pending|queued|fails|map   a version that cannot be had
//
// and of what the node has:
//
//	node NAME [KEY=VALUE ...]   without this line, it is a host in node mode
//	runs UID SERIAL             the revision in the kernel, whose links it has
//	ran UID SERIAL [checked]    what ran in whole last, and whether its pins were found whole
type parser struct {
	tb   testing.TB
	key  seals.Key
	node version.Node
	apps []*decide.Application
	byID map[string]*decide.Application
	errs map[string]error
	set  *live.Set
	look *live.Look
	seen plan.State
	// names are those of revisions, and what is printed in their place.
	names []string
}

func newParser(tb testing.TB) *parser {
	tb.Helper()
	set := &live.Set{}
	return &parser{tb: tb, key: seals.New(tb), byID: map[string]*decide.Application{}, errs: map[string]error{}, set: set, look: set.Look(),
		seen: plan.State{Revisions: map[string][]string{}}}
}

func (p *parser) line(f []string) {
	if f[0] == "node" {
		p.node = version.Node{Name: f[1], Labels: map[string]string{}}
		for _, label := range f[2:] {
			key, value, _ := strings.Cut(label, "=")
			p.node.Labels[key] = value
		}
		for _, app := range p.apps {
			app.Newest = app.Newest.For(f[1])
		}
		return
	}
	uid, serial := f[1], p.number(f[2])
	switch f[0] {
	case "app":
		app := &decide.Application{Known: version.Known{Newest: p.key.Open(p.tb, p.payload(uid, serial, f[3:]))}}
		p.apps, p.byID[uid] = append(p.apps, app), app
	case "cannot":
		p.errs[uid+f[2]] = map[string]error{"pending": build.ErrLoading, "queued": &decide.QueuedError{Why: "it waits for its turn"},
			"fails": errors.New("the verifier rejects it"), "map": &sharing.WaitError{Application: "owner", Map: "m", Why: "it is not there"}}[f[3]]
	case "runs":
		o := p.version(uid, serial)
		p.set.PutRevision(&loader.Revision{UID: uid, Name: o.Revision()})
		p.seen.Revisions[uid] = append(p.seen.Revisions[uid], o.Revision())
		p.seen.Links = append(p.seen.Links, plan.Link{UID: uid, Revision: o.Revision()})
		p.look.Saw(p.seen, nil)
	case "ran":
		o := p.version(uid, serial)
		p.byID[uid].Deployed = &o
		if len(f) > 3 {
			p.byID[uid].NoteWhole(o.Revision())
		}
	default:
		p.tb.Fatalf("line: %v", f)
	}
}

func (p *parser) number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.tb.Fatal(err)
	}
	return n
}

// version opens a version alone.
func (p *parser) version(uid string, serial int64) intent.Opened {
	return p.key.Open(p.tb, p.payload(uid, serial, nil))
}

func (p *parser) payload(uid string, serial int64, words []string) intent.Payload {
	one := intent.Payload{Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "team", Name: uid}, UID: uid, Serial: serial,
		ObjectDigest: fmt.Sprint("sha256:", serial), Programs: []v1alpha1.Program{{Name: "f", Attach: []v1alpha1.Attachment{{Hook: plan.XDP}}}}}
	for _, word := range words {
		name, value, _ := strings.Cut(word, ":")
		switch name {
		case "tombstone":
			one.Tombstone, one.ObjectDigest, one.Programs, one.Reason = true, "", nil, "deleted"
		case "for":
			key, value, _ := strings.Cut(value, "=")
			one.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
		case "created":
			one.Created = p.number(value)
		case "previous":
			before := p.payload(uid, p.number(value), nil)
			one.Previous = &before
		case "withdrawn":
			one.Withdrawn = append(one.Withdrawn, p.payload(uid, p.number(value), nil))
		case "waits":
			one.Rollout = &intent.Rollout{Step: 1}
		default:
			p.tb.Fatalf("word: %s", word)
		}
	}
	if !one.Tombstone {
		p.names = append(p.names, one.Revision(), fmt.Sprint(serial))
	}
	return one
}

// choose decides, and returns the versions in the order in which they are prepared.
func (p *parser) choose() (d *decide.Decisions, order []string) {
	d = decide.New(decide.Options{Log: slog.New(slog.DiscardHandler), Now: time.UnixMilli(1 << 40), Node: p.node, Look: p.look, Applications: p.apps,
		Prepare: func(_ *decide.Application, o intent.Opened, _ *report.Outcome) (plan.Application, error) {
			one := o.Payload()
			order = append(order, fmt.Sprintf("%s %d", one.UID, one.Serial))
			return plan.Application{UID: one.UID, Revision: o.Revision()}, p.errs[fmt.Sprintf("%s%d", one.UID, one.Serial)]
		}})
	d.ChooseGone()
	d.Choose()
	return d, order
}

// decide writes what becomes of each application.
func (p *parser) decide() string {
	d, order := p.choose()
	var b strings.Builder
	fmt.Fprintln(&b, "prepared:", strings.Join(order, ", "))
	for _, uid := range d.Want.Frozen {
		if d.Application(uid) == nil {
			fmt.Fprintln(&b, uid, "stays, and no intent of it is known")
		}
	}
	for _, app := range p.apps {
		p.outcome(&b, d, app.Newest.Payload().UID)
	}
	return strings.NewReplacer(p.names...).Replace(b.String())
}

func (p *parser) outcome(b *strings.Builder, d *decide.Decisions, uid string) {
	out := d.Outcomes[uid]
	switch i := d.IndexOf(uid); {
	case i >= 0:
		fmt.Fprintf(b, "%s runs %s\n", uid, d.Want.Applications[i].Revision)
	case d.IsGone(uid):
		fmt.Fprintf(b, "%s goes\n", uid)
	case slices.Contains(d.Want.Frozen, uid):
		fmt.Fprintf(b, "%s stays\n", uid)
	}
	if why := out.Hindrance(); why != nil {
		fmt.Fprintf(b, "  newest: %s %v\n", strings.TrimPrefix(fmt.Sprintf("%T", why), "report."), why)
	}
	if out.HasLeft(report.Answer{}) {
		fmt.Fprintln(b, "  what is to run in its place is on its way")
	}
	for _, err := range out.Errs {
		fmt.Fprintln(b, " ", err)
	}
}

// BenchmarkChoose decides for applications of which each has a version that runs and a newer one that is loaded.
func BenchmarkChoose(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := newParser(b)
			p.line(strings.Fields("node n"))
			for i := range n {
				for _, line := range []string{"app a%d 2 previous:1", "runs a%d 1", "cannot a%d 2 pending"} {
					p.line(strings.Fields(strings.ReplaceAll(line, "%d", strconv.Itoa(i))))
				}
			}
			for b.Loop() {
				p.choose()
			}
		})
	}
}
