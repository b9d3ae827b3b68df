package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/demo/story"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/signing/sign"
)

// The two ends of the wire: packets leave at sender and reach receiver, where
// the programs are.
const (
	receiver = "demo0"
	sender   = "demo1"
)

// show is a stage with everything on it.
type show struct {
	story.Narrator
	dir      string
	registry string
	client   *registry.Client
	key      *sign.PrivateKey
	repo     *repository
	host     *nodemode.Host
	wire     *wire
	// tcx tells that the kernel has TCX (6.6).
	tcx   bool
	acted int
	sent  uint64
	stop  []func() error
}

// actsBeforeRevert is how many acts --keep plays.
const actsBeforeRevert = 4

// patience is how long anything the story waits for may take.
const patience = 20 * time.Second

func open(ctx context.Context, o Options, dir string) (s *show, err error) {
	s = &show{Narrator: story.Narrator{Out: o.Out, Colour: o.Colour}, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	bpffs, err := mountBPF(dir)
	if err != nil {
		return s, err
	}
	s.stop = append(s.stop, func() error { return unix.Unmount(bpffs, unix.MNT_DETACH) })
	if s.tcx, err = hasTCX(); err != nil {
		return s, err
	}
	if s.wire, err = openWire(); err != nil {
		return s, err
	}
	s.stop = append(s.stop, s.wire.close)
	if err := s.openRegistry(ctx); err != nil {
		return s, err
	}
	signers, err := s.openKey()
	if err != nil {
		return s, err
	}
	if s.repo, err = initRepository(filepath.Join(dir, "definitions")); err != nil {
		return s, err
	}
	return s, s.openHost(ctx, filepath.Join(bpffs, "skep"), signers)
}

// mountBPF gives this mount namespace a bpffs of its own, which goes when the
// namespace goes. In a chroot, / is no mount that could be made private, so it may be seen
// outside until it is unmounted.
func mountBPF(dir string) (string, error) {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil && !errors.Is(err, unix.EINVAL) {
		return "", fmt.Errorf("make mounts private: %w", err)
	}
	path := filepath.Join(dir, "bpf")
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount("bpf", path, "bpf", 0, ""); err != nil {
		return "", fmt.Errorf("mount bpffs: %w", err)
	}
	return path, nil
}

// hasTCX reads the kernel's version: the demo leaves TCX out before 6.6.
func hasTCX() (bool, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false, fmt.Errorf("read kernel version: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false, fmt.Errorf("read kernel version: %w", err)
	}
	return major > 6 || major == 6 && minor >= 6, nil
}

// openRegistry starts a real OCI registry in this process.
func (s *show) openRegistry(ctx context.Context) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:5000")
	if err != nil {
		return fmt.Errorf("start registry: %w", err)
	}
	server := &http.Server{
		Handler:           containerregistry.New(containerregistry.WithReferrersSupport(true), containerregistry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: patience,
	}
	go func() { _ = server.Serve(l) }()
	s.stop = append(s.stop, server.Close)
	s.registry = l.Addr().String()
	s.client, err = registry.NewClient(registry.Options{})
	return err
}

// openKey makes a key pair and the signer file that trusts it.
func (s *show) openKey() (string, error) {
	private, public, err := sign.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	if s.key, err = sign.ParsePrivateKey(private, nil); err != nil {
		return "", err
	}
	signer := v1alpha1.BpfSigner{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfSigner}}
	signer.Name = "net-team"
	signer.Spec.Key = &v1alpha1.KeySigner{PublicKey: string(public)}
	doc, err := yaml.Marshal(signer)
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.dir, "signers.yaml")
	return file, os.WriteFile(file, doc, 0o600)
}

// openHost starts node mode on the repository.
func (s *show) openHost(ctx context.Context, bpffs, signers string) error {
	h, err := nodemode.New(ctx, nodemode.Options{
		Source:   "file://" + s.repo.dir,
		Signers:  []string{signers},
		State:    filepath.Join(s.dir, "state"),
		BPFFS:    bpffs,
		Interval: time.Second,
		// It is at loopback, where no definition may send a process of root unasked.
		AllowedRegistries: []string{s.registry},
	})
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(run, nil) }()
	s.host = h
	s.stop = append(s.stop, h.Close, func() error { cancel(); return <-ended })
	return nil
}

// close takes the stage down in reverse.
func (s *show) close() error {
	var errs []error
	for i := len(s.stop) - 1; i >= 0; i-- {
		errs = append(errs, s.stop[i]())
	}
	s.stop = nil
	return errors.Join(errs...)
}

// until waits for the host's status to satisfy a condition.
func (s *show) until(ctx context.Context, what string, done func(nodemode.Status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		status := s.host.Status()
		if done(status) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w; %s", what, ctx.Err(), explain(status))
		case <-tick.C:
		}
	}
}

// explain says of a status what a person needs when waiting was in vain.
func explain(s nodemode.Status) string {
	words := []string{s.Source.Error, s.Settings.Error}
	for _, p := range s.Problems {
		words = append(words, p.Error())
	}
	for _, a := range s.Applications {
		c := a.Condition(v1alpha1.ConditionReady)
		words = append(words, fmt.Sprintf("%s: %s %s", a.Name, c.Status, c.Message))
	}
	return strings.Join(words, "; ")
}

// ready reports whether an application runs what the definitions say of it.
func ready(s nodemode.Status, name string) bool {
	a := find(s, name)
	return a.Condition(v1alpha1.ConditionReady).Status == metav1.ConditionTrue
}

// find returns the application of that name, or an empty one.
func find(s nodemode.Status, name string) nodemode.Application {
	for _, a := range s.Applications {
		if a.Name == name {
			return a
		}
	}
	return nodemode.Application{}
}
