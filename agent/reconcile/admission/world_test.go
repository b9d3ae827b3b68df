package admission_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/attach/targets"
	"github.com/skep-dev/skep/agent/pods/netns"
	"github.com/skep-dev/skep/agent/reconcile/admission"
	"github.com/skep-dev/skep/agent/reconcile/build"
	"github.com/skep-dev/skep/agent/reconcile/decide"
	"github.com/skep-dev/skep/agent/reconcile/live"
	"github.com/skep-dev/skep/agent/reconcile/plan"
	"github.com/skep-dev/skep/agent/reconcile/report"
	"github.com/skep-dev/skep/agent/reconcile/version"
	"github.com/skep-dev/skep/agent/state/history"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/intent"
)

// world is a node as a reconcile finds it, without a kernel: programs on TCX and netkit of others are none.
type world struct {
	now          time.Time
	sharePercent int
	state        plan.State
	records      map[history.At]history.Record
	applications []*application
}

// application is one that the node has intents of, and where its versions attach.
type application struct {
	known version.Known
	// attachments are those of each version that can be had, by serial, and errs says why another
	// cannot.
	attachments map[int64][]plan.Attachment
	errs        map[int64]error
	// leftOut are the places where it did not fit a short while ago.
	leftOut map[plan.Place]error
}

// heldLink is a link that the kernel tells its id of.
type heldLink struct {
	link.Link
	id link.ID
}

func (h heldLink) Info() (*link.Info, error) { return &link.Info{ID: h.id}, nil }

// set has the links and chains of the state open.
func (w *world) set() *live.Set {
	s := &live.Set{Chains: map[plan.Device]*pins.Chain{}, Links: map[string]map[string]*pins.Link{}}
	for i, l := range w.state.Links {
		s.PutLink(&pins.Link{UID: l.UID, Attachment: l.Attachment, Path: fmt.Sprint(i), Link: heldLink{id: link.ID(i + 1)}})
	}
	for _, c := range w.state.Chains {
		s.Chains[c.Device] = &pins.Chain{Device: c.Device, Version: &pins.ChainVersion{Members: c.Members}}
	}
	return s
}

// open opens the node's admission, which remembers the records.
func (w *world) open(tb testing.TB, s *live.Set) *admission.Admission {
	tb.Helper()
	h, err := history.Open(filepath.Join(tb.TempDir(), "history"))
	if err != nil {
		tb.Fatal(err)
	}
	if err := h.Keep(w.records); err != nil {
		tb.Fatal(err)
	}
	return admission.New(admission.Options{Log: slog.New(slog.DiscardHandler), SharePercent: w.sharePercent, FetchTimeout: time.Minute, History: h, Live: s})
}

// begin begins a reconcile in which versions were chosen.
func (w *world) begin(a *admission.Admission, s *live.Set) (*admission.Round, *decide.Decisions) {
	look := s.Look()
	look.State = w.state
	apps := make([]*decide.Application, 0, len(w.applications))
	byUID := map[string]*application{}
	for _, one := range w.applications {
		apps = append(apps, &decide.Application{Known: one.known, LeftOut: one.leftOut, RetryAt: w.now.Add(time.Minute)})
		byUID[one.known.Newest.Payload().UID] = one
	}
	d := decide.New(decide.Options{Log: slog.New(slog.DiscardHandler), Now: w.now, Look: look, Applications: apps,
		Prepare: func(_ *decide.Application, o intent.Opened, _ *report.Outcome) (plan.Application, error) {
			p := o.Payload()
			one := byUID[p.UID]
			return plan.Application{UID: p.UID, Identity: p.Application, Revision: o.Revision(), Attachments: one.attachments[p.Serial]}, one.errs[p.Serial]
		}})
	d.ChooseGone()
	d.Choose()
	clock := func() time.Time { return w.now }
	lookups := targets.NewLookups(attach.Host{Namespaces: netns.NewTable()}, slog.New(slog.DiscardHandler), func() {})
	round := a.Begin(d, build.NewLoads(clock, slog.New(slog.DiscardHandler), nil).Begin(), lookups.Begin(w.now, targets.Pods{}))
	return round, d
}
