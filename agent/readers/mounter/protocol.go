// Package mounter mounts the volumes of pods that read maps, in a process that has that right and no other use.
//
// It owns the requests of the agent, and the file systems of a volume: a small tmpfs for plain files and, where volumes have pins, below
// it one BPF file system for pins that are only read and one for the others. It takes no path from a request, mounts
// by descriptors alone, and unmounts nothing that it did not mount. It does not know what a grant is.
package mounter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The names of the folders of a volume that pins are in, as symlinks beside them begin.
const (
	// ReadOnly is the folder of the maps that are only read: the kernel lets no user open them for writing.
	ReadOnly = "maps"
	// Writable is the folder of the maps that may be written, or consumed.
	Writable = "maps@write"
)

// Bounds of a request. The kernel passes at most 253 descriptors at a time.
const (
	MaxPins   = 253
	MaxRecord = 4 << 10
	maxBytes  = 128 << 10
	// perList is how many volumes one answer lists.
	perList = 8
)

// patience is how long one side waits for the other.
const patience = 20 * time.Second

// Volume is one inline volume of a pod: it is mounted at POD/volumes/kubernetes.io~csi/NAME/mount below the kubelet's
// folder of pods.
type Volume struct {
	// Pod is its UID.
	Pod string `json:"pod"`
	// Name is the volume's, in the pod.
	Name string `json:"name"`
}

// String implements fmt.Stringer.
func (v Volume) String() string { return fmt.Sprintf("volume %s of pod %s", v.Name, v.Pod) }

// What a volume is named by. A static pod has a hash in the place of a UID. Lengths are not in the patterns, which would take the memory
// of the agent and of the mounter.
var (
	isPod    = regexp.MustCompile(`^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32})$`)
	isVolume = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	isPin    = regexp.MustCompile(`^[A-Za-z0-9_$%-]+$`)
)

// The longest names of volumes and pins.
const maxVolume, maxPin = 63, 255

// Check returns an error unless pod and volume have the form of such names. Nothing of that form is a path.
func (v Volume) Check() error {
	if !isPod.MatchString(v.Pod) {
		return fmt.Errorf("%q is not the UID of a pod", v.Pod)
	}
	if len(v.Name) > maxVolume || !isVolume.MatchString(v.Name) {
		return fmt.Errorf("%q is not the name of a volume", v.Name)
	}
	return nil
}

// path is where the volume's folder is, below the kubelet's folder of pods.
func (v Volume) path() string { return v.Pod + "/volumes/kubernetes.io~csi/" + v.Name }

// Mounted is a volume that is mounted.
type Mounted struct {
	Volume
	// Group is that of the pins.
	Group uint32 `json:"group"`
	// Record is the one of its Mount.
	Record []byte `json:"record"`
}

// Pin is a map of a volume.
type Pin struct {
	Name string `json:"name"`
	// Write gives the group the right to write the map, or to consume it.
	Write bool `json:"write,omitempty"`
	// Map is a descriptor of the map, which the kernel duplicates.
	Map int `json:"-"`
}

// ErrNotMounted is the error of an update of a volume that is not mounted, or no longer.
var ErrNotMounted = errors.New("the volume is not mounted")

// The operations.
const (
	opMount   = "mount"
	opUpdate  = "update"
	opNarrow  = "narrow"
	opUnmount = "unmount"
	opList    = "list"
)

// request is what the agent sends; the descriptors of the pins come beside it, in their order.
type request struct {
	Op string `json:"op"`
	// Volume is that of all operations but list, which gives those after it.
	Volume
	Group  uint32 `json:"group,omitempty"`
	Record []byte `json:"record,omitempty"`
	Pins   []Pin  `json:"pins,omitempty"`
}

// reply is the answer; the descriptor of the folder comes beside it, where it was mounted.
type reply struct {
	Error string `json:"error,omitempty"`
	// NotMounted makes the error wrap ErrNotMounted.
	NotMounted bool      `json:"notMounted,omitempty"`
	Volumes    []Mounted `json:"volumes,omitempty"`
	// More says that the list continues after the last volume.
	More bool `json:"more,omitempty"`
}

// check returns an error for a request that no agent makes. Without pins, no descriptor is taken.
func (r request) check(descriptors int, pins bool) error {
	if !pins && descriptors+len(r.Pins) > 0 {
		return errors.New("volumes have no pins; start skep-mounter with --pins (in the chart, csi.pins)")
	}
	if r.Op == opList {
		return nil
	}
	if err := r.Volume.Check(); err != nil {
		return err
	}
	if len(r.Record) > MaxRecord {
		return fmt.Errorf("a record of %d bytes: at most %d", len(r.Record), MaxRecord)
	}
	if r.Group == noGroup {
		return fmt.Errorf("%d is no group", r.Group)
	}
	if r.Op == opNarrow {
		descriptors += len(r.Pins)
	}
	if len(r.Pins) != descriptors {
		return fmt.Errorf("%d pins with %d descriptors", len(r.Pins), descriptors)
	}
	for i, p := range r.Pins {
		if len(p.Name) > maxPin || !isPin.MatchString(p.Name) {
			return fmt.Errorf("%q is not the name of a pin", p.Name)
		}
		if slices.ContainsFunc(r.Pins[:i], func(o Pin) bool { return o.Name == p.Name }) {
			return fmt.Errorf("%q is pinned twice", p.Name)
		}
	}
	return nil
}

// noGroup is what chown(2) takes for a group that stays.
const noGroup = ^uint32(0)

// send writes one message.
func send(c *net.UnixConn, message any, descriptors []int) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxBytes {
		return fmt.Errorf("a message of %d bytes: at most %d", len(body), maxBytes)
	}
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	_, _, err = c.WriteMsgUnix(body, rights, nil)
	return err
}

// receive reads one message. The descriptors are the caller's, also with an error.
func receive(c *net.UnixConn, message any) ([]int, error) {
	body, rights := make([]byte, maxBytes), make([]byte, unix.CmsgSpace(4*MaxPins))
	n, m, flags, _, err := c.ReadMsgUnix(body, rights)
	if err != nil {
		return nil, err
	}
	descriptors, err := descriptorsOf(rights[:m])
	switch {
	case err != nil:
		return descriptors, err
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return descriptors, errors.New("the message is too long")
	}
	return descriptors, json.Unmarshal(body[:n], message)
}

// descriptorsOf takes the descriptors out of what came beside a message.
func descriptorsOf(rights []byte) ([]int, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range messages {
		some, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return all, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// closeAll closes descriptors.
func closeAll(descriptors []int) {
	for _, d := range descriptors {
		_ = unix.Close(d)
	}
}

// waits returns an error unless the other side waits for an answer: it has sent all, and closes what it gives up.
func waits(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	control := raw.Control(func(fd uintptr) { _, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT) })
	switch {
	case control != nil:
		return control
	case errors.Is(err, unix.EAGAIN):
		return nil
	}
	return fmt.Errorf("the agent does not wait for the answer: %w", cmp.Or(err, io.EOF))
}

// peer returns an error unless the other side runs as root of this user namespace.
func peer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if control := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); control != nil {
		return control
	}
	if err != nil {
		return fmt.Errorf("read who the peer is: %w", err)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the peer is of user %d, not %d", cred.Uid, os.Geteuid())
	}
	return nil
}
