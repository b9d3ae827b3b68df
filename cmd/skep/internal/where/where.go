// Package where decides whether a command asks the skep run of this host or a cluster. It must not ask either, and
// changes nothing.
package where

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/text"
)

// DefaultState is where a host keeps what it has to remember.
const DefaultState = "/var/lib/skep"

// The flags that name a host, or a node of a cluster.
const (
	stateFlag = "state"
	hostFlag  = "host"
	nodeFlag  = "node"
)

// Flags say where a command asks.
type Flags struct {
	// State is the state folder of this host's skep run.
	State string
	// Kube are kubectl's.
	Kube kubeconfig.Flags
	// Node is a node of the cluster, of commands that ask one.
	Node string

	host bool
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.State, stateFlag, DefaultState, "ask the skep run of this host that has this state folder")
	cmd.Flags().BoolVar(&f.host, hostFlag, false, "ask the skep run of this host, also if there is a kubeconfig")
	f.RegisterCluster(cmd)
}

// RegisterCluster adds the flags of a cluster alone.
func (f *Flags) RegisterCluster(cmd *cobra.Command) {
	f.Kube.Register(cmd)
	f.Kube.RegisterEverywhere(cmd)
}

// RegisterNode adds --node.
func (f *Flags) RegisterNode(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&f.Node, nodeFlag, "", usage)
	_ = cmd.RegisterFlagCompletionFunc(nodeFlag, f.Kube.Names(v1alpha1.GroupVersion().WithResource("bpfnodes")))
}

// IsPlugin reports whether kubectl runs the command.
func IsPlugin(cmd *cobra.Command) bool { return strings.HasPrefix(cmd.Root().DisplayName(), "kubectl") }

// Explicit reports which place the caller named: that of a flag, or the cluster as kubectl's plug-in.
func (f *Flags) Explicit(cmd *cobra.Command) (cluster, named bool, err error) {
	host, kube := "", f.Kube.Given(cmd)
	for _, name := range []string{stateFlag, hostFlag} {
		if cmd.Flags().Changed(name) {
			host = "--" + name
		}
	}
	if cmd.Flags().Changed(nodeFlag) {
		kube = "--" + nodeFlag
	}
	switch {
	case host != "" && IsPlugin(cmd):
		return false, false, fmt.Errorf("%s: kubectl skep asks a cluster, and %s names this host: use skep instead of kubectl skep", cmd.Name(), host)
	case host != "" && kube != "":
		return false, false, fmt.Errorf("%s: %s names this host, and %s a cluster: give one of them", cmd.Name(), host, kube)
	}
	return kube != "" || IsPlugin(cmd), kube != "" || host != "" || IsPlugin(cmd), nil
}

// ErrNowhere is why nothing can be asked: this host has no skep run, and no kubeconfig names a cluster.
var ErrNowhere = errors.New("there is no skep run on this host")

// Cluster reports whether the command asks a cluster: if the caller says so, or if this host has no skep run and there is a
// kubeconfig.
func (f *Flags) Cluster(cmd *cobra.Command) (bool, error) {
	cluster, named, err := f.Explicit(cmd)
	if err != nil || named {
		return cluster, err
	}
	there, err := f.hostHas()
	switch {
	case errors.Is(err, fs.ErrPermission):
		return false, fmt.Errorf("%s: %w", cmd.Name(), Refused(f.State, err))
	case err != nil:
		return false, fmt.Errorf("%s: look for the skep run of this host: %w", cmd.Name(), err)
	case there:
		return false, nil
	case f.Kube.Exists():
		return true, nil
	}
	return false, fmt.Errorf("%s: %w (no file %s), and no kubeconfig names a cluster: start skep run, name its folder by --%s, "+
		"or name a kubeconfig by --kubeconfig", cmd.Name(), ErrNowhere, filepath.Join(f.State, nodemode.SocketName), stateFlag)
}

// hostHas reports whether a skep run of this host runs, or left what it last knew.
func (f *Flags) hostHas() (bool, error) {
	for _, name := range []string{nodemode.SocketName, nodemode.LeftName} {
		_, err := os.Stat(filepath.Join(f.State, name))
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return err == nil, err
		}
	}
	return false, nil
}

// Refused explains that this user may not ask the skep run of this host.
func Refused(state string, err error) error {
	if inner := new(net.OpError); errors.As(err, &inner) {
		err = inner.Err
	}
	return fmt.Errorf("the skep run of this host answers its own user, which is root in general: run the command as that user, or name a cluster by "+
		"--context if the command asks one (%s: %w)", filepath.Join(state, nodemode.SocketName), rootCause(err))
}

// rootCause is the innermost error: paths and calls are said once.
func rootCause(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}

// Say tells which place is asked, on stderr, unless the output is for programs.
func Say(cmd *cobra.Command, output, place string) {
	if display.IsData(output) {
		return
	}
	fmt.Fprintln(cmd.ErrOrStderr(), text.Line(place))
}
