package containers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// look reads a sandbox or a container that is not known, unless it was left out a moment ago, or
// another one of its namespace took long. It fails where the runtime does not answer at all. One
// that is not answered is no sign of that: a runtime may ask what the pod itself runs.
func (r *reader) look(ctx context.Context, id, sandbox, namespace string) error {
	if r.state.has(id) {
		delete(r.retries, id)
		return nil
	}
	began := r.opts.Clock()
	if one, ok := r.retries[id]; ok && one.at.After(began) {
		return nil
	}
	if at, ok := r.slow[namespace]; ok && at.After(began) {
		r.retries[id] = retry{at: at, wait: firstWait, sandbox: sandbox, namespace: namespace}
		r.state.skip(Skipped{ID: id, Reason: NoAnswer, Err: errSlow})
		return nil
	}
	var p Pod
	var err error
	if sandbox == "" {
		p, err = r.lookAtSandbox(ctx, id)
	} else {
		p, err = r.lookAtBoth(ctx, id, sandbox, namespace)
	}
	if err == nil {
		delete(r.retries, id)
		delete(r.slow, namespace)
		return nil
	}
	why := new(skip)
	if !errors.As(err, &why) {
		why = &skip{NoAnswer, err}
	}
	code := status.Code(err)
	first, longest := firstWait, longestWait
	if code == codes.DeadlineExceeded {
		// Where the runtime hangs for this one alone, the others come first.
		first, longest = longestWait, hungWait
		now := r.opts.Clock()
		r.slow[namespace] = now.Add(slowPause * now.Sub(began))
	}
	r.leaveOut(Skipped{ID: id, Pod: p, Reason: why.reason, Err: err}, retry{sandbox: sandbox, namespace: namespace}, first, longest)
	if code == codes.Unavailable {
		return err
	}
	return ctx.Err()
}

// errSlow is why a container or sandbox was not looked at.
var errSlow = errors.New("the runtime took long to answer for another one of its namespace; it is asked again soon")

// leaveOut notes when to look again.
func (r *reader) leaveOut(one Skipped, next retry, first, longest time.Duration) {
	next.wait = first
	if before, ok := r.retries[one.ID]; ok {
		next.wait = max(first, min(2*before.wait, longest))
	}
	next.at = r.opts.Clock().Add(next.wait)
	r.retries[one.ID] = next
	r.state.skip(one)
}

// lookAtSandbox reads a pod, and the process that holds its namespaces where there is one.
func (r *looker) lookAtSandbox(ctx context.Context, id string) (Pod, error) {
	answer, err := callFor(ctx, min(r.opts.Timeout, lookTimeout), r.client.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return Pod{}, fmt.Errorf("read sandbox %.64q: %w", id, err)
	}
	p, err := podOf(answer.GetStatus())
	if err == nil && p.SandboxID != id {
		err = fmt.Errorf("read sandbox %.64q: the answer is of %.64q", id, p.SandboxID)
	}
	if err != nil {
		return Pod{}, skipFor(Malformed, err)
	}
	more, err := parseDetails(answer.GetInfo())
	if err != nil {
		return p, skipFor(Malformed, fmt.Errorf("read sandbox %s: %w", id, err))
	}
	if more.PID == 0 {
		r.state.addPod(p)
		return p, nil
	}
	found, err := r.node.confirm(more.PID, id, more.RuntimeSpec.Linux.CgroupsPath)
	if err != nil {
		return p, err
	}
	p.Sandbox = found.Process
	r.fillPod(&p, found)
	r.state.addPod(p)
	return p, r.watch(found, id)
}

// fillPod fills in the places of the pod, by a process in it.
func (r *looker) fillPod(p *Pod, by *confirmed) {
	p.NetnsID = by.netns
	p.HostNetwork = p.HostNetwork || by.netns == r.node.netns
	own := r.node.podCgroup(by.in, p.UID)
	p.CgroupPath, p.CgroupID, p.Level = own.path, own.id, own.level
}

// watch has a container or a sandbox taken away when its process ends.
func (r *looker) watch(found *confirmed, id string) error {
	err := r.exits.Add(found.pidfd, id)
	if err != nil {
		r.state.remove(id)
		return skipFor(Unreadable, err)
	}
	return nil
}

// lookAtBoth reads a container, and first its pod where that is not known.
func (r *reader) lookAtBoth(ctx context.Context, id, sandbox, namespace string) (Pod, error) {
	if _, ok := r.state.pod(sandbox); !ok {
		if err := r.look(ctx, sandbox, "", namespace); err != nil {
			return Pod{}, err
		}
	}
	return r.lookAtContainer(ctx, id, sandbox, 0)
}

// lookAtContainer reads a container of a pod that is known. Its process is the runtime's answer
// or, where that has none, the announced one; 0 is none.
func (r *looker) lookAtContainer(ctx context.Context, id, sandbox string, announced int) (Pod, error) {
	p, ok := r.state.pod(sandbox)
	if !ok {
		return Pod{}, skipFor(NoSandbox, fmt.Errorf("read container %.64q: its sandbox %.64q is left out", id, sandbox))
	}
	answer, err := callFor(ctx, min(r.opts.Timeout, lookTimeout), r.client.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return p, fmt.Errorf("read container %.64q: %w", id, err)
	}
	c, err := containerOf(answer.GetStatus())
	if err == nil && c.ID != id {
		err = fmt.Errorf("read container %.64q: the answer is of %.64q", id, c.ID)
	}
	var more details
	if err == nil {
		more, err = parseDetails(answer.GetInfo())
	}
	if err == nil && more.SandboxID != "" && more.SandboxID != sandbox {
		err = fmt.Errorf("read container %s: its sandbox is %.64q and %.64q", id, sandbox, more.SandboxID)
	}
	if err != nil {
		return p, skipFor(Malformed, err)
	}
	if more.PID = cmp.Or(more.PID, announced); more.PID == 0 {
		return p, skipFor(NoProcess, fmt.Errorf("read container %s: the runtime names no process of it", id))
	}
	found, err := r.node.confirm(more.PID, id, more.RuntimeSpec.Linux.CgroupsPath)
	if err != nil {
		return p, err
	}
	c.Pod, c.Process = p, found.Process
	c.CgroupPath, c.CgroupID, c.Level = found.in.path, found.in.id, found.in.level
	if p.NetnsID == 0 {
		r.fillPod(&p, found)
	}
	r.state.add(c, p)
	return p, r.watch(found, id)
}
