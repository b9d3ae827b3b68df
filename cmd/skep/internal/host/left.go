package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/inventory"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/nodemode"
)

// gone is the state of an attachment that the last skep run left and the kernel has no more, and the reason of Ready of its
// application.
const gone = "Gone"

// left is what the last skep run left, compared with the kernel. notRunning is why no skep run was asked.
func (c Client) left(ctx context.Context, notRunning error) (nodemode.Left, error) {
	l, err := nodemode.ReadLeft(c.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nodemode.Left{}, notRunning
	case err != nil:
		return nodemode.Left{}, err
	}
	l.Status.Run.Ended = &l.Ended
	k, err := readKernel(ctx, l.Boot)
	if err != nil {
		return nodemode.Left{}, fmt.Errorf("compare what the last skep run left with the kernel: %w", err)
	}
	for i := range l.Status.Applications {
		k.compare(&l.Status.Applications[i])
	}
	l.Node.Interfaces = slices.DeleteFunc(l.Node.Interfaces, k.lacks)
	l.Node.Programs = k.described
	for i := range l.Node.Programs {
		own(&l.Node.Programs[i], l)
	}
	l.Node.LeftOut = append(l.Node.LeftOut, fmt.Sprintf("skep run is not running since %s: counts are from then, and costs are not measured",
		l.Ended.UTC().Format(time.RFC3339)))
	return l, nil
}

// own says whose a program of the kernel is, by what the last skep run knew.
func own(p *view.Program, l nodemode.Left) {
	for _, a := range l.Status.Applications {
		if slices.ContainsFunc(a.Programs, func(one agent.ProgramStatus) bool { return one.ID == p.ID }) {
			id := a.Identity()
			p.Application = &id
			return
		}
	}
	p.Chain = p.Chain || slices.ContainsFunc(l.Node.Interfaces, func(i view.Interface) bool {
		return i.ProgramID == p.ID && slices.ContainsFunc(i.Members, func(m view.Member) bool { return m.Application != nil })
	})
}

// kernel is what the kernel has now.
type kernel struct {
	// same reports whether the kernel booted before skep run ended: nothing outlives a boot.
	same     bool
	links    map[uint32]bool
	programs map[uint32]inventory.Program
	// described are all programs of the kernel.
	described []view.Program
}

// readKernel asks the kernel. Of another boot than skep run ran on, only what is described counts, and may be unknown.
func readKernel(ctx context.Context, boot string) (kernel, error) {
	k := kernel{same: boot == nodemode.CurrentBoot(), links: map[uint32]bool{}, programs: map[uint32]inventory.Program{}}
	all, err := inventory.List(ctx, inventory.Options{})
	k.described = Programs(all)
	if !k.same {
		return k, nil
	}
	for _, l := range all.Links {
		k.links[l.ID] = true
	}
	for _, p := range all.Programs {
		k.programs[p.ID] = p
	}
	return k, err
}

// compare takes out of an application what the kernel has no more.
func (k kernel) compare(a *nodemode.Application) {
	var missing []string
	for i := range a.Programs {
		p := &a.Programs[i]
		there := k.same && p.ID == 0 || k.runs(p.ID)
		for j := range p.Links {
			l := &p.Links[j]
			if l.State != agent.Attached && l.State != agent.SwitchedOff || there && k.has(p.ID, *l) {
				continue
			}
			missing = append(missing, fmt.Sprintf("%s on %s", l.Hook, l.Target))
			l.State, l.Error = gone, "the kernel has it no more"
		}
		if p.ID != 0 && !there {
			if len(p.Links) == 0 {
				missing = append(missing, p.Name)
			}
			p.ID, p.Tag = 0, ""
		}
	}
	if a.Agent != nil {
		a.Agent.Programs = a.Programs
	}
	if len(missing) == 0 {
		return
	}
	a.Conditions = slices.Clone(a.Conditions)
	meta.SetStatusCondition(&a.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: gone,
		Message: fmt.Sprintf("the kernel has no more: %s; the next skep run loads and attaches what its source defines", display.List(missing))})
}

// runs reports whether the kernel has a program.
func (k kernel) runs(program uint32) bool {
	_, there := k.programs[program]
	return there
}

// has reports whether the kernel has what attaches a program: its link, or the filter in this network namespace.
func (k kernel) has(program uint32, l agent.LinkStatus) bool {
	if l.ID != 0 {
		return k.links[l.ID]
	}
	// What a link of another network namespace or no link at all attaches is in no list.
	if l.Filter == "" || strings.Contains(l.Target, " ") {
		return true
	}
	return slices.ContainsFunc(k.programs[program].Attached, func(p inventory.Place) bool { return p.Hook == l.Hook && p.Target == l.Target })
}

// lacks reports whether the kernel has nothing of Skep's on a hook of an interface any more.
func (k kernel) lacks(i view.Interface) bool {
	if i.LinkID != 0 {
		return !k.links[i.LinkID]
	}
	return !slices.ContainsFunc(i.Members, func(m view.Member) bool { return m.Application != nil && k.runs(m.ProgramID) })
}
