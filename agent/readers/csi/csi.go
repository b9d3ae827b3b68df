// Package csi is the node plug-in csi.skep.dev, by which pods have maps in an ephemeral inline volume. It answers to csi.bpfman.io, too.
//
// It owns what the kubelet asks: who a pod is, what it asks for, and where. It must not decide what a pod is granted, and mounts nothing:
// package volumes does. It believes of a pod only what the kubelet adds to a request (podInfoOnMount), never what the pod's author wrote.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
)

// maxRequest is the most bytes of a request: attributes of a pod, and paths.
const maxRequest = 64 << 10

// Volumes are where what is asked for is done. It is a volumes.Keeper but in tests.
type Volumes interface {
	Mount(ctx context.Context, r volumes.Request) error
	Unmount(ctx context.Context, at mounter.Volume) error
}

// Options are those of a plug-in. All are required.
type Options struct {
	// Driver is the one that the plug-in is.
	Driver Driver
	// Kubelet is its folder, such as /var/lib/kubelet, at the same path as the kubelet has it. In it, the plug-in has the folders
	// plugins/csi.skep.dev and plugins_registry.
	Kubelet string
	// Node is the name of the node, and Version the agent's.
	Node, Version string
	Volumes       Volumes
	Log           *slog.Logger
}

// Plugin answers the kubelet.
type Plugin struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	o Options
}

// New returns a plug-in.
func New(o Options) *Plugin { return &Plugin{o: o} }

// socket is the plug-in's, and registry the one by which the kubelet learns of it.
func (p *Plugin) socket() string {
	return filepath.Join(p.o.Kubelet, "plugins", Skep.Name, p.o.Driver.socket)
}
func (p *Plugin) registry() string {
	return filepath.Join(p.o.Kubelet, "plugins_registry", p.o.Driver.Name+"-reg.sock")
}

// Serve answers the kubelet until the context ends. The kubelet forgets a plug-in whose socket of registration goes.
func (p *Plugin) Serve(ctx context.Context) error {
	if err := p.isFree(ctx); err != nil {
		return err
	}
	plugin, err := p.listen(p.socket())
	if err != nil {
		return err
	}
	// Last: the kubelet asks the plug-in at once.
	registry, err := p.listen(p.registry())
	if err != nil {
		return errors.Join(err, plugin.Close())
	}
	group, ctx := errgroup.WithContext(ctx)
	for l, register := range map[net.Listener]func(*grpc.Server){
		plugin: func(s *grpc.Server) {
			spec.RegisterIdentityServer(s, p)
			spec.RegisterNodeServer(s, p)
		},
		registry: func(s *grpc.Server) { registration.RegisterRegistrationServer(s, &registrar{plugin: p}) },
	} {
		s := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest))
		register(s)
		group.Go(func() error { return s.Serve(l) })
		group.Go(func() error {
			<-ctx.Done()
			s.Stop()
			return nil
		})
	}
	if err := group.Wait(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("answer the kubelet: %w", err)
	}
	return nil
}

// isFree returns an error where another plug-in answers to the driver's name: the kubelet knows one of a name, the one that came last.
func (p *Plugin) isFree(ctx context.Context) error {
	c, err := grpc.NewClient("unix://"+p.registry(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("ask who answers to %s: %w", p.o.Driver.Name, err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := registration.NewRegistrationClient(c).GetInfo(ctx, &registration.InfoRequest{})
	if err == nil && info.GetEndpoint() != p.socket() {
		return fmt.Errorf("another plug-in, at %s, answers to %s, and a node has one of a name; uninstall it, or turn this one off",
			info.GetEndpoint(), p.o.Driver.Name)
	}
	return nil // an earlier agent of ours, or nobody
}

// listen makes a socket that root alone may reach, in the place of one that an earlier agent left.
func (p *Plugin) listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("make the folder of a socket for the kubelet: %w", err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("remove a socket for the kubelet: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return rootOnly{l, p.o.Log}, nil
}

// rootOnly are the connections of root of this user namespace, as the kubelet is.
type rootOnly struct {
	*net.UnixListener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l rootOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := userOf(c)
		if err == nil && uid == os.Geteuid() {
			return c, nil
		}
		l.log.Warn("a connection to a socket for the kubelet was closed", "socket", l.Addr().String(), "user", uid, "error", err)
		_ = c.Close()
	}
}

// userOf is whose process made a connection.
func userOf(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid, errors.Join(controlErr, err)
}

// registrar tells the kubelet of the plug-in.
type registrar struct {
	registration.UnimplementedRegistrationServer
	plugin *Plugin
}

// GetInfo implements registration.RegistrationServer.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	d := r.plugin.o.Driver
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: d.Name, Endpoint: r.plugin.socket(), SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer. A kubelet that could not register the plug-in asks again.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.plugin.o.Log.Info("the kubelet knows the plug-in for volumes of maps", "driver", r.plugin.o.Driver.Name)
	} else {
		r.plugin.o.Log.Error("the kubelet does not take the plug-in for volumes of maps", "driver", r.plugin.o.Driver.Name, "error", s.GetError())
	}
	return &registration.RegistrationStatusResponse{}, nil
}
