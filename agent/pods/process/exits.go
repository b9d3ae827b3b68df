package process

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Exits tells which processes end, without waiting for each in a goroutine or a thread of its
// own: the Go runtime waits for one epoll descriptor, which holds a pidfd for each.
type Exits struct {
	poll *os.File
	// ended is called with the key of a process that ended, by one goroutine.
	ended func(key string)
	mu    sync.Mutex
	keys  map[int32]string
	done  chan struct{}
}

// WatchExits begins: ended is called with the key of each process that ended, by one goroutine. The caller closes it.
func WatchExits(ended func(key string)) (*Exits, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("make epoll: %w", err), unix.Close(fd))
	}
	e := &Exits{poll: os.NewFile(uintptr(fd), "epoll"), ended: ended, keys: map[int32]string{}, done: make(chan struct{})}
	raw, err := e.poll.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make epoll: %w", err), e.poll.Close())
	}
	go func() {
		defer close(e.done)
		// It ends when poll is closed.
		_ = raw.Read(e.collect)
	}()
	return e, nil
}

// Add watches a process. The pidfd belongs to Exits from now on, and is closed when the
// process ended.
func (e *Exits) Add(pidfd int, key string) error {
	e.mu.Lock()
	e.keys[int32(pidfd)] = key
	e.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(pidfd)}
	if err := e.control(unix.EPOLL_CTL_ADD, pidfd, &event); err != nil {
		e.forget(int32(pidfd))
		return fmt.Errorf("watch process: %w", err)
	}
	return nil
}

func (e *Exits) control(op, pidfd int, event *unix.EpollEvent) error {
	raw, err := e.poll.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.EpollCtl(int(fd), op, pidfd, event) })
	return errors.Join(err, failed)
}

// forget closes a pidfd, which takes it out of epoll, and returns its key.
func (e *Exits) forget(pidfd int32) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, ok := e.keys[pidfd]
	if ok {
		delete(e.keys, pidfd)
		_ = unix.Close(int(pidfd))
	}
	return key, ok
}

// collect reports all processes that ended, and returns false: to be called again when more do.
func (e *Exits) collect(fd uintptr) bool {
	var events [64]unix.EpollEvent
	for {
		n, err := unix.EpollWait(int(fd), events[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return true
		}
		for _, event := range events[:n] {
			if key, ok := e.forget(event.Fd); ok {
				e.ended(key)
			}
		}
		if n < len(events) {
			return false
		}
	}
}

// Close ends the watch of all.
func (e *Exits) Close() {
	_ = e.poll.Close()
	<-e.done
	for pidfd := range e.keys {
		_ = unix.Close(int(pidfd))
	}
	clear(e.keys)
}
