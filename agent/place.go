package agent

import (
	"errors"
	"fmt"

	"github.com/skep-dev/skep/agent/attach"
	"github.com/skep-dev/skep/agent/chain"
	"github.com/skep-dev/skep/agent/plan"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/intent"
)

// wantApplication turns an intent into resolved attachments. A target that is
// not there is told and waited for; what the definition says wrongly refuses
// the intent.
func (p *pass) wantApplication(o intent.Opened, out *outcome) error {
	payload := o.Payload()
	app := plan.Application{UID: payload.UID, Identity: payload.Application, Revision: o.Revision()}
	var absent []unmade
	seen := map[string]bool{}
	for _, program := range payload.Programs {
		for _, at := range program.Attach {
			found, err := p.resolve(app, program.Name, at)
			if errors.Is(err, errWaiting) || errors.Is(err, attach.ErrTarget) {
				absent = append(absent, unresolved(program.Name, at, err))
				if unanswered := new(unansweredError); errors.As(err, &unanswered) {
					unanswered.unsettle(out)
					out.errs = append(out.errs, fmt.Errorf("place program %s of %s: %w", program.Name, payload.Application, err))
				}
			} else if err != nil {
				return fmt.Errorf("place program %s of %s: %w", program.Name, payload.Application, err)
			}
			for _, a := range found {
				if seen[a.Key()] {
					return fmt.Errorf("place program %s of %s: the definition attaches it to %s %s twice; once is enough", a.Program, payload.Application, a.Hook, a.Target)
				}
				seen[a.Key()] = true
				app.Attachments = append(app.Attachments, a)
			}
		}
	}
	for _, u := range absent {
		out.links = append(out.links, u)
		if u.status.State == Failed {
			out.errs = append(out.errs, fmt.Errorf("place program %s of %s: %s", u.program, payload.Application, u.status.Error))
		}
	}
	p.want.Applications = append(p.want.Applications, app)
	return nil
}

// resolve turns one attachment of a definition into those on this node.
func (p *pass) resolve(app plan.Application, program string, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	base := plan.Attachment{Application: app.Identity, Program: program, Instance: plan.Instance(program, at.Hook, at.Tracepoint),
		Hook: at.Hook, Priority: v1alpha1.DefaultPriority}
	if at.Priority != nil {
		base.Priority = *at.Priority
	}
	h, ok := hook.Lookup(at.Hook)
	if !ok {
		return nil, fmt.Errorf("resolve hook %q: no such hook", at.Hook)
	}
	if at.Hook == plan.XDP {
		mask, err := chain.ProceedOn(at.ProceedOn)
		if err != nil {
			return nil, err
		}
		base.ProceedOn = mask
	}
	if h.Shape == hook.NetworkDevice {
		return p.onInterfaces(base, at)
	}
	base.Tracepoint, base.Cgroup, base.NetworkNamespace = at.Tracepoint, at.Cgroup, at.NetworkNamespace
	if b := at.Binary; b != nil {
		base.Binary, base.Symbol, base.Offset, base.PID = b.Path, b.Symbol, b.Offset, b.PID
	}
	one, err := p.resolveTarget(app.UID, base)
	if err != nil {
		return nil, err
	}
	return []plan.Attachment{one}, nil
}

func (p *pass) onInterfaces(base plan.Attachment, at v1alpha1.Attachment) ([]plan.Attachment, error) {
	chosen, err := plan.Select(at.Interfaces, p.state.Interfaces)
	if err != nil {
		return nil, err
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("%w: no interface of this node is chosen by %s", errWaiting, describeInterfaces(at.Interfaces))
	}
	var all []plan.Attachment
	for _, i := range chosen {
		one := base
		one.Ifindex, one.Interface = i.Index, i.Name
		all = append(all, one)
	}
	return all, nil
}
