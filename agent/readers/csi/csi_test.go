package csi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/skep-dev/skep/agent/readers/csi"
	"github.com/skep-dev/skep/agent/readers/mounter"
	"github.com/skep-dev/skep/agent/readers/volumes"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/skepmap"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const uid = "3f8b7c52-1f0e-4f5c-9d2e-0a1b2c3d4e5f"

// fake notes what it is asked for, and answers with an error.
type fake struct {
	mounted   []volumes.Request
	unmounted []mounter.Volume
	err       error
}

func (f *fake) Mount(_ context.Context, r volumes.Request) error {
	f.mounted = append(f.mounted, r)
	return f.err
}

func (f *fake) Unmount(_ context.Context, at mounter.Volume) error {
	f.unmounted = append(f.unmounted, at)
	return f.err
}

// request is one that the kubelet makes, changed.
func request(change func(r *spec.NodePublishVolumeRequest, mount *spec.VolumeCapability_MountVolume)) *spec.NodePublishVolumeRequest {
	mount := &spec.VolumeCapability_MountVolume{VolumeMountGroup: "65532"}
	r := &spec.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/maps/mount",
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: mount}},
		VolumeContext: map[string]string{
			"csi.storage.k8s.io/pod.name": "reader-0", "csi.storage.k8s.io/pod.namespace": "web", "csi.storage.k8s.io/pod.uid": uid,
			"csi.storage.k8s.io/serviceAccount.name": "reader", "csi.storage.k8s.io/ephemeral": "true", "application": "dns",
		},
	}
	change(r, mount)
	return r
}

// with changes attributes; one without a value is taken away.
func with(pairs ...string) func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume) {
	return func(r *spec.NodePublishVolumeRequest, _ *spec.VolumeCapability_MountVolume) {
		for i := 0; i < len(pairs); i += 2 {
			r.VolumeContext[pairs[i]] = pairs[i+1]
		}
		maps.DeleteFunc(r.VolumeContext, func(_, value string) bool { return value == "" })
	}
}

func TestWhatTheKubeletAsksFor(t *testing.T) {
	claim := volumes.Claim{Namespace: "web", Pod: "reader-0", ServiceAccount: "reader"}
	at := mounter.Volume{Pod: uid, Name: "maps"}
	own, cluster := claim, claim
	own.Application = v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: "web", Name: "dns"}
	cluster.Application = v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "dns"}
	static := mounter.Volume{Pod: strings.ReplaceAll(uid, "-", ""), Name: "maps"}
	for sentence, c := range map[string]struct {
		change func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume)
		want   volumes.Request
	}{
		"an application of the pod's namespace": {with(), volumes.Request{At: at, Claim: own, Group: 65532}},
		"one of the cluster":                    {with("application", "", "clusterApplication", "dns"), volumes.Request{At: at, Claim: cluster, Group: 65532}},
		"a static pod": {func(r *spec.NodePublishVolumeRequest, _ *spec.VolumeCapability_MountVolume) {
			r.TargetPath = strings.Replace(r.TargetPath, uid, static.Pod, 1)
			r.VolumeContext["csi.storage.k8s.io/pod.uid"] = static.Pod
		}, volumes.Request{At: static, Claim: own, Group: 65532}},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := &fake{}
			p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: "/var/lib/kubelet", Volumes: f, Log: slog.New(slog.DiscardHandler)})
			if _, err := p.NodePublishVolume(t.Context(), request(c.change)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]volumes.Request{c.want}, f.mounted); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestWhatAPodMayNotAskFor has attributes that the pod's author wrote, and target paths that no kubelet makes.
func TestWhatAPodMayNotAskFor(t *testing.T) {
	path := func(target string) func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume) {
		return func(r *spec.NodePublishVolumeRequest, _ *spec.VolumeCapability_MountVolume) { r.TargetPath = target }
	}
	group := func(group string) func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume) {
		return func(_ *spec.NodePublishVolumeRequest, m *spec.VolumeCapability_MountVolume) {
			m.VolumeMountGroup = group
		}
	}
	const pods = "/var/lib/kubelet/pods/"
	for sentence, c := range map[string]struct {
		change func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume)
		want   string
	}{
		"no application":                      {with("application", ""), "names no application"},
		"two applications":                    {with("clusterApplication", "dns"), "has both"},
		"a name without an end":               {with("application", strings.Repeat("a", 254)), "at most 253"},
		"an attribute that is none":           {with("applications", "dns"), `has "applications"`},
		"an attribute that is the kubelet's":  {with("csi.storage.k8s.io/serviceAccount.tokens", "{}"), `has "csi.storage.k8s.io/serviceAccount.tokens"`},
		"one that looks like the kubelet's":   {with("csi.storage.k8s.io/pod.Namespace", "kube-system"), `has "csi.storage.k8s.io/pod.Namespace"`},
		"no word of the kubelet's on the pod": {with("csi.storage.k8s.io/pod.uid", ""), "podInfoOnMount"},
		"the author's word on the pod":        {with("csi.storage.k8s.io/pod.uid", "00000000-1f0e-4f5c-9d2e-0a1b2c3d4e5f"), "podInfoOnMount"},
		"no namespace":                        {with("csi.storage.k8s.io/pod.namespace", ""), "podInfoOnMount"},
		"a persistent volume":                 {with("csi.storage.k8s.io/ephemeral", "false"), "without a PersistentVolume"},
		"no group":                            {group(""), "spec.securityContext.fsGroup"},
		"a group that is none":                {group("-1"), "no number of a group"},
		"the group that chown(2) leaves":      {group("4294967295"), "no number of a group"},
		"a block device": {func(r *spec.NodePublishVolumeRequest, _ *spec.VolumeCapability_MountVolume) {
			r.VolumeCapability = &spec.VolumeCapability{}
		}, "volumeDevices"},
		"no target":                            {path(""), "target_path"},
		"the node's root":                      {path("/"), "target_path"},
		"a target elsewhere":                   {path("/etc/" + uid + "/volumes/kubernetes.io~csi/maps/mount"), "target_path"},
		"another kubelet's folder":             {path("/var/lib/k0s/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/maps/mount"), "csi.kubeletDir"},
		"a way up":                             {path(pods + uid + "/../" + uid + "/volumes/kubernetes.io~csi/maps/mount"), "target_path"},
		"a pod that is a way up":               {path(pods + "../volumes/kubernetes.io~csi/maps/mount"), "is not the UID"},
		"another pod's target":                 {path(pods + "00000000-1f0e-4f5c-9d2e-0a1b2c3d4e5f/volumes/kubernetes.io~csi/maps/mount"), "podInfoOnMount"},
		"another driver's folder":              {path(pods + uid + "/volumes/kubernetes.io~empty-dir/maps/mount"), "target_path"},
		"a folder that is no target":           {path(pods + uid + "/volumes/kubernetes.io~csi/maps/mount/below"), "target_path"},
		"a volume whose name is none":          {path(pods + uid + "/volumes/kubernetes.io~csi/a b/mount"), "is not the name of a volume"},
		"a path that is not the shortest form": {path(pods + "/" + uid + "/volumes/kubernetes.io~csi/maps/mount"), "target_path"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := &fake{}
			p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: "/var/lib/kubelet", Volumes: f, Log: slog.New(slog.DiscardHandler)})
			in := request(c.change)
			_, err := p.NodePublishVolume(t.Context(), in)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
			if len(f.mounted) > 0 {
				t.Errorf("%v was mounted", f.mounted)
			}
			if strings.Contains(c.want, "target_path") || strings.Contains(c.want, "is not the") {
				_, err := p.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "csi-1", TargetPath: in.TargetPath})
				if status.Code(err) != codes.InvalidArgument {
					t.Errorf("unmounting says %v", err)
				}
			}
		})
	}
}

// bpfman is a pod that was written for bpfman, which names maps, changed.
func bpfman(list string, change func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume),
) func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume) {
	return func(r *spec.NodePublishVolumeRequest, m *spec.VolumeCapability_MountVolume) {
		with("application", "", "csi.bpfman.io/program", "go-xdp-counter-example", "csi.bpfman.io/maps", list)(r, m)
		change(r, m)
	}
}

// TestPodsThatWereWrittenForBpfman has their attributes, as those of bpfman's examples have them.
func TestPodsThatWereWrittenForBpfman(t *testing.T) {
	long := strings.Repeat("a", 128)
	for sentence, c := range map[string]struct {
		driver     csi.Driver
		change     func(*spec.NodePublishVolumeRequest, *spec.VolumeCapability_MountVolume)
		maps, want string
	}{
		"a map":                              {csi.Bpfman, bpfman("xdp_stats_map", with()), "xdp_stats_map", ""},
		"maps in any order, and with spaces": {csi.Bpfman, bpfman(" b, a ,b,,", with()), "a,b", ""},
		"no maps":                            {csi.Bpfman, bpfman("", with()), "", "names no map"},
		"no name of a map":                   {csi.Bpfman, bpfman(" , ", with()), "", "names no map"},
		"a way up":                           {csi.Bpfman, bpfman("a,../b", with()), "", `"../b" is no name of a map`},
		"a file of the volume":               {csi.Bpfman, bpfman("maps.json", with()), "", "rename the map"},
		"names without an end":               {csi.Bpfman, bpfman(strings.Repeat(long+",", 17), with()), "", "at most 2048"},
		"no program":                         {csi.Bpfman, bpfman("a", with("csi.bpfman.io/program", "")), "", "names no application"},
		"a program without an end":           {csi.Bpfman, bpfman("a", with("csi.bpfman.io/program", strings.Repeat("a", 254))), "", "at most 253"},
		"an attribute of the other driver":   {csi.Bpfman, bpfman("a", with("application", "dns")), "", `has "application"`},
		"an attribute that is none":          {csi.Bpfman, bpfman("a", with("csi.bpfman.io/map", "b")), "", `has "csi.bpfman.io/map"`},
		"an attribute that is the kubelet's": {csi.Bpfman, bpfman("a", with("csi.storage.k8s.io/serviceAccount.tokens", "{}")), "", "serviceAccount.tokens"},
		"no word of the kubelet's":           {csi.Bpfman, bpfman("a", with("csi.storage.k8s.io/pod.uid", "")), "", "CSIDriver csi.bpfman.io needs podInfoOnMount"},
		"no group": {csi.Bpfman, bpfman("a", func(_ *spec.NodePublishVolumeRequest, m *spec.VolumeCapability_MountVolume) {
			m.VolumeMountGroup = ""
		}), "", "spec.securityContext.fsGroup"},
		"at the driver that is not bpfman's": {csi.Skep, bpfman("a", with()), "", `has "csi.bpfman.io/maps"`},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := &fake{}
			p := csi.New(csi.Options{Driver: c.driver, Kubelet: "/var/lib/kubelet", Volumes: f, Log: slog.New(slog.DiscardHandler)})
			_, err := p.NodePublishVolume(t.Context(), request(c.change))
			if c.want != "" {
				if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) || len(f.mounted) > 0 {
					t.Errorf("it says %v, want %q, and %v was mounted", err, c.want, f.mounted)
				}
				return
			}
			want := []volumes.Request{{At: mounter.Volume{Pod: uid, Name: "maps"}, Group: 65532, Claim: volumes.Claim{Namespace: "web", Pod: "reader-0",
				ServiceAccount: "reader", Application: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "go-xdp-counter-example"}, Maps: c.maps}}}
			if diff := cmp.Diff(want, f.mounted); err != nil || diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

// registrar is bpfman's, which the kubelet knows already.
type registrar struct {
	registration.UnimplementedRegistrationServer
}

func (registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: "CSIPlugin", Name: "csi.bpfman.io", Endpoint: "/var/lib/kubelet/plugins/csi-bpfman/csi.sock"}, nil
}

// TestBpfmanKeepsItsName has bpfman installed on the node.
func TestBpfmanKeepsItsName(t *testing.T) {
	need.Root(t)
	kubelet := t.TempDir()
	socket := filepath.Join(kubelet, "plugins_registry", "csi.bpfman.io-reg.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, registrar{})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	p := csi.New(csi.Options{Driver: csi.Bpfman, Kubelet: kubelet, Node: "node1", Version: "v1", Volumes: &fake{}, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const want = "another plug-in, at /var/lib/kubelet/plugins/csi-bpfman/csi.sock, answers to csi.bpfman.io"
	if err := p.Serve(ctx); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("it says %v", err)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("bpfman has no socket any more: %v", err)
	}
	s.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWhatTheKubeletIsAnswered has codes by which it asks again, or unmounts what may be there.
func TestWhatTheKubeletIsAnswered(t *testing.T) {
	for want, err := range map[codes.Code]error{
		codes.OK: nil, codes.PermissionDenied: fmt.Errorf("%w: pod", volumes.ErrNotGranted), codes.FailedPrecondition: fmt.Errorf("%w: pod", volumes.ErrNotThere),
		codes.ResourceExhausted: fmt.Errorf("%w: pod", volumes.ErrTooMany),
		codes.Unavailable:       errors.New("the mounter is away"),
	} {
		p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: "/var/lib/kubelet", Volumes: &fake{err: err}, Log: slog.New(slog.DiscardHandler)})
		if _, got := p.NodePublishVolume(t.Context(), request(with())); status.Code(got) != want || want != codes.OK && !strings.Contains(got.Error(), err.Error()) {
			t.Errorf("%v is answered as %v", err, got)
		}
	}
}

// TestTheKubeletFindsThePlugin speaks to the sockets as the kubelet does, and starts twice in one place.
func TestTheKubeletFindsThePlugin(t *testing.T) {
	need.Root(t)
	kubelet, f := t.TempDir(), &fake{}
	for _, driver := range []csi.Driver{csi.Skep, csi.Bpfman, csi.Skep, csi.Bpfman} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		p := csi.New(csi.Options{Driver: driver, Kubelet: kubelet, Node: "node1", Version: "v1", Volumes: f, Log: slog.New(slog.DiscardHandler)})
		go func() { done <- p.Serve(ctx) }()
		registry := filepath.Join(kubelet, "plugins_registry", driver.Name+"-reg.sock")
		await.True(t, "the socket of registration", time.Minute, func() bool { _, err := os.Stat(registry); return err == nil })
		got, err := registration.NewRegistrationClient(connect(t, registry)).GetInfo(ctx, &registration.InfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Type != "CSIPlugin" || got.Name != driver.Name || got.SupportedVersions[0] != "1.0.0" {
			t.Errorf("it is registered as %v", got)
		}
		c := connect(t, got.Endpoint)
		node, identity := spec.NewNodeClient(c), spec.NewIdentityClient(c)
		info, err := node.NodeGetInfo(ctx, &spec.NodeGetInfoRequest{})
		if err != nil || info.NodeId != "node1" {
			t.Errorf("%v, %v", info, err)
		}
		if is, err := identity.GetPluginInfo(ctx, &spec.GetPluginInfoRequest{}); err != nil || is.Name != driver.Name {
			t.Errorf("%v, %v", is, err)
		}
		if ready, err := identity.Probe(ctx, &spec.ProbeRequest{}); err != nil || !ready.Ready.Value {
			t.Errorf("%v, %v", ready, err)
		}
		can, err := node.NodeGetCapabilities(ctx, &spec.NodeGetCapabilitiesRequest{})
		if err != nil || len(can.Capabilities) != 1 || can.Capabilities[0].GetRpc().Type != spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP {
			t.Errorf("%v, %v", can, err)
		}
		if _, err := node.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("staging says %v", err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func connect(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// reached is the environment variable by which TestOnlyRootReachesThePlugin runs as another user.
const reached = "SKEP_TEST_CSI_SOCKET"

// TestOnlyRootReachesThePlugin has the sockets' folders opened to other users.
func TestOnlyRootReachesThePlugin(t *testing.T) {
	if socket := os.Getenv(reached); socket != "" {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		if err != nil {
			t.Fatalf("the test does not come to the socket: %v", err)
		}
		if n, err := c.Read(make([]byte, 1)); n > 0 {
			t.Fatalf("it was answered: %v", err)
		}
		t.Log("it was closed")
		return
	}
	need.Kernel(t)
	kubelet := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: kubelet, Volumes: &fake{}, Log: slog.New(slog.DiscardHandler)})
	go func() { done <- p.Serve(ctx) }()
	for _, socket := range []string{"plugins_registry/csi.skep.dev-reg.sock", "plugins/csi.skep.dev/csi.sock"} {
		socket = filepath.Join(kubelet, socket)
		await.True(t, "a socket of mode 0600", time.Minute, func() bool { info, err := os.Stat(socket); return err == nil && info.Mode().Perm() == 0o600 })
		for path := socket; path != os.TempDir(); path = filepath.Dir(path) {
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOnlyRootReachesThePlugin$", "-test.v")
		cmd.Env = append(os.Environ(), reached+"="+socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "it was closed") {
			t.Errorf("%v: %s", err, out)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// FuzzMapsOfBpfman holds that a pod of bpfman's names at least one map, and none whose name is a path or another file.
func FuzzMapsOfBpfman(f *testing.F) {
	f.Add("dns", "a, b,,a")
	f.Add("dns", "../a")
	f.Add("dns", "maps.json")
	f.Add("", "a")
	f.Fuzz(func(t *testing.T, program, list string) {
		asked := &fake{}
		p := csi.New(csi.Options{Driver: csi.Bpfman, Kubelet: "/var/lib/kubelet", Volumes: asked, Log: slog.New(slog.DiscardHandler)})
		_, err := p.NodePublishVolume(t.Context(), request(bpfman(list, with("csi.bpfman.io/program", program))))
		for _, r := range asked.mounted {
			if err != nil || r.Application != (v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: program}) || r.Maps == "" {
				t.Errorf("%+v was mounted: %v", r, err)
			}
			for name := range strings.SplitSeq(r.Maps, ",") {
				if err := skepmap.CheckName(name); err != nil || !strings.Contains(list, name) {
					t.Errorf("%q is a map of %q: %v", name, list, err)
				}
			}
		}
	})
}

// FuzzAttributes holds that no attributes name a pod or a namespace but as the kubelet does.
func FuzzAttributes(f *testing.F) {
	f.Add("application", "dns", "/var/lib/kubelet/pods/"+uid+"/volumes/kubernetes.io~csi/maps/mount", "65532")
	f.Add("csi.storage.k8s.io/pod.namespace", "kube-system", "/../..", "-1")
	f.Fuzz(func(t *testing.T, key, value, target, group string) {
		asked := &fake{}
		p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: "/var/lib/kubelet", Volumes: asked, Log: slog.New(slog.DiscardHandler)})
		_, err := p.NodePublishVolume(t.Context(), request(func(r *spec.NodePublishVolumeRequest, m *spec.VolumeCapability_MountVolume) {
			// The kubelet replaces the author's.
			if _, taken := r.VolumeContext[key]; !taken {
				r.VolumeContext[key] = value
			}
			r.TargetPath, m.VolumeMountGroup = target, group
		}))
		for _, r := range asked.mounted {
			if err != nil || r.Namespace != "web" || r.ServiceAccount != "reader" || r.At.Pod != uid || r.At.Check() != nil ||
				r.Application.Kind == v1alpha1.KindBpfApplication && r.Application.Namespace != "web" {
				t.Errorf("%+v was mounted: %v", r, err)
			}
		}
	})
}
