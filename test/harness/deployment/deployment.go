// Package deployment runs skep-controller for tests as a Deployment does: as
// processes of its own, behind Services.
//
// It owns where they listen, how they are started and ended, and how the API
// server is told by the chart to ask them. What they are to reach, and what they
// are told, its callers say.
package deployment

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/child"
)

// Options says what a replica is told.
type Options struct {
	// Binary is skep-controller, Kubeconfig the file by which it reaches the API
	// server, Namespace Skep's own. Needed.
	Binary, Kubeconfig, Namespace string
	// Flags are told beside them.
	Flags []string
	// Restart starts it again where it ends by itself, as a kubelet does.
	Restart bool
}

// Timing is how long replicas of tests lead: a dead leader is followed soon, and an API
// server that hangs for three seconds, as it may on a busy machine, costs no lead.
func Timing() leader.Timing {
	return leader.Timing{LeaseDuration: 5 * time.Second, RenewDeadline: 4 * time.Second, RetryPeriod: 500 * time.Millisecond}
}

// Replica is one skep-controller.
type Replica struct {
	// Webhook, Mirror, Metrics and Health are where it serves what, as host:port.
	Webhook, Mirror, Metrics, Health string

	t    testing.TB
	o    Options
	args []string
	said bytes.Buffer
	// end ends the process by the signal; done is closed once it has, failed says
	// how.
	end    context.CancelFunc
	signal os.Signal
	done   chan struct{}
	failed error
}

// Start starts one; it ends with the test.
func Start(t testing.TB, o Options) *Replica {
	t.Helper()
	r := &Replica{t: t, o: o}
	for _, address := range []*string{&r.Webhook, &r.Mirror, &r.Metrics, &r.Health} {
		var err error
		if *address, err = Free(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, port, err := net.SplitHostPort(r.Webhook)
	if err != nil {
		t.Fatal(err)
	}
	timing := Timing()
	r.args = append([]string{"--kubeconfig=" + o.Kubeconfig, "--namespace=" + o.Namespace, "--cache=" + filepath.Join(t.TempDir(), "cache"),
		"--webhook-port=" + port, "--mirror-address=" + r.Mirror, "--metrics-address=" + r.Metrics, "--health-address=" + r.Health,
		// Tests ask for them without a token; what asks for one has tests of its own.
		"--metrics-secure=false",
		"--leader-elect-lease-duration=" + timing.LeaseDuration.String(),
		"--leader-elect-renew-deadline=" + timing.RenewDeadline.String(), "--leader-elect-retry-period=" + timing.RetryPeriod.String(),
		"--allowed-registry=" + strings.Join(supply.Loopback(), ",")}, o.Flags...)
	r.Again()
	t.Cleanup(func() {
		_ = r.Stop()
		if t.Failed() {
			t.Logf("%s:\n%s", r.Webhook, r.said.String())
		}
	})
	return r
}

// Again starts it after it was killed or stopped.
func (r *Replica) Again() {
	// It outlives the test's context by its clean-up.
	ctx, end := context.WithCancel(context.Background())
	r.end, r.signal, r.done = end, nil, make(chan struct{})
	go func() {
		defer close(r.done)
		for {
			r.failed = r.run(ctx)
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
			if !r.o.Restart {
				return
			}
		}
	}()
}

// run is one process from its start to its end.
func (r *Replica) run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, r.o.Binary, r.args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(r.signal) }
	cmd.Stderr = &r.said
	// A proxy of the machine's does not know the test's addresses.
	cmd.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	err := child.Run(cmd)
	if cmd.ProcessState != nil && cmd.ProcessState.Success() {
		return nil
	}
	return err
}

// Kill ends it as a crash of its machine does, Stop as a kubelet does. Stop
// returns how it ended.
func (r *Replica) Kill() { _ = r.by(syscall.SIGKILL) }

// Stop is like Kill.
func (r *Replica) Stop() error { return r.by(syscall.SIGTERM) }

func (r *Replica) by(signal os.Signal) error {
	if r.signal == nil {
		r.signal = signal
	}
	r.end()
	<-r.done
	return r.failed
}

// Leads reports whether it says that it does.
func (r *Replica) Leads() bool {
	body, err := r.get(r.Metrics, "/metrics")
	return err == nil && strings.Contains(body, `leader_election_master_status{name="skep-controller"} 1`)
}

// Ready tells why it is not.
func (r *Replica) Ready() error {
	_, err := r.get(r.Health, "/readyz")
	return err
}

func (r *Replica) get(address, path string) (string, error) {
	request, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return string(body), err
}

// Free is an address of loopback that nobody listens at, as host:port.
func Free(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
