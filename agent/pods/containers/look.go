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

	"github.com/skep-dev/skep/agent/queue"
)

// look is a look at a sandbox or a container that is under way, or waits for others of its namespace.
type look struct {
	ticket *queue.Ticket
	asked  time.Time
	// next is what is known of the look after it.
	next retry
	// reported: that it takes long is in the Snapshot.
	reported bool
	// pod and err may be read when the ticket is done.
	pod Pod
	err error
}

// look has a sandbox or a container of a pod read that is not known, unless it was left out a moment ago. One that is not
// answered delays others of its namespace alone: a runtime may ask what the pod itself runs.
func (r *reader) look(id, sandbox string, of Pod) {
	if r.state.has(id) {
		delete(r.retries, id)
		return
	}
	before := r.retries[id]
	if r.looks[id] != nil || before.at.After(r.opts.Clock()) {
		return
	}
	do := func(ctx context.Context) (Pod, error) { return r.lookAtSandbox(ctx, id) }
	if sandbox != "" {
		if _, ok := r.state.pod(sandbox); !ok {
			r.look(sandbox, "", of)
		}
		do = func(ctx context.Context) (Pod, error) { return r.lookAtContainer(ctx, id, sandbox, 0) }
	}
	delete(r.retries, id)
	one := &look{asked: r.opts.Clock(), next: retry{wait: before.wait, sandbox: sandbox, of: of}}
	one.ticket = r.queue.Add(queue.Job{What: id, Owners: []string{of.Namespace}, Urgent: true, Run: func(ctx context.Context) bool {
		one.pod, one.err = do(ctx)
		return true
	}})
	r.looks[id] = one
}

// collect takes over the looks that have ended. It fails where the runtime does not answer at all.
func (r *reader) collect() error {
	for id, one := range r.looks {
		if !one.ticket.IsDone() {
			continue
		}
		delete(r.looks, id)
		if one.err != nil {
			r.leaveOut(id, one)
		}
		if status.Code(one.err) == codes.Unavailable {
			return one.err
		}
	}
	return nil
}

// errSlow is why a container or sandbox has not been looked at.
var errSlow = errors.New("the runtime takes long to answer for it, or for another one of its namespace")

// reportSlow has the Snapshot say which sandboxes and containers have no answer: in the first list all without one.
func (r *reader) reportSlow() {
	for id, one := range r.looks {
		isSlow := !r.listed || r.opts.Clock().Sub(one.asked) > slowLook
		if isSlow && !one.reported && !one.ticket.IsDone() {
			one.reported = true
			r.state.skip(Skipped{ID: id, Pod: one.next.of, Reason: NoAnswer, Err: errSlow})
		}
	}
}

// leaveOut notes why a sandbox or a container is left out, and when to look again.
func (r *reader) leaveOut(id string, one *look) {
	why := new(skip)
	if !errors.As(one.err, &why) {
		why = &skip{NoAnswer, one.err}
	}
	first, longest := firstWait, longestWait
	if status.Code(one.err) == codes.DeadlineExceeded {
		first, longest = longestWait, hungWait
	}
	next := one.next
	if one.pod.Name == "" {
		one.pod = next.of
	}
	next.wait = max(first, min(2*next.wait, longest))
	next.at = r.opts.Clock().Add(next.wait)
	r.retries[id] = next
	r.state.skip(Skipped{ID: id, Pod: one.pod, Reason: why.reason, Err: one.err})
}

// lookAtSandbox reads a pod, and the process that holds its namespaces where there is one.
func (r *looker) lookAtSandbox(ctx context.Context, id string) (Pod, error) {
	answer, err := callFor(ctx, min(r.opts.Timeout, lookTimeout), r.client.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return Pod{}, fmt.Errorf("read sandbox %.64q: %w", id, err)
	}
	p, err := podOf(answer.GetStatus(), r.kept)
	if err == nil && p.SandboxID != id {
		err = fmt.Errorf("read sandbox %.64q: the answer is of %.64q", id, p.SandboxID)
	}
	if err != nil {
		return Pod{}, skipFor(Malformed, err)
	}
	if p.IsCut {
		r.opts.Log.Warn("a pod has more labels than are kept: selectors see those that they name, and no others",
			"namespace", p.Namespace, "pod", p.Name, "kept", len(p.Labels))
	}
	more, err := parseDetails(answer.GetInfo())
	if err != nil {
		return p, skipFor(Malformed, fmt.Errorf("read sandbox %s: %w", id, err))
	}
	if answer.GetStatus().GetState() != cri.PodSandboxState_SANDBOX_READY {
		// It has ended since the list was read.
		return p, skipFor(NoProcess, fmt.Errorf("read sandbox %s: it has ended", id))
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
	p.CgroupPath, p.CgroupID = own.path, own.id
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

// lookAtContainer reads a container of a pod that is known. Its process is the runtime's answer
// or, where that has none, the announced one; 0 is none.
func (r *looker) lookAtContainer(ctx context.Context, id, sandbox string, announced int) (Pod, error) {
	p, ok := r.state.pod(sandbox)
	if !ok {
		return Pod{}, skipFor(NoSandbox, fmt.Errorf("read container %.64q: its sandbox %.64q is left out", id, sandbox))
	}
	status, more, err := r.askContainer(ctx, id, p, announced)
	if err != nil {
		return p, err
	}
	c, err := containerOf(status)
	if err == nil && c.ID != id {
		err = fmt.Errorf("read container %.64q: the answer is of %.64q", id, c.ID)
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
	c.CgroupPath, c.CgroupID = found.in.path, found.in.id
	if p.NetnsID == 0 {
		r.fillPod(&p, found)
	}
	r.state.add(c, p)
	return p, r.watch(found, id)
}

// askContainer asks for a container of the pod, and for its process. Where that makes a larger answer than the runtime gives or
// than is read, since the pod has an environment of that size, the process is the announced one, or the kernel says which it is.
func (r *looker) askContainer(ctx context.Context, id string, p Pod, announced int) (*cri.ContainerStatus, details, error) {
	ask := func(verbose bool) (*cri.ContainerStatusResponse, error) {
		return callFor(ctx, min(r.opts.Timeout, lookTimeout), r.client.ContainerStatus, &cri.ContainerStatusRequest{ContainerId: id, Verbose: verbose})
	}
	answer, err := ask(true)
	if err == nil {
		more, err := parseDetails(answer.GetInfo())
		if err != nil {
			return nil, more, skipFor(Malformed, fmt.Errorf("read container %.64q: %w", id, err))
		}
		return answer.GetStatus(), more, nil
	}
	if status.Code(err) == codes.ResourceExhausted {
		answer, err = ask(false)
	}
	if err != nil {
		return nil, details{}, fmt.Errorf("read container %.64q: %w", id, err)
	}
	if announced == 0 {
		announced, err = r.node.firstProcess(id, p)
	}
	if err != nil {
		return nil, details{}, skipFor(NoProcess, fmt.Errorf("read container %.64q, of which the runtime has more than can be asked for: %w", id, err))
	}
	return answer.GetStatus(), details{PID: announced}, nil
}
