package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Private listens on a Unix socket that its owner alone can connect to, and removes a
// stale one first. The file has mode 0600 from the moment it exists: the kernel takes the
// mode of a socket's file from the socket's own, less the umask (unix_bind_bsd).
func Private(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	config := net.ListenConfig{Control: ownersAlone}
	l, err := config.Listen(ctx, unixNetwork, path)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	return l, nil
}

// ownersAlone closes a socket that has no name yet to everybody but its owner.
func ownersAlone(_, _ string, socket syscall.RawConn) error {
	var changed error
	if err := socket.Control(func(fd uintptr) { changed = unix.Fchmod(int(fd), 0o600) }); err != nil {
		return err
	}
	return changed
}
