// Command skep-mounter mounts the volumes of pods that read maps, for the agent of the same node.
//
// It holds flags and wiring only; the work is done in package mounter.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/cmd/internal/logging"
	"github.com/skep-dev/skep/cmd/internal/version"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run is main without the process around it.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(os.Stdout, os.Stderr)
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "skep-mounter:", err)
		return 1
	}
	return 0
}

// newRoot puts the command together.
func newRoot(out, err io.Writer) *cobra.Command {
	var o mounter.Options
	var socket, format string
	cmd := &cobra.Command{
		Use:   "skep-mounter --pods FOLDER --socket FILE",
		Short: "Mount the volumes of pods that read maps",
		Long: "Mount and unmount volumes of csi.skep.dev below the kubelet's folder of pods, as the agent asks by the socket. It is\n" +
			"the agent's, and answers root alone. It takes no path, uses no network, and keeps no right but that to mount; with\n" +
			"--pins also that to give files a group. What is mounted stays when skep-mounter stops.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.This().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := mounter.Confine(o.Pins); err != nil {
				return err
			}
			return serve(cmd.Context(), cmd.ErrOrStderr(), o, socket, format)
		},
	}
	cmd.SetOut(out)
	cmd.SetErr(err)
	s := cmd.Flags()
	s.StringVar(&o.Pods, "pods", "/var/lib/kubelet/pods", "the kubelet's folder of pods; what is mounted below it has to be seen on the node")
	s.StringVar(&socket, "socket", "/run/skep-mounter/socket", "socket for the agent; its folder becomes root's alone")
	s.BoolVar(&o.Pins, "pins", false, "have pins of maps in volumes, as the agent has with --volume-pins; without it, pins that are in volumes are removed")
	s.StringVar(&format, "log-format", "text", "format: text, json")
	return cmd
}

// serve is the command without its flags.
func serve(ctx context.Context, to io.Writer, o mounter.Options, socket, format string) error {
	log, err := logging.New(to, format, false)
	if err != nil {
		return err
	}
	logging.Default(log)
	l, err := mounter.Listen(socket)
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	o.Scratch, o.Log = filepath.Join(filepath.Dir(socket), "scratch"), log
	s, err := mounter.New(o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	log.Info("mounts volumes", "pods", o.Pods, "pins", o.Pins)
	return errors.Join(s.Serve(ctx, l), s.Close())
}
