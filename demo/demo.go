// Package demo shows the whole pipeline in the real kernel: from a signed image
// and a git commit to counted packets, an update that misses none, denials,
// and a revert that leaves the kernel clean.
//
// It owns the story and its objects. The packages of Skep do all that is shown, as
// in skep run. Everything happens in a network and a mount namespace of its own, so
// that nothing is left when the demo ends, however it ends.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// InsideFlag is the hidden flag of the command that plays the story in the
// namespaces made for it; its value is the folder to play in.
const InsideFlag = "inside"

// Options says how the show is given.
type Options struct {
	// Out gets the story.
	Out io.Writer
	// Colour paints the answers.
	Colour bool
	// Keep leaves everything running at the end, until ctx ends.
	Keep bool
}

// Run gives the show in a child process of its own namespaces and returns when
// it is over. The child runs this binary again, which calls Inside.
func Run(ctx context.Context, o Options) error {
	if os.Geteuid() != 0 {
		return errors.New("run demo: loading programs into the kernel needs root; run it with sudo")
	}
	dir, err := os.MkdirTemp("", "skep-demo-")
	if err != nil {
		return fmt.Errorf("run demo: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// The signal sent when this process dies is bound to the thread that
	// started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("run demo: %w", err)
	}
	//nolint:gosec // It is this program itself.
	child := exec.CommandContext(ctx, self, "--"+InsideFlag, dir, "--keep="+strconv.FormatBool(o.Keep))
	child.Args[0] = os.Args[0]
	child.Stdout, child.Stderr = o.Out, os.Stderr
	// An interrupt at the terminal is for this process, which ends the child.
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL, Setpgid: true}
	child.Cancel = func() error { return child.Process.Signal(syscall.SIGTERM) }
	child.WaitDelay = 10 * time.Second
	err = child.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.As(err, &exit):
		return errors.New("run demo: it ended early; see above")
	}
	return err
}

// Inside plays the story in dir. The process is in namespaces of its own. That ctx
// ends is no error.
func Inside(ctx context.Context, o Options, dir string) (err error) {
	show, err := open(ctx, o, dir)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil
	case err != nil:
		return fmt.Errorf("set the stage: %w", err)
	}
	defer func() { err = errors.Join(err, show.close()) }()
	for _, act := range []func(context.Context) error{
		show.deploy, show.count, show.update, show.deny, show.revert,
	} {
		if err := act(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if o.Keep && show.acted == actsBeforeRevert {
			return show.keep(ctx)
		}
	}
	show.next()
	return nil
}
