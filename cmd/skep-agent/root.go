package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/agent/kube"
	"github.com/skep-dev/skep/agent/state/pins"
	"github.com/skep-dev/skep/cmd/internal/logging"
	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/listen"
)

// flags are those that are not kube.Options themselves.
type flags struct {
	kubeconfig string
	listen     string
	// secureMetrics is the opposite of kube.Options.InsecureMetrics.
	secureMetrics bool
	logFormat     string
	verbose       bool
	cleanup       bool
	mount         string
	pprof         int
	// programStats has the cost of programs measured.
	programStats bool
	// memory is the container's limit, and maps what is asked for maps of it; nil asks
	// for nothing.
	memory int64
	maps   *resource.Quantity
}

// newRoot puts the command together.
func newRoot(out, err io.Writer) *cobra.Command {
	var (
		o    kube.Options
		f    flags
		maps resource.QuantityValue
	)
	cmd := &cobra.Command{
		Use:   "skep-agent --node-name NODE --trust FILE --mirror URL",
		Short: "Hold this node to the sealed intents of the cluster",
		Long: "Watch the sealed intents, keep what they say loaded, and report it in the node's BpfNode. Programs stay\n" +
			"when skep-agent stops, and are adopted when it starts again. Intents and bytecode are kept on disk, so that\n" +
			"a node comes back by itself with everything else away.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.This().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.mount != "":
				return pins.Mount(f.mount)
			case f.cleanup:
				return kube.Cleanup(o.Node.BPFFS, o.Node.StateDir)
			}
			if cmd.Flags().Changed("map-memory") {
				f.maps = &maps.Quantity
			}
			return hold(cmd.Context(), cmd.ErrOrStderr(), o, f)
		},
	}
	cmd.SetOut(out)
	cmd.SetErr(err)
	addFlags(cmd, &o, &f, &maps)
	return cmd
}

// addFlags adds the flags, which fill in the options.
func addFlags(cmd *cobra.Command, o *kube.Options, f *flags, maps *resource.QuantityValue) {
	s := cmd.Flags()
	s.StringVar(&o.NodeName, "node-name", os.Getenv("NODE_NAME"), "name of this machine's Node; also by the environment variable NODE_NAME")
	s.StringVar(&o.Node.BPFFS, "bpffs", "/sys/fs/bpf/skep", "folder for pins on a BPF file system")
	s.StringVar(&o.Node.StateDir, "state", "/var/lib/skep", "folder for sealed intents and bytecode")
	s.StringVar(&o.Node.CgroupRoot, "cgroup-root", "", "mount of cgroup2 (default: where it is mounted)")
	s.Var(maps, "map-memory", "memory that the maps of all applications may take together, such as 3Gi; 0 sets no bound (default: "+
		"what --memory-limit leaves beside 1Gi for the agent, or half of a small one)")
	s.Int64Var(&f.memory, "memory-limit", 0, "bytes after which the process is ended, maps included; 0 knows of none")
	s.IntVar(&o.Node.NamespaceShare, "namespace-share", agent.DefaultNamespaceShare,
		"percent of an interface's maps, functions and TCX programs, and of the memory for maps, that the applications of one namespace may have together; "+
			"100 sets no bound")
	o.Node.SharedTargets.Flags(s.IntVar)
	s.StringVar(&o.Node.HostRoot, "host-root", "", "folder below which a container has the node's files: binaries of uprobes, network namespaces (default: "+
		"its own root)")
	s.StringVar(&o.RuntimeEndpoint, "container-runtime-endpoint", "",
		"socket of the node's container runtime, such as unix:///run/containerd/containerd.sock, by which the agent finds the pods that definitions choose; "+
			"needs the node's PID namespace and CAP_SYS_PTRACE (default: none, and nothing is attached in pods)")
	s.StringVar(&o.NRISocket, "nri-socket", "", "socket of the container runtime for NRI plug-ins, such as /var/run/nri/nri.sock, by which programs are "+
		"attached in a container before its first instruction; one that is not there is looked for again (default: none, and they are soon after)")
	s.StringVar(&o.Node.Mounter, "mounter", "", "socket of skep-mounter, by which pods get the maps that they were granted in volumes of csi.skep.dev "+
		"(default: none, and no volumes)")
	s.BoolVar(&o.Node.VolumePins, "volume-pins", false, "have pins in volumes, too, for readers that may call bpf(2): while pins change, a reader that is root "+
		"can get the right to write a map that it may read; skep-mounter needs --pins")
	s.BoolVar(&o.BpfmanVolumes, "volume-bpfman", false, "answer pods that were written for bpfman's driver csi.bpfman.io, too, by the same grants; needs "+
		"--mounter and --volume-pins")
	s.StringVar(&o.Kubelet, "kubelet-dir", "/var/lib/kubelet", "the kubelet's folder, at the kubelet's own path; used with --mounter")
	s.StringVar(&o.TrustFile, "trust", "", "file of the public keys whose seals count, in PEM; read again when it changes")
	s.StringVar(&o.Mirror.URL, "mirror", "", "https address of the controller's mirror of bytecode")
	s.StringVar(&o.Mirror.CAFile, "mirror-ca", "", "PEM bundle that the mirror's certificate may be signed by (default: the system's)")
	s.StringVar(&o.Mirror.TokenFile, "mirror-token", "", "file of a service account token of the mirror's audience")
	s.StringVar(&o.Mirror.ServerName, "tls-server-name", "", "name that the mirror's certificate is to bear (default: the host of --mirror)")
	s.BoolVar(&o.MapReads, "map-reads", false, "read maps for users of the cluster whose requests the controller seals; the agent polls the mirror for them, "+
		"and listens on nothing")
	s.BoolVar(&o.View, "view", false, "describe the node for users of the cluster whose requests the controller seals; the agent polls the mirror for "+
		"them, and listens on nothing")
	s.BoolVar(&f.programStats, "program-stats", true, cost.Usage)
	s.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the API server (default: the Pod's service account)")
	s.StringVar(&f.listen, "listen", "", "address for /metrics, /healthz and /readyz, such as :9092 (default: none)")
	s.BoolVar(&f.secureMetrics, "metrics-secure", true, "serve that address over https, and /metrics to those alone whom the API server lets get it, "+
		"by TokenReview and SubjectAccessReview")
	s.IntVar(&f.pprof, "pprof-port", 0, "port for /debug/pprof, on 127.0.0.1 alone; 0 serves none")
	s.BoolVar(&f.cleanup, "cleanup", false, "unload all that is Skep's on this node, forget what would bring it back, and end")
	s.StringVar(&f.mount, "mount-bpffs", "", "folder to mount a BPF file system on where there is none, and end")
	s.StringVar(&f.logFormat, "log-format", "text", "format: text, json")
	s.BoolVarP(&f.verbose, "verbose", "v", false, "log more")
}

// hold is the command without its flags.
func hold(ctx context.Context, to io.Writer, o kube.Options, f flags) error {
	log, err := logging.New(to, f.logFormat, f.verbose)
	if err != nil {
		return err
	}
	logging.Default(log)
	setClientLog(log, f.verbose)
	config, err := config(f.kubeconfig)
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "skep-agent/" + version.This().Version
	o.Node.MapMemory = mapMemory(log, f.maps, f.memory)
	o.Config, o.Log, o.Version, o.InsecureMetrics = config, log, version.This().Version, !f.secureMetrics
	if f.programStats {
		o.Cost = cost.New(cost.Options{Node: o.NodeName, Log: log})
	}
	agent, err := kube.New(o)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serve(ctx, "metrics", f.listen, agent.Serve) })
	group.Go(func() error {
		return serve(ctx, "profiles", loopback(f.pprof), func(ctx context.Context, l net.Listener) error { return listen.Serve(ctx, l, nil, profiles()) })
	})
	group.Go(func() error { agent.ServeSocket(ctx); return nil })
	group.Go(func() error { agent.ServeVolumes(ctx); return nil })
	group.Go(func() error { agent.ServeRequests(ctx); return nil })
	if o.Cost != nil {
		group.Go(func() error { o.Cost.Run(ctx); return nil })
	}
	group.Go(func() error { return agent.Run(ctx) })
	return errors.Join(group.Wait(), agent.Close())
}

// setClientLog has client-go log with --verbose only: package kube logs what matters of it.
func setClientLog(log *slog.Logger, verbose bool) {
	if !verbose {
		log = slog.New(slog.DiscardHandler)
	}
	klog.SetSlogLogger(log)
}

// config finds the API server.
func config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// serve has an address answered until the context ends; none where it is empty.
func serve(ctx context.Context, what, address string, answer func(context.Context, net.Listener) error) error {
	if address == "" {
		return nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen for %s: %w", what, err)
	}
	return answer(ctx, l)
}

// loopback is the address of a port that nobody outside the node reaches.
func loopback(port int) string {
	if port == 0 {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// profiles are Go's own.
func profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}
