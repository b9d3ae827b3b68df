package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/cost"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/internal/logging"
	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/host"
	"github.com/skep-dev/skep/cmd/skep/internal/where"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/nodemode/source"
)

// runFlags are those of skep run that are not nodemode.Options themselves.
type runFlags struct {
	once    bool
	listen  string
	output  string
	verbose bool
	// logFormat is text or json.
	logFormat string
	// programStats has the cost of programs measured.
	programStats bool
	maps         resource.QuantityValue
}

func newRun() *cobra.Command {
	var (
		o nodemode.Options
		f runFlags
	)
	cmd := &cobra.Command{
		Use:   "run --source URL-or-DIR --policy DIR... --signers FILE...",
		Short: "Run node mode: keep this host's eBPF programs as a git repository or a folder defines them",
		Long: "Fetch definitions, evaluate them, and keep what is allowed loaded. Programs stay when skep stops,\n" +
			"and are adopted when it starts again. skep status says what is denied, and why.\n\n" +
			"With --once: pass once, wait until everything is loaded or has failed, print the status and stop;\n" +
			"exit code 0: all is loaded; 1: something is denied or failed; 2: the source or the settings\n" +
			"cannot be read.",
		Example: "  skep run --source https://git.example.com/team/bpf.git --policy /etc/skep/policies --signers /etc/skep/signers.yaml\n" +
			"  skep run --source ./definitions --signers ./signers.yaml --once",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := logging.New(cmd.ErrOrStderr(), f.logFormat, f.verbose)
			if err != nil {
				return err
			}
			logging.Default(log)
			o.Log, o.MapMemory, o.Version = log, f.maps.Value(), version.This().String()
			if f.programStats {
				node, _ := os.Hostname()
				o.Cost = cost.New(cost.Options{Node: node, Log: log})
			}
			logStart(o)
			h, err := nodemode.New(cmd.Context(), o)
			if err != nil {
				return err
			}
			return errors.Join(runHost(cmd, h, f, o.State), h.Close())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Source, "source", "", "git URL (https, ssh, file) or folder")
	flags.StringVar(&o.Ref, "ref", "", "branch, tag or commit (default: the repository's HEAD)")
	flags.StringVar(&o.Path, "path", "", "folder of the definitions within the source")
	settingsFlags(cmd, &o.Policies, &o.Replaces, &o.Signers)
	flags.StringVar(&o.State, "state", where.DefaultState, "folder for keys, caches and the socket")
	flags.StringVar(&o.BPFFS, "bpffs", "", "folder for pins on a BPF file system (default /sys/fs/bpf/skep)")
	flags.StringVar(&o.MapsDir, "maps-dir", host.DefaultMapsDir, "folder in which members of the groups that definitions grant maps to find them; "+
		"empty makes none")
	runtimeFlags(cmd, &o)
	flags.DurationVar(&o.Interval, "interval", 30*time.Second, "how often to fetch and evaluate again")
	boundFlags(cmd, &o, &f)
	flags.StringToStringVar(&o.Labels, "label", nil, "label of this node, for node selectors: key=value")
	flags.StringSliceVar(&o.InsecureRegistries, "insecure-registry", nil, "registry host:port to reach over plain http; loopback needs no mention")
	flags.StringSliceVar(&o.AllowedRegistries, "allowed-registry", nil,
		"registry that definitions may name: host[:port][/prefix], *.example.com, or * for every one at a public address; "+
			"one that is listed by name may be at any address (default: *)")
	flags.BoolVar(&f.once, "once", false, "pass once and stop")
	flags.BoolVar(&o.DryRun, "dry-run", false, "evaluate, load nothing, print the status and stop")
	flags.StringVar(&f.listen, "listen", "", "address for /metrics and /healthz, such as 127.0.0.1:9091 (default: none)")
	gitFlags(cmd, &o)
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log more")
	flags.StringVar(&f.logFormat, "log-format", "text", "format: text, json")
	_ = cmd.MarkFlagRequired("source")
	display.OutputFlag(cmd, &f.output, "text", "json")
	return cmd
}

// runtimeFlags say where the container runtime is.
func runtimeFlags(cmd *cobra.Command, o *nodemode.Options) {
	flags := cmd.Flags()
	flags.StringVar(&o.RuntimeEndpoint, "container-runtime-endpoint", "",
		"socket of this host's container runtime, such as unix:///run/containerd/containerd.sock, whose pods definitions choose (default: none; "+
			"units of systemd and cgroups are in the place of pods)")
	flags.StringVar(&o.NRISocket, "nri-socket", "", "socket of the container runtime for NRI plug-ins, such as /var/run/nri/nri.sock, by which programs are "+
		"attached in a container before its first instruction; one that is not there is looked for again (default: none, and they are soon after)")
}

// boundFlags are the flags of what applications may take of the host.
func boundFlags(cmd *cobra.Command, o *nodemode.Options, f *runFlags) {
	flags := cmd.Flags()
	flags.IntVar(&o.NamespaceShare, "namespace-share", nodemode.DefaultNamespaceShare,
		"percent of an interface's maps, functions and TCX programs, and of the memory for maps, that the applications of one namespace may have together; "+
			"100 sets no bound")
	o.SharedTargets.Flags(flags.IntVar)
	flags.BoolVar(&f.programStats, "program-stats", true, cost.Usage)
	flags.Var(&f.maps, "map-memory", "memory that the maps of all applications may take together, such as 3Gi; 0 sets no bound")
}

// gitFlags are the flags of how to reach a git repository.
func gitFlags(cmd *cobra.Command, o *nodemode.Options) {
	flags := cmd.Flags()
	flags.StringVar(&o.Auth.Username, "git-username", "", "user name for https")
	flags.StringVar(&o.Auth.PasswordFile, "git-password-file", "", "file with the password or token for https")
	flags.StringVar(&o.Auth.IdentityFile, "git-identity", "", "ssh private key (default: the ssh agent)")
	flags.StringVar(&o.Auth.KnownHostsFile, "git-known-hosts", "", "ssh known hosts (default: the user's)")
	flags.StringVar(&o.Auth.CAFile, "git-ca", "", "PEM bundle the git server's certificate may be signed by")
}

// logStart says in one line what is about to run, before anything can fail.
func logStart(o nodemode.Options) {
	o.Log.Info("skep run", "version", o.Version, "source", source.Options{Address: o.Source}.Shown(), "ref", cmp.Or(o.Ref, "-"), "path", cmp.Or(o.Path, "-"),
		"policies", display.List(o.ActivePolicies()), "signers", cmp.Or(display.List(o.Signers), "none"), "state", o.State, "dryRun", o.DryRun)
}

func runHost(cmd *cobra.Command, h *nodemode.Host, f runFlags, state string) error {
	if !f.once && !h.DryRun() {
		listener, err := listen(cmd.Context(), f.listen)
		if err != nil {
			return err
		}
		if err := h.Run(cmd.Context(), listener); err != nil {
			return err
		}
		return leaves(h.Status())
	}
	s, err := h.Once(cmd.Context())
	if err != nil && cmd.Context().Err() != nil {
		if h.DryRun() {
			return err
		}
		return leaves(s)
	}
	if err := host.PrintStatus(cmd.OutOrStdout(), f.output, host.ConfirmLater(state), s); err != nil {
		return err
	}
	return onceError(s, h.DryRun())
}

// leaves says how many programs stay loaded when skep run ends.
func leaves(s nodemode.Status) error {
	programs, applications := 0, 0
	for _, a := range s.Applications {
		loaded := 0
		for _, p := range a.Programs {
			if p.ID != 0 {
				loaded++
			}
		}
		if programs += loaded; loaded > 0 {
			applications++
		}
	}
	if programs == 0 {
		return &exit.Stopped{Leaves: "no program is loaded"}
	}
	return &exit.Stopped{Leaves: fmt.Sprintf("%s of %s stay loaded and attached", display.Count(programs, "program"), display.Count(applications, "application"))}
}

// onceError is the status as an exit code.
func onceError(s nodemode.Status, dry bool) error {
	for _, text := range []string{s.Source.Error, s.Settings.Error} {
		if text != "" {
			return errors.New(text)
		}
	}
	for _, p := range s.Problems {
		return p
	}
	wanted := v1alpha1.ConditionReady
	if dry {
		wanted = v1alpha1.ConditionAllowed
	}
	for _, a := range s.Applications {
		if never := a.Suspended && a.Agent == nil; !never && a.Condition(wanted).Status != metav1.ConditionTrue {
			return exit.ErrDenied
		}
	}
	return nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}
