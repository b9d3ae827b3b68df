package serve

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/skepmap/protocol"
)

// Options are the bounds of a server. Zero values stand for the defaults.
type Options struct {
	// Connections is how many there may be in all, 256, PerOwner of one owner's folders, 128, and PerFolder on one socket, 16. Where all
	// are taken, one of the owner that has most ends for an owner that has fewer.
	Connections, PerOwner, PerFolder int
	// Idle is how long a connection may ask for nothing, 5 minutes. One that consumes a ring buffer
	// may for ever.
	Idle time.Duration
	// Request is how long a request may take to arrive, and an answer to be taken: 10 seconds.
	Request time.Duration
	// FolderShare is the share of a core that the readers of one socket may cost, 0.2, OwnerShare what those of one owner may,
	// 0.3, and Share what all may, 0.5. The making of connections counts.
	FolderShare, OwnerShare, Share float64
	// Held is how many bytes of ring buffers that are not loaded any more the readers of an owner may hold and be given a further one, 64 MiB.
	Held uint64
	// IsLoaded reports whether a map is loaded. It is called without locks. Nil takes all for loaded.
	IsLoaded func(id ebpf.MapID) bool
}

// Server answers on the sockets of all readers' folders.
type Server struct {
	o    Options
	pace *pace

	mu sync.Mutex
	// connections is how many there are of all folders, and owners are those by the owner of their folder.
	connections int
	owners      map[string]map[*connection]struct{}
	// consumers have the descriptor of a ring buffer.
	consumers map[ebpf.MapID]*connection
	passed    map[ebpf.MapID]passed
	// paces are those of owners, while they have folders.
	paces map[string]*ownerPace
}

// ownerPace is the pace of an owner, and how many folders there are of it.
type ownerPace struct {
	*pace
	folders int
}

// New makes a server.
func New(o Options) *Server {
	o.Connections, o.PerOwner, o.PerFolder = cmp.Or(o.Connections, 256), cmp.Or(o.PerOwner, 128), cmp.Or(o.PerFolder, 16)
	o.Idle, o.Request = cmp.Or(o.Idle, 5*time.Minute), cmp.Or(o.Request, 10*time.Second)
	o.FolderShare, o.OwnerShare, o.Share = cmp.Or(o.FolderShare, .2), cmp.Or(o.OwnerShare, .3), cmp.Or(o.Share, .5)
	o.Held = cmp.Or(o.Held, 64<<20)
	return &Server{o: o, pace: newPace(o.Share), owners: map[string]map[*connection]struct{}{}, consumers: map[ebpf.MapID]*connection{},
		passed: map[ebpf.MapID]passed{}, paces: map[string]*ownerPace{}}
}

// Listen makes the socket of a readers' folder, in the place of one that is there. Mode and group say
// who may connect.
func Listen(path string, mode os.FileMode, group int) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	short, done, err := protocol.Short(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// The name may be that of a descriptor which is closed by then. Folder.Close removes the socket.
	l.SetUnlinkOnClose(false)
	err = os.Lchown(path, 0, group)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// Folder is the socket of one readers' folder.
type Folder struct {
	server *Server
	owner  string
	l      *net.UnixListener
	// paces are the folder's, its owner's and the server's, in that order: an owner's folders together wait for the others' once.
	paces  []*pace
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup
	closed sync.Once

	mu          sync.Mutex
	maps        map[string]*entry
	connections map[*connection]struct{}
	// accepts is whether connections are taken.
	accepts bool
}

// Serve answers on a socket from the first Grant until Close. Readers that connect before wait: after a
// restart of the agent, they must not take a grant for withdrawn. The owner is whose readers use the
// folder: no owner takes the connections of another.
func (s *Server) Serve(l *net.UnixListener, owner string) *Folder {
	f := &Folder{server: s, owner: owner, l: l, paces: []*pace{newPace(s.o.FolderShare), s.paceOf(owner), s.pace},
		maps: map[string]*entry{}, connections: map[*connection]struct{}{}}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// paceOf is the pace of an owner, who has one more folder.
func (s *Server) paceOf(owner string) *pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.paces[owner]
	if p == nil {
		p = &ownerPace{pace: newPace(s.o.OwnerShare)}
		s.paces[owner] = p
	}
	p.folders++
	return p.pace
}

// Grant replaces all grants of the folder, and takes the shares of maps over. It ends the connections that used
// what is not granted any more, and waits for none of them.
func (f *Folder) Grant(maps map[string]Granted) {
	entries := make(map[string]*entry, len(maps))
	for name, g := range maps {
		entries[name] = newEntry(g)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		closeAll(entries)
		return
	}
	if !f.accepts {
		f.accepts = true
		f.work.Go(f.accept)
	}
	before := f.maps
	for name, e := range entries {
		// What runs on with the map that is open, such as a scan, does so.
		if was := before[name]; was != nil && was.sameMap(e) {
			was.Info, was.Groups = e.Info, e.Groups
			before[name], entries[name] = e, was
		}
	}
	f.replace(entries)
	closeAll(before)
}

// Keep ends the grants that keep does not name, and the connections that used them. It opens nothing, and so never fails.
func (f *Folder) Keep(keep func(name string, g Granted) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept, ended := map[string]*entry{}, map[string]*entry{}
	for name, e := range f.maps {
		if keep(name, e.Granted) {
			kept[name] = e
		} else {
			ended[name] = e
		}
	}
	f.replace(kept)
	closeAll(ended)
}

// replace has other grants, and ends the connections that used what is not among them. The caller holds mu.
func (f *Folder) replace(now map[string]*entry) {
	before := f.maps
	f.maps = now
	for c := range f.connections {
		if !c.keeps(before, now) {
			c.end()
		}
	}
}

// closeAll closes maps, and waits for none that is in use.
func closeAll(entries map[string]*entry) {
	for _, e := range entries {
		go e.close()
	}
}

// Close ends the socket and all connections, and closes the maps. For a connection that does not end it waits no longer than a request may
// take: a reader can pass a descriptor whose end takes the kernel long, in the place of who reads the message.
func (f *Folder) Close() error {
	f.stop()
	f.mu.Lock()
	for c := range f.connections {
		c.end()
	}
	closeAll(f.maps)
	f.maps = nil
	f.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		err := f.l.Close()
		f.work.Wait()
		ended <- err
	}()
	var err error
	select {
	case err = <-ended:
	case <-time.After(f.server.o.Request):
	}
	f.closed.Do(func() {
		f.server.mu.Lock()
		defer f.server.mu.Unlock()
		if p := f.server.paces[f.owner]; p.folders > 1 {
			p.folders--
		} else {
			delete(f.server.paces, f.owner)
		}
	})
	return err
}

// accept takes connections within the bounds.
func (f *Folder) accept() {
	for {
		conn, err := f.l.AcceptUnix()
		if f.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil {
			// Such as too many open files: the next may find less of them.
			select {
			case <-f.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		c, rejected := f.admit(conn)
		if rejected != "" {
			// A new connection has room for it.
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, _, _ = conn.WriteMsgUnix(lineOf(protocol.Response{Code: protocol.Busy, Error: rejected}), nil, nil)
			_ = conn.Close()
			continue
		}
		f.work.Go(func() {
			defer f.leave(c)
			c.serve()
		})
	}
}

// perConnection is what a connection costs besides what is measured: its end, and the kernel's work.
const perConnection = 50 * time.Microsecond

// admit is enter at the pace of the folder: a reader that connects all the time costs no more than one that asks all the time.
func (f *Folder) admit(conn *net.UnixConn) (c *connection, rejected string) {
	_, err := inTurn(f.ctx, f.paces, func() time.Duration {
		return perConnection + measured(func() { c, rejected = f.enter(conn) })
	})
	if err != nil {
		return nil, "the socket is being closed"
	}
	return c, rejected
}

// enter counts a connection, and returns why there is no room for it.
func (f *Folder) enter(conn *net.UnixConn) (*connection, string) {
	groups, err := groupsOf(conn)
	if err != nil {
		return nil, err.Error()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return nil, "the socket is being closed"
	}
	if len(f.connections) >= f.server.o.PerFolder {
		return nil, fmt.Sprintf("the socket has %d connections, and no more are allowed; close one", len(f.connections))
	}
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	if n := len(f.server.owners[f.owner]); n >= f.server.o.PerOwner {
		return nil, fmt.Sprintf("the readers of namespace %s have %d connections on this node, and no more are allowed; close one", f.owner, n)
	}
	if f.server.connections >= f.server.o.Connections && !f.server.makeRoom(f.owner) {
		return nil, fmt.Sprintf("the agent has %d connections of readers, and no more are allowed; try again later", f.server.connections)
	}
	c := &connection{folder: f, conn: conn, groups: groups, used: map[string]rights{}}
	c.ctx, c.stop = context.WithCancel(f.ctx)
	f.connections[c] = struct{}{}
	f.server.connections++
	if f.server.owners[f.owner] == nil {
		f.server.owners[f.owner] = map[*connection]struct{}{}
	}
	f.server.owners[f.owner][c] = struct{}{}
	return c, ""
}

// makeRoom ends a connection of the owner that has most, unless a further one would give this owner as many. The caller
// holds mu.
func (s *Server) makeRoom(owner string) bool {
	most := s.owners[owner]
	for _, all := range s.owners {
		if len(all) > len(most) {
			most = all
		}
	}
	if len(most) <= len(s.owners[owner])+1 {
		return false
	}
	for c := range most {
		s.forget(c)
		c.end()
		break
	}
	return true
}

// forget counts a connection no longer. The caller holds mu.
func (s *Server) forget(c *connection) {
	all := s.owners[c.folder.owner]
	if _, counted := all[c]; !counted {
		return
	}
	s.connections--
	if delete(all, c); len(all) == 0 {
		delete(s.owners, c.folder.owner)
	}
}

// leave forgets a connection, and the ring buffers that it consumes.
func (f *Folder) leave(c *connection) {
	c.end()
	f.mu.Lock()
	delete(f.connections, c)
	f.mu.Unlock()
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.forget(c)
	for id, consumer := range f.server.consumers {
		if consumer == c {
			delete(f.server.consumers, id)
		}
	}
}

// consume makes a connection the one consumer of a ring buffer of so many bytes, and reports whether it is.
func (s *Server) consume(id ebpf.MapID, bytes uint32, c *connection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if consumer := s.consumers[id]; consumer != nil && consumer != c && consumer.ctx.Err() == nil {
		return false
	}
	s.consumers[id], s.passed[id] = c, passed{c.folder.owner, uint64(bytes)}
	return true
}
