package skepmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Maps are the maps of a readers' folder, which is /run/skep/maps/[NAMESPACE/]APPLICATION on a host,
// and in a pod where its volume is mounted. It follows the folder: a Map that a new version of the
// program replaces is opened anew, and one whose grant is withdrawn fails with ErrWithdrawn until it
// is granted again. All methods may be called at once.
type Maps struct {
	dir  string
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	listing Listing
	maps    map[string]*Map
	// changed is closed once the listing is another one.
	changed chan struct{}
	closed  bool
}

// Open reads the listing of a readers' folder, and follows it until Close. It is fs.ErrNotExist where
// there is no listing: the application does not run, or grants this reader nothing.
func Open(dir string) (*Maps, error) {
	w := newWatch(dir)
	listing, err := ReadListing(dir)
	if err != nil {
		w.close()
		return nil, fmt.Errorf("open the maps of %s: %w", dir, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &Maps{dir: dir, stop: stop, done: make(chan struct{}), listing: listing, maps: map[string]*Map{}, changed: make(chan struct{})}
	go func() {
		defer close(m.done)
		defer w.close()
		for w.wait(ctx) {
			m.reload()
		}
	}()
	return m, nil
}

// Listing describes the maps that are granted now. The reader must not change it.
func (m *Maps) Listing() Listing {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listing
}

// Map opens a map by its name in the program. It stays open until Close.
func (m *Maps) Map(name string) (*Map, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, os.ErrClosed
	}
	if opened := m.maps[name]; opened != nil {
		return opened, nil
	}
	info, granted := m.listing.Maps[name]
	if !granted {
		return nil, fmt.Errorf("open map %s of %s: %w", name, m.listing.Application.Name, ErrWithdrawn)
	}
	opened := &Map{name: name, folder: m, records: map[*Records]struct{}{}}
	if _, err := opened.replace(info, true); err != nil {
		return nil, fmt.Errorf("open map %s of %s: %w", name, m.listing.Application.Name, err)
	}
	m.maps[name] = opened
	return opened, nil
}

// Watch waits until the listing has another generation than the one given, and returns it. It returns
// the cause of ctx where that ends, and os.ErrClosed after Close.
func (m *Maps) Watch(ctx context.Context, generation uint64) (Listing, error) {
	for {
		m.mu.Lock()
		listing, changed, closed := m.listing, m.changed, m.closed
		m.mu.Unlock()
		switch {
		case closed:
			return Listing{}, os.ErrClosed
		case listing.Generation != generation:
			return listing, nil
		}
		select {
		case <-ctx.Done():
			return Listing{}, context.Cause(ctx)
		case <-changed:
		}
	}
}

// Close closes all maps and the readers of ring buffers.
func (m *Maps) Close() error {
	m.stop()
	<-m.done
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	close(m.changed)
	var all []error
	for _, opened := range m.maps {
		all = append(all, opened.close(os.ErrClosed))
	}
	return errors.Join(all...)
}

// reload reads the listing again, and has the maps of others than before opened anew. A listing that
// cannot be read leaves all as it is.
func (m *Maps) reload() {
	listing, err := ReadListing(m.dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return
	case errors.Is(err, fs.ErrNotExist):
		listing = Listing{Application: m.listing.Application}
	case err != nil:
		return
	}
	for name, opened := range m.maps {
		info, granted := listing.Maps[name]
		opened.follow(info, granted)
	}
	if listing.Generation != m.listing.Generation {
		close(m.changed)
		m.changed = make(chan struct{})
	}
	m.listing = listing
}

// watch waits for changes of a folder.
type watch struct {
	dir string
	// file is inotify's, and nil where there is none.
	file *os.File
	// follows is whether the folder is watched: not once it was removed.
	follows bool
}

// again is how often a folder that cannot be watched is looked at.
const again = time.Second

func newWatch(dir string) *watch {
	w := &watch{dir: dir}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
		w.file = os.NewFile(uintptr(fd), "inotify")
	}
	w.follow()
	return w
}

// follow watches the folder if it can.
func (w *watch) follow() {
	if w.file == nil {
		return
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_, err = unix.InotifyAddWatch(int(fd), w.dir, unix.IN_MOVED_TO|unix.IN_CLOSE_WRITE|unix.IN_DELETE|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_ONLYDIR)
		w.follows = err == nil
	})
}

// wait waits for a change, or for the time to look again, and reports whether ctx has not ended.
func (w *watch) wait(ctx context.Context) bool {
	if w.file == nil {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(again):
			return true
		}
	}
	deadline := time.Time{}
	if !w.follows {
		deadline = time.Now().Add(again)
	}
	_ = w.file.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = w.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, 64<<10)
	n, err := w.file.Read(buffer)
	if ctx.Err() != nil {
		return false
	}
	// A watch ends with its folder. A new folder of the same name is another one.
	if err != nil || gone(buffer[:n]) {
		w.follows = false
	}
	if !w.follows {
		w.follow()
	}
	return true
}

// gone reports whether events of inotify say that the folder was removed or moved.
func gone(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask, length := native.Uint32(events[4:]), native.Uint32(events[12:])
		if mask&(unix.IN_IGNORED|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT) != 0 {
			return true
		}
		events = events[min(len(events), unix.SizeofInotifyEvent+int(length)):]
	}
	return false
}

func (w *watch) close() {
	if w.file != nil {
		_ = w.file.Close()
	}
}

// socket is the path of the folder's socket, and whether there is one.
func (m *Maps) socket() (string, bool) {
	path := filepath.Join(m.dir, SocketFile)
	info, err := os.Stat(path)
	return path, err == nil && info.Mode().Type() == fs.ModeSocket
}
