// Package child starts processes that do not outlive the test binary. It does not end them: who starts one waits for
// it.
package child

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start starts a command, which the kernel kills when this process ends. The caller waits for it.
//
// The kernel kills a child when the thread ends that started it (PR_SET_PDEATHSIG of prctl(2)), and
// any thread ends with a goroutine that is locked to it and returns, as those in other network
// namespaces do. So a thread of its own waits for as long as the child runs.
func Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		pid := 0
		if err == nil {
			pid = cmd.Process.Pid
		}
		started <- err
		for err == nil {
			// Who waits for the child takes it away.
			if ended := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(ended, unix.EINTR) {
				return
			}
		}
	}()
	return <-started
}

// Run starts a command as Start does, and waits for it.
func Run(cmd *exec.Cmd) error {
	if err := Start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}
