// Command skep-controller is cluster mode's half without a kernel: it admits
// applications, evaluates them, and seals what agents load.
//
// It holds flags and wiring only; the work is done in package controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/cmd/internal/logging"
	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/controller/leader"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
)

func main() {
	policies.MaybeWorkerChild()
	schemas.MaybeRenderChild()
	os.Exit(execute())
}

// execute is main without the process around it; it returns the exit code.
func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "skep-controller:", err)
		return 1
	}
	return 0
}

// flags are those that are not controller.Options themselves.
type flags struct {
	kubeconfig string
	cacheSize  string
	// artifactSize is the room for artifacts, as a quantity.
	artifactSize string
	agents       string
	selector     string
	format       string
	verbose      bool
	memory       int64
	// secureMetrics is the opposite of controller.Options.InsecureMetrics.
	secureMetrics bool
}

func newCommand() *cobra.Command {
	var (
		o controller.Options
		f flags
	)
	cmd := &cobra.Command{
		Use:           "skep-controller",
		Short:         "Evaluate the eBPF applications of a cluster and seal what its agents load",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.This().String(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			boundMemory(f.memory, policies.EngineOptions{}.WorkerBytes()+o.Cue.MemoryBytes())
			return run(cmd.Context(), o, f)
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig (default: the pod's service account)")
	set.StringVar(&o.Namespace, "namespace", os.Getenv("POD_NAMESPACE"), "Skep's own namespace (default: $POD_NAMESPACE)")
	set.StringVar(&o.Cache, "cache", "/var/cache/skep", "folder for bytecode")
	set.StringVar(&f.cacheSize, "cache-size", "1Gi", "room in that folder")
	set.StringSliceVar(&o.InsecureRegistries, "insecure-registry", nil, "registry host:port to reach over plain http; loopback needs no mention")
	set.StringSliceVar(&o.AllowedRegistries, "allowed-registry", nil,
		"registry that applications may name: host[:port][/prefix], *.example.com, or * for every one at a public address; "+
			"one that is listed by name may be at any address (default: *)")
	leaderFlags(set, &o)
	set.StringVar(&o.MetricsAddress, "metrics-address", ":8080", "address for /metrics; empty serves none")
	set.BoolVar(&f.secureMetrics, "metrics-secure", true, "serve /metrics over https to those alone whom the API server lets get it, "+
		"by TokenReview and SubjectAccessReview; false serves it over http to every client")
	set.StringVar(&o.HealthAddress, "health-address", ":8081", "address for /healthz and /readyz; empty serves none")
	set.IntVar(&o.Admission.Port, "webhook-port", 0, "port for admission requests of the API server; 0 serves none")
	set.StringVar(&o.Admission.CertDir, "webhook-certificate", "",
		"folder of tls.crt, tls.key and ca.crt that somebody else renews, and path, which ends where the webhook is called (default: those of Skep's own)")
	set.StringSliceVar(&o.Admission.Names, "certificate-name", nil,
		"name or address that Skep's own certificate is to bear (default: those of the chart's Services)")
	set.DurationVar(&o.Admission.Budget, "admission-budget", admission.DefaultBudget, "how long one request may take to learn of an image nothing is known of")
	set.StringVar(&o.Mirror.Address, "mirror-address", "", "address at which agents fetch bytecode, such as :9444, with the webhook's certificate; "+
		"empty serves none")
	set.StringVar(&o.Mirror.TokenFile, "mirror-token", "", "file of a token of audience skep-mirror, by which replicas ask each other for bytecode (default: "+
		"they do not)")
	set.StringVar(&o.Aggregated.Address, "api-address", "", "address at which kube-apiserver finds the APIs of --view and --map-reads, such as :9445, with "+
		"the webhook's certificate; empty serves none")
	set.BoolVar(&o.Aggregated.View, "view", false, "serve view.skep.dev, by which people with the right see what runs on nodes")
	set.BoolVar(&o.Aggregated.MapReads, "map-reads", false, "serve maps.skep.dev, by which people with the right read maps on nodes")
	set.StringVar(&f.agents, "agent-selector", "", "labels of the agents' Pods in --namespace, which report whether a node is reachable (default: "+
		"an agent is taken to run on every node)")
	set.DurationVar(&o.Interval, "interval", 10*time.Minute, "how often an application that is well is evaluated again")
	cueFlags(set, &o, &f)
	set.IntVar(&o.PprofPort, "pprof-port", 0, "port for /debug/pprof, on 127.0.0.1 alone; 0 serves none")
	set.Int64Var(&f.memory, "memory-limit", 0, "bytes after which the process is ended: "+
		"Go is to leave what evaluates policies the memory that may take of them, unless GOMEMLIMIT says otherwise; 0 knows of none")
	set.StringVar(&f.format, "log-format", "json", "text or json")
	set.BoolVarP(&f.verbose, "verbose", "v", false, "log more")
	cmd.AddCommand(newUnload())
	return cmd
}

// leaderFlags are those of the election, which have kube-controller-manager's names,
// meanings and defaults.
func leaderFlags(set *pflag.FlagSet, o *controller.Options) {
	usual := leader.Timing{}.OrDefault()
	set.BoolVar(&o.LeaderElection, "leader-elect", true, "let one of several replicas write")
	set.DurationVar(&o.Leader.LeaseDuration, "leader-elect-lease-duration", usual.LeaseDuration,
		"how long other replicas wait after the leader last renewed its lease before one takes it; longer than --leader-elect-renew-deadline, in whole seconds")
	set.DurationVar(&o.Leader.RenewDeadline, "leader-elect-renew-deadline", usual.RenewDeadline,
		"how long the leader tries to renew its lease before it stops writing; longer than 1.2 times --leader-elect-retry-period")
	set.DurationVar(&o.Leader.RetryPeriod, "leader-elect-retry-period", usual.RetryPeriod, "how often a replica tries to take or renew the lease")
}

// cueFlags are those of CueArtifacts, which have Flux's names where Flux has one.
func cueFlags(set *pflag.FlagSet, o *controller.Options, f *flags) {
	store := &o.Cue.Store
	set.StringVar(&store.Address, "artifact-address", "", "address at which artifacts are served to Flux, such as :9790; empty leaves CueArtifacts alone")
	set.StringVar(&store.Advertised, "artifact-advertised-address", "",
		"host[:port] that URLs of artifacts have; an IP address alone has the port of --artifact-address (default: --artifact-address, "+
			"on localhost where that names no host)")
	set.StringVar(&store.Dir, "artifact-storage", "/var/lib/skep/artifacts", "folder for artifacts")
	set.StringVar(&f.artifactSize, "artifact-storage-size", "1Gi", "room in that folder, of which 306Mi for each of --cue-concurrent are for what is unpacked")
	set.IntVar(&store.RetentionRecords, "artifact-retention-records", 2, "how many artifacts of a CueArtifact are kept")
	set.DurationVar(&store.RetentionTTL, "artifact-retention-ttl", time.Minute, "how long an artifact is kept that a newer one replaced")
	set.IntVar(&o.Cue.Concurrent, "cue-concurrent", 2, "how many CueArtifacts are rendered at once; one namespace has all but one of these places")
	set.BoolVar(&o.Cue.NoCrossNamespaceRefs, "no-cross-namespace-refs", false, "deny CueArtifacts sources of other namespaces")
	set.StringVar(&f.selector, "watch-label-selector", "", "labels of the CueArtifacts that are looked at (default: all)")
}

// boundMemory has Go collect what it can before the kernel ends the process, which
// counts more than Go does: children, which evaluate policies and render CUE, and a tenth for what
// the kernel itself takes and the binary. Under a limit that is small beside those
// processes, Go has three tenths of it.
func boundMemory(limit, children int64) {
	if limit > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(max(limit-children, limit/3) / 10 * 9)
	}
}

func run(ctx context.Context, o controller.Options, f flags) error {
	if o.Namespace == "" {
		return errors.New("name Skep's own namespace with --namespace")
	}
	if o.Mirror.Address != "" && !o.Admission.Enabled() {
		return errors.New("--mirror-address shows the webhook's certificate: name a --webhook-port as well")
	}
	if err := o.Aggregated.Check(); err != nil {
		return err
	}
	if o.Aggregated.Address != "" && o.Mirror.Address == "" {
		return errors.New("agents ask for requests of users at the mirror: name a --mirror-address as well as --api-address")
	}
	if o.LeaderElection {
		if err := o.Leader.Check(); err != nil {
			return fmt.Errorf("read --leader-elect flags: %w", err)
		}
	}
	var err error
	if o.CacheSize, err = bytesOf("--cache-size", f.cacheSize); err != nil {
		return err
	}
	if o.Cue.Store.MaxBytes, err = bytesOf("--artifact-storage-size", f.artifactSize); err != nil {
		return err
	}
	o.InsecureMetrics = !f.secureMetrics
	if f.agents != "" {
		selector, err := labels.Parse(f.agents)
		if err != nil {
			return fmt.Errorf("read --agent-selector: %w", err)
		}
		o.Agents.Selector = selector
	}
	if f.selector != "" {
		if o.WatchLabelSelector, err = labels.Parse(f.selector); err != nil {
			return fmt.Errorf("read --watch-label-selector: %w", err)
		}
	}
	log, err := logging.New(os.Stderr, f.format, f.verbose)
	if err != nil {
		return err
	}
	logging.Default(log)
	klog.SetSlogLogger(log)
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	if o.Config, err = config(f.kubeconfig); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	mgr, err := controller.New(ctx, o)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// bytesOf reads the quantity that a flag has, in bytes.
func bytesOf(flag, value string) (int64, error) {
	size, err := resource.ParseQuantity(value)
	if err != nil || size.Sign() <= 0 {
		return 0, fmt.Errorf("read %s %q: write it as 512Mi or 1Gi", flag, value)
	}
	return size.Value(), nil
}

// config is that of a file, or of the pod.
func config(file string) (*rest.Config, error) {
	if file == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", file)
}
