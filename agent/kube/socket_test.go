package kube_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/test/harness/need"
)

// TestTheAgentsSocketIsItsOwnersAlone: package listen's own tests show that others cannot
// connect to such a socket at any time.
func TestTheAgentsSocketIsItsOwnersAlone(t *testing.T) {
	need.Kernel(t)
	defer unix.Umask(unix.Umask(0))
	w := newWorld(t, plane)
	a, _ := w.start()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.ServeSocket(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	var info os.FileInfo
	until(t, "the socket", func() bool {
		var err error
		info, err = os.Lstat(filepath.Join(w.dir, "state", kube.SocketName))
		return err == nil
	})
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("its file is %v", info.Mode())
	}
}
