package ui

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/text"
)

// thisHost asks the skep run of this machine.
type thisHost struct {
	name   string
	client host.Client
}

// NewHost returns the source of a host whose skep run has a state folder.
func NewHost(state string) (Source, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the name of this host: %w", err)
	}
	return &thisHost{name, host.Client{State: state}}, nil
}

// Node implements Source. There is one.
func (h *thisHost) Node(ctx context.Context, _ string) (view.NodeView, error) {
	return h.client.Node(ctx)
}

// Application implements Source.
func (h *thisHost) Application(ctx context.Context, id v1alpha1.Identity) (view.NodeViewList, error) {
	n, err := h.client.Node(ctx)
	if err != nil {
		return view.NodeViewList{}, err
	}
	n.Applications = slices.DeleteFunc(n.Applications, func(a view.Application) bool { return a.Identity != id })
	n.Interfaces, n.Programs = nil, nil
	return view.NodeViewList{Items: []view.NodeView{n}}, nil
}

// Overview implements Source.
func (h *thisHost) Overview(ctx context.Context) (Overview, error) {
	s, err := h.client.Status(ctx, nil)
	if err != nil {
		return Overview{}, err
	}
	return overviewOf(h.name, s), nil
}

// overviewOf is the overview of a host's status.
func overviewOf(name string, s nodemode.Status) Overview {
	origin := Origin{Text: s.Source.Address, Revision: s.Source.Revision, Error: s.Source.Error}
	on := Node{Name: name}
	o := Overview{Place: name, Origin: origin, Applications: []Application{}, Signers: []Signer{}, Policies: []Policy{}, Notes: notesOf(s)}
	for _, a := range s.Applications {
		one := applicationOf(origin, a)
		switch one.States {
		case "L":
			on.Loaded++
		case "F", "U":
			on.Failed++
		}
		o.Applications = append(o.Applications, one)
		for _, signer := range one.Signers {
			if !slices.ContainsFunc(o.Signers, func(s Signer) bool { return s.Name == signer }) {
				o.Signers = append(o.Signers, Signer{Name: signer})
			}
		}
		for _, policy := range one.Policies {
			if !slices.ContainsFunc(o.Policies, func(p Policy) bool { return p.Name == policy }) {
				o.Policies = append(o.Policies, Policy{Name: policy})
			}
		}
	}
	o.Nodes = []Node{on}
	return o
}

// notesOf are what a person has to look at.
func notesOf(s nodemode.Status) []string {
	notes := []string{}
	for _, p := range []*nodemode.UnloadProtection{s.Source.UnloadProtection, s.UnloadProtection} {
		if p != nil {
			notes = append(notes, fmt.Sprintf("Unload protection waits for a person to confirm revision %s: %s", p.Revision, p.Reason))
		}
	}
	if s.Settings.Error != "" {
		notes = append(notes, "Newer signers and policies are not active: "+s.Settings.Error)
	}
	for _, p := range s.Problems {
		notes = append(notes, fmt.Sprintf("%s %s: %s", p.Source, p.Path, p.Message))
	}
	return append(append(notes, s.Source.Cautions...), s.Settings.Cautions...)
}

// applicationOf is an application of a host's status.
func applicationOf(origin Origin, a nodemode.Application) Application {
	one := Application{Identity: a.Identity(), Image: a.Image, Digest: a.Digest, Signers: a.Signers, Policies: deciders(a.Conditions),
		Reasons: a.Reasons, Warnings: a.Warnings, Audited: a.Audited, States: string(rune(unreported))}
	if a.Agent != nil {
		state, message := a.Agent.NodeState()
		one.States = string(letterOf(state))
		if message != "" {
			one.Messages = map[int]string{0: text.Cut(message, maxMessage)}
		}
	}
	one.describe(progress{Origin: origin, File: a.Source, Image: a.Image, Digest: a.Digest, Programs: programsOf(a), Conditions: a.Conditions,
		Reasons: a.Reasons, Aside: len(a.Warnings) + len(a.Audited), Suspended: a.Suspended, States: one.States})
	return one
}

// programsOf are the programs of an application with their hooks, each once.
func programsOf(a nodemode.Application) (all []string) {
	for _, p := range a.Programs {
		hook := ""
		if len(p.Links) > 0 {
			hook = p.Links[0].Hook + " "
		}
		all = append(all, hook+p.Name)
	}
	return all
}

// describe fills in what follows of the conditions.
func (a *Application) describe(p progress) {
	a.Stages = p.stages()
	ready := p.condition(v1alpha1.ConditionReady)
	a.Ready, a.Why = string(ready.Status), ready.Reason
	if a.Ready == "" {
		a.Ready = string(metav1.ConditionUnknown)
	}
	var changed time.Time
	for _, c := range p.Conditions {
		if c.LastTransitionTime.After(changed) {
			changed = c.LastTransitionTime.Time
		}
	}
	a.Changed = changed
}
