package mounter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Client asks the mounter with the socket. Each request has a connection of its own, so that it needs no care when the
// mounter restarts.
type Client struct {
	// Socket is the path of the mounter's socket.
	Socket string
}

// Mount mounts a volume, has it contain exactly these pins, and returns its folder for plain files, as root of the
// mounter's sees it: through it files can be written, which a pod cannot. What is mounted stays, with another record,
// so that the call can be repeated. The group is that of a volume's first mount.
func (c Client) Mount(ctx context.Context, v Volume, group uint32, record []byte, pins []Pin) (*os.File, error) {
	return c.folder(ctx, request{Op: opMount, Volume: v, Group: group, Record: record, Pins: pins})
}

// Update has a volume contain exactly these pins, and returns its folder. The error wraps ErrNotMounted where it is
// not mounted: Update mounts nothing.
func (c Client) Update(ctx context.Context, v Volume, pins []Pin) (*os.File, error) {
	return c.folder(ctx, request{Op: opUpdate, Volume: v, Pins: pins})
}

// Narrow removes the pins of a volume but these, which are told by name and right alone. The error wraps ErrNotMounted where it is not mounted.
func (c Client) Narrow(ctx context.Context, v Volume, keep []Pin) error {
	_, folder, err := c.ask(ctx, request{Op: opNarrow, Volume: v, Pins: keep})
	closeAll(folder)
	return err
}

// Unmount unmounts a volume. One that is not mounted is no error.
func (c Client) Unmount(ctx context.Context, v Volume) error {
	_, folder, err := c.ask(ctx, request{Op: opUnmount, Volume: v})
	closeAll(folder)
	return err
}

// List returns the volumes that are mounted, in the order of pods and names.
func (c Client) List(ctx context.Context) ([]Mounted, error) {
	var all []Mounted
	r := request{Op: opList}
	for {
		got, descriptors, err := c.ask(ctx, r)
		closeAll(descriptors)
		if err != nil {
			return nil, err
		}
		all = append(all, got.Volumes...)
		if !got.More || len(got.Volumes) == 0 {
			return all, nil
		}
		r.Volume = all[len(all)-1].Volume
	}
}

// folder asks for a volume's folder.
func (c Client) folder(ctx context.Context, r request) (*os.File, error) {
	_, descriptors, err := c.ask(ctx, r)
	if err == nil && len(descriptors) != 1 {
		err = fmt.Errorf("the mounter sent %d descriptors for one folder", len(descriptors))
	}
	if err != nil {
		closeAll(descriptors)
		return nil, err
	}
	return os.NewFile(uintptr(descriptors[0]), r.Volume.String()), nil
}

// ask sends a request, and waits for the answer.
func (c Client) ask(ctx context.Context, r request) (reply, []int, error) {
	got, descriptors, err := c.exchange(ctx, r)
	switch {
	case err != nil:
		err = fmt.Errorf("ask the mounter at %s: %w", c.Socket, err)
	case got.NotMounted:
		err = fmt.Errorf("%s: %w", r.Volume, ErrNotMounted)
	case got.Error != "":
		err = errors.New(got.Error)
	}
	return got, descriptors, err
}

// exchange is one request and its answer.
func (c Client) exchange(ctx context.Context, r request) (got reply, descriptors []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", c.Socket)
	if err != nil {
		return reply{}, nil, err
	}
	defer func() { _ = conn.Close() }()
	// An expired deadline ends reads and writes that wait.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(0, 0)) })
	defer stop()
	to := conn.(*net.UnixConn)
	// Who listens is sent descriptors of maps.
	if err := peer(to); err != nil {
		return reply{}, nil, err
	}
	var maps []int
	for _, p := range r.Pins {
		if r.Op != opNarrow {
			maps = append(maps, p.Map)
		}
	}
	if err := send(to, r, maps); err != nil {
		return reply{}, nil, err
	}
	descriptors, err = receive(to, &got)
	return got, descriptors, err
}
