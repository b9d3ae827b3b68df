package skepmap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The header of a record; see struct bpf_ringbuf_hdr in the kernel's kernel/bpf/ringbuf.c.
const (
	headerBytes = 8
	busyBit     = 1 << 31
	discardBit  = 1 << 30
)

// ring is the memory of a ring buffer. The kernel has it mapped, too, so that a record is read
// without a system call, and by a descriptor alone.
type ring struct {
	consumer, producer []byte
	mask               uintptr
}

func mapRing(fd int, size uint32) (*ring, error) {
	page := os.Getpagesize()
	if size == 0 || size&(size-1) != 0 || int(size)%page != 0 {
		return nil, fmt.Errorf("a ring buffer has no %d bytes", size)
	}
	consumer, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the consumer's page: %w", err)
	}
	// The records lie there twice, one after the other, so that none is in two pieces.
	producer, err := unix.Mmap(fd, int64(page), page+2*int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Munmap(consumer)
		return nil, fmt.Errorf("map the records: %w", err)
	}
	return &ring{consumer: consumer, producer: producer, mask: uintptr(size) - 1}, nil
}

func (r *ring) close() error {
	return errors.Join(unix.Munmap(r.consumer), unix.Munmap(r.producer))
}

// position is that of the consumer or producer: how many bytes it has seen so far.
func position(page []byte) *uintptr {
	return (*uintptr)(unsafe.Pointer(unsafe.SliceData(page))) //nolint:gosec // the kernel shares the page
}

// next returns a copy of the next record, and nil where none is complete.
func (r *ring) next() ([]byte, error) {
	records := r.producer[os.Getpagesize():]
	for {
		at := atomic.LoadUintptr(position(r.consumer))
		ready := atomic.LoadUintptr(position(r.producer)) - at
		if ready == 0 {
			return nil, nil
		}
		start := at & r.mask
		header := atomic.LoadUint32((*uint32)(unsafe.Pointer(&records[start]))) //nolint:gosec // as above
		if header&busyBit != 0 {
			return nil, nil
		}
		size := uintptr(header &^ (busyBit | discardBit))
		whole := (headerBytes + size + 7) &^ 7
		if ready > r.mask+1 || whole > ready {
			return nil, errors.New("the ring buffer has a record longer than what is in it: another reader consumes it, too")
		}
		var record []byte
		if header&discardBit == 0 {
			record = append(make([]byte, 0, size), records[start+headerBytes:][:size]...)
		}
		atomic.StoreUintptr(position(r.consumer), at+whole)
		if record != nil {
			return record, nil
		}
	}
}

// Records takes the records of a ring buffer. One reader at a time may: two lose records, and what
// they read may be torn.
type Records struct {
	// mu is held while a record is waited for.
	mu   sync.Mutex
	ring *ring
	// file is the descriptor, which the runtime polls.
	file *os.File
	// ended has the reason once there are no more records.
	ended atomic.Pointer[error]
	// release gives the place of the one consumer back.
	release func()
}

// newRecords takes the descriptor of a ring buffer over.
func newRecords(fd int, size uint32, release func()) (*Records, error) {
	// Without it, the runtime would not poll.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		release()
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "ring buffer")
	r, err := mapRing(fd, size)
	if err != nil {
		_ = file.Close()
		release()
		return nil, err
	}
	return &Records{ring: r, file: file, release: release}, nil
}

// Read waits for the next record and returns its bytes, which are the caller's. It returns the cause
// of ctx where that ends, os.ErrClosed after Close, ErrReplaced once a new version of the program has
// another ring buffer, and ErrWithdrawn once the grant was withdrawn.
func (r *Records) Read(ctx context.Context) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.why(nil); err != nil {
		return nil, err
	}
	if err := r.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, r.why(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = r.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := r.file.SyscallConn()
	if err != nil {
		return nil, r.why(err)
	}
	var record []byte
	var broken error
	err = conn.Read(func(uintptr) bool {
		record, broken = r.ring.next()
		return record != nil || broken != nil
	})
	switch {
	case broken != nil:
		return nil, broken
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, r.why(err)
	}
	return record, nil
}

// why is the reason that there are no more records for, or else err.
func (r *Records) why(err error) error {
	if reason := r.ended.Load(); reason != nil {
		return *reason
	}
	return err
}

// Close ends the reader, and a Read that waits. The records that were not read stay for the next.
func (r *Records) Close() error { return r.end(os.ErrClosed) }

// end ends the reader for a reason, of which the first counts.
func (r *Records) end(reason error) error {
	if !r.ended.CompareAndSwap(nil, &reason) {
		return nil
	}
	// It wakes a Read that waits.
	err := r.file.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release()
	return errors.Join(err, r.ring.close())
}
