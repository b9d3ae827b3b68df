package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/admission"
	"github.com/skep-dev/skep/controller/mapreads"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/module"
)

// mapsHost is the name by which kube-apiserver knows the chart's Service.
const mapsHost = "skep-webhook.default.svc"

// frontProxy makes what kube-apiserver is known by to the servers that it aggregates, in files, and returns its flags.
func frontProxy(t testing.TB, audit string) map[string][]string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca, caDER, caKey := certificate(t, "front-proxy-ca", nil, nil)
	_, der, key := certificate(t, "front-proxy-client", ca, caKey)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "audit.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string][]string{
		"requestheader-client-ca-file": {write("ca.crt", "CERTIFICATE", caDER)}, "requestheader-allowed-names": {"front-proxy-client"},
		"requestheader-username-headers": {"X-Remote-User"}, "requestheader-group-headers": {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		"proxy-client-cert-file":             {write("client.crt", "CERTIFICATE", der)}, "proxy-client-key-file": {write("client.key", "PRIVATE KEY", private)},
		"audit-policy-file": {policy}, "audit-log-path": {audit}, "audit-log-mode": {"blocking"},
	}
}

// certificate makes one for clients, by an authority or of its own.
func certificate(t testing.TB, name string, by *x509.Certificate, byKey *ecdsa.PrivateKey) (*x509.Certificate, []byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if by == nil {
		by, byKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, key.Public(), byKey)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed, der, key
}

// mapsWorld is a cluster whose API server has maps.skep.dev and view.skep.dev, and a node with exec-snoop.
type mapsWorld struct {
	*cluster
	audit string
	// address is where the controller serves, and mirror where agents ask.
	address, mirror string
	node            *machine
	// stop ends the controller, and again starts another at the same addresses.
	stop, again func()
}

func newMapsWorld(t *testing.T) *mapsWorld {
	t.Helper()
	w := &mapsWorld{audit: filepath.Join(t.TempDir(), "audit.log")}
	plane, err := controlplane.Start(t.Context(), controlplane.Options{Flags: frontProxy(t, w.audit)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Stop() })
	w.cluster = newClusterOn(t, plane)
	webhook, err := deployment.Free(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(webhook)
	listen := func(address string) net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	controls := func(mirrors, apis net.Listener) (stop func()) {
		return w.control(func(o *controller.Options) {
			// With the chart's rights and no others.
			o.Config = w.as("system:serviceaccount:default:skep-controller")
			o.Admission = admission.Options{Host: at.Addr().String(), Port: int(at.Port()), Names: []string{mapsHost, "example.com"}}
			o.Mirror.Listener = mirrors
			o.Aggregated = controller.AggregatedOptions{Listener: apis, View: true, MapReads: true, Recheck: 200 * time.Millisecond}
		})
	}
	mirrors, apis := listen("127.0.0.1:0"), listen("127.0.0.1:0")
	w.mirror, w.address = "https://"+mirrors.Addr().String(), apis.Addr().String()
	w.installs("rbac.yaml")
	w.aggregate()
	w.stop = controls(mirrors, apis)
	w.again = func() { w.stop = controls(listen(mirrors.Addr().String()), listen(w.address)) }
	w.runs()
	return w
}

// aggregate tells the API server of both APIs, as the chart does.
func (w *mapsWorld) aggregate() {
	w.t.Helper()
	port := netip.MustParseAddrPort(w.address).Port()
	w.create(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "skep-webhook"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}})
	w.installs("aggregated.yaml", func(o *unstructured.Unstructured) {
		if o.GetKind() != "APIService" {
			return
		}
		if err := unstructured.SetNestedField(o.Object, int64(port), "spec", "service", "port"); err != nil {
			w.t.Fatal(err)
		}
	})
}

// installs makes what a template of the chart has.
func (w *mapsWorld) installs(file string, change ...func(*unstructured.Unstructured)) {
	w.t.Helper()
	objects, err := deployment.Chart{Namespace: "default"}.Render(file)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range objects {
		for _, f := range change {
			f(o)
		}
		w.create(o)
	}
}

// runs starts a node, and exec-snoop on it.
func (w *mapsWorld) runs() {
	t := w.t
	t.Helper()
	var authority []byte
	w.until("the mirror's certificate to be published", func() (err error) {
		authority, err = sealing.Published(t.Context(), w.Client, "default", sealing.MirrorCA)
		return errors.Join(err, missing("authorities", len(authority)))
	})
	w.create(w.Signer("team-a"))
	w.node = w.machines(command.Build(w.t, "skep-agent"), served{url: w.mirror, authority: authority}, 1)[0]
	w.node.kill()
	if err := os.WriteFile(w.node.flag("--mirror-token"), []byte(w.tokenOn(w.node.name)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.node.flags = append(w.node.flags, "--map-reads", "--view")
	w.node.start()
	object, err := os.ReadFile(filepath.Join(module.Root(), "examples/exec-snoop/exec_snoop.bpf.o"))
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := w.Push("exec-snoop:v1", object, "team-a")
	app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "exec-snoop"}, Spec: v1alpha1.BpfApplicationSpec{
		Bytecode: v1alpha1.Bytecode{Image: ref},
		Programs: []v1alpha1.Program{{Name: "snoop", Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_execve"}}}},
	}}
	w.create(app)
	w.summary(app, "1/1")
}

// missing is an error where there is none of something.
func missing(what string, n int) error {
	if n == 0 {
		return errors.New("no " + what)
	}
	return nil
}

// flag is the value of a flag of the agent.
func (m *machine) flag(name string) string { return m.flags[slices.Index(m.flags, name)+1] }

// may lets a user do something; the function that it returns takes the right away.
func (w *mapsWorld) may(name string, rules ...rbacv1.PolicyRule) (not func()) {
	w.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	w.create(role)
	return w.bind(name, name)
}

// bind gives a user a role.
func (w *mapsWorld) bind(name, role string) (not func()) {
	w.t.Helper()
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}}
	w.create(binding)
	return func() {
		if err := w.Delete(w.t.Context(), binding); err != nil {
			w.t.Error(err)
		}
	}
}

// as is a user's client of the API server.
func (w *mapsWorld) as(name string) *rest.Config {
	w.t.Helper()
	user, err := w.plane.Env.AddUser(envtest.User{Name: name}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return user.Config()
}

// get asks the API server.
func (w *mapsWorld) get(ctx context.Context, config *rest.Config, path string) (*http.Response, error) {
	to, err := rest.HTTPClientFor(config)
	if err != nil {
		w.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(config.Host, "/")+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return to.Do(request)
}

// read is the whole answer.
func (w *mapsWorld) read(config *rest.Config, path string) (int, string) {
	w.t.Helper()
	response, err := w.get(w.t.Context(), config, path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

const mapsBase = "/apis/maps.skep.dev/v1alpha1"

// mapsOf is the path of the maps of exec-snoop.
const mapsOf = mapsBase + "/clusterbpfapplications/exec-snoop/maps"

// rule allows to read maps.
func rule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{mapreads.Group}, Resources: []string{"clusterbpfapplications/maps", "bpfapplications/maps"}, Verbs: verbs}
}

func TestMapsAreReadByTheirOwnRightThroughTheAPIServer(t *testing.T) {
	w := newMapsWorld(t)
	w.may("reader", rule("get"))
	on := "?node=" + w.node.name
	reader := w.as("reader")
	// Each user has a bound of their own, which none but the hasty one reaches.
	for _, name := range []string{"first", "operator", "hasty"} {
		w.bind(name, "reader")
	}
	first := w.as("first")
	w.until("the API server to hand on reads", func() error {
		if code, body := w.read(first, mapsOf+on); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	t.Run("a user with the right reads", func(t *testing.T) {
		_, body := w.read(reader, mapsOf+on)
		if !strings.Contains(body, `"name":"events"`) || !strings.Contains(body, `"name":".bss"`) || strings.Contains(body, "/sys/fs/bpf") {
			t.Error(body)
		}
		for path, want := range map[string]string{"/.bss" + on: `{"key":0,"value":{"lost":0}}`, "/.bss" + on + "&key=0": `{"key":0,"value":{"lost":0}}`} {
			if code, body := w.read(reader, mapsOf+path); code != http.StatusOK || body != want+"\n" {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
	})
	t.Run("what is not there is named", func(t *testing.T) {
		for path, want := range map[string]struct {
			code int
			text string
		}{
			mapsOf + "/nothing" + on:                          {http.StatusNotFound, "it has .bss, events"},
			mapsOf + "/.bss" + on + "&key=7":                  {http.StatusNotFound, "no such key"},
			mapsOf + "/.bss" + on + "&key=x":                  {http.StatusUnprocessableEntity, "key"},
			mapsOf + "/events" + on:                           {http.StatusUnprocessableEntity, "use skep map watch"},
			mapsOf + "?node=other":                            {http.StatusGatewayTimeout, "node other"},
			mapsOf:                                            {http.StatusBadRequest, "--node"},
			mapsOf + "?node=..%2F..":                          {http.StatusBadRequest, "is no name"},
			mapsBase + "/clusterbpfapplications/no/maps" + on: {http.StatusNotFound, "no ClusterBpfApplication no runs"},
		} {
			if code, body := w.read(reader, path); code != want.code || !strings.Contains(body, want.text) || !strings.Contains(body, `"kind":"Status"`) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
	})
	w.othersDoNot(t, on)
	w.isAudited(t)
	w.refusesOthers(t, mapsOf+on, w.as("reader"))
	w.byCommand(t, w.as("operator"))
	w.watches(t, on)
	w.isBounded(t, w.as("hasty"), on)
}

// othersDoNot has users with other rights read nothing.
func (w *mapsWorld) othersDoNot(t *testing.T, on string) {
	w.bind("viewer", "view")
	w.bind("editor", "edit")
	w.bind("namespace-admin", "admin")
	w.may("proxy", rbacv1.PolicyRule{APIGroups: []string{""}, Verbs: []string{"*"},
		Resources: []string{"pods", "pods/proxy", "pods/exec", "nodes/proxy", "services/proxy"}})
	w.may("owner", rbacv1.PolicyRule{APIGroups: []string{v1alpha1.Group}, Resources: []string{"*"}, Verbs: []string{"*"}})
	w.may("other", rbacv1.PolicyRule{APIGroups: []string{mapreads.Group}, Resources: []string{"clusterbpfapplications/maps"},
		ResourceNames: []string{"another"}, Verbs: []string{"get", "watch"}})
	for _, name := range []string{"nobody", "viewer", "editor", "namespace-admin", "proxy", "owner", "other"} {
		t.Run(name+" reads nothing", func(t *testing.T) {
			for _, path := range []string{mapsOf + on, mapsOf + "/.bss" + on, mapsBase + "/watch/clusterbpfapplications/exec-snoop/maps/events" + on} {
				if code, body := w.read(w.as(name), path); code != http.StatusForbidden {
					t.Errorf("%s: %d %s", path, code, body)
				}
			}
		})
	}
	t.Run("a right to get is none to watch", func(t *testing.T) {
		if code, body := w.read(w.as("reader"), mapsBase+"/watch/clusterbpfapplications/exec-snoop/maps/events"+on); code != http.StatusForbidden {
			t.Errorf("%d %s", code, body)
		}
	})
}

// isAudited finds the reads in the API server's log.
func (w *mapsWorld) isAudited(t *testing.T) {
	t.Run("the API server's audit log has each read", func(t *testing.T) {
		text, err := os.ReadFile(w.audit)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"reader", "viewer"} {
			found := false
			for line := range bytes.Lines(text) {
				var event struct {
					RequestURI, Verb string
					User             struct{ Username string }
					ObjectRef        struct{ Resource, Name, APIGroup, Subresource string }
				}
				if err := json.Unmarshal(line, &event); err != nil {
					t.Fatal(err)
				}
				if o := event.ObjectRef; event.User.Username == want && o.APIGroup == mapreads.Group && o.Name == "exec-snoop" &&
					o.Subresource == "maps" && event.Verb == "get" && strings.HasPrefix(event.RequestURI, mapsOf+"/.bss?node=") {
					found = true
				}
			}
			if !found {
				t.Errorf("no event of %s", want)
			}
		}
	})
}

// refusesOthers has the controller answer the API server alone: no user who may, and who comes straight to it.
func (w *mapsWorld) refusesOthers(t *testing.T, path string, users *rest.Config) {
	t.Run("a client that is not the API server gets nothing", func(t *testing.T) {
		own, der, key := certificate(t, "front-proxy-client", nil, nil)
		ofUser, err := tls.X509KeyPair(users.CertData, users.KeyData)
		if err != nil {
			t.Fatal(err)
		}
		for name, shown := range map[string][]tls.Certificate{
			"no certificate": nil, "a certificate of its own": {{Certificate: [][]byte{der}, PrivateKey: key, Leaf: own}}, "a user's certificate": {ofUser},
		} {
			to := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: shown}}}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Remote-User", "reader")
			request.Header.Set("X-Remote-Group", "system:masters")
			response, err := to.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s: %s", name, response.Status)
			}
		}
	})
}

// byCommand has users read by kubectl's plug-in.
func (w *mapsWorld) byCommand(t *testing.T, reader *rest.Config) {
	dir := t.TempDir()
	plugin := filepath.Join(dir, "kubectl-skep")
	if err := os.Symlink(command.Build(t, "skep"), plugin); err != nil {
		t.Fatal(err)
	}
	as := func(name string, config *rest.Config) string {
		path := filepath.Join(dir, name)
		if err := writeKubeconfig(config, path); err != nil {
			t.Fatal(err)
		}
		return "KUBECONFIG=" + path
	}
	node := w.node.name
	for name, c := range map[string]struct {
		config  *rest.Config
		program string
		args    []string
		want    string
		code    int
	}{
		"the maps":           {reader, plugin, []string{"map", "list", "exec-snoop", "--node", node}, "exec-snoop   events  RingBuf", 0},
		"the maps as JSON":   {reader, plugin, []string{"map", "list", "exec-snoop", "--node", node, "-o", "json"}, `"name": ".bss"`, 0},
		"entries":            {reader, plugin, []string{"map", "dump", "exec-snoop", ".bss", "--node", node}, `0  {"lost":0}`, 0},
		"an entry as JSON":   {reader, plugin, []string{"map", "get", "exec-snoop", ".bss", "0", "--node", node, "-o", "json"}, `{"key":0,"value":{"lost":0}}`, 0},
		"no such map":        {reader, plugin, []string{"map", "dump", "exec-snoop", "no", "--node", node}, "it has .bss, events", 1},
		"no node":            {reader, plugin, []string{"map", "dump", "exec-snoop", ".bss"}, "--node", 2},
		"of a namespace":     {reader, plugin, []string{"map", "list", "exec-snoop", "--node", node, "-n", "default"}, "default/exec-snoop runs", 1},
		"without a right":    {w.as("nobody"), plugin, []string{"map", "list", "exec-snoop", "--node", node}, "skep-map-reader", 2},
		"no such API":        {shared.Config, plugin, []string{"map", "list", "exec-snoop", "--node", node}, "mapReads.enabled=true", 2},
		"the nodes":          {w.plane.Config, w.plane.Kubectl, []string{"get", "bpfnodes"}, node, 0},
		"what the API lacks": {w.plane.Config, w.plane.Kubectl, []string{"get", "apiservice", "v1alpha1.maps.skep.dev"}, "True", 0},
	} {
		t.Run("by a command: "+name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), c.program, c.args...)
			cmd.Env = append(os.Environ(), as("config", c.config))
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), c.want) || cmd.ProcessState.ExitCode() != c.code {
				t.Errorf("%v: %v\n%s", c.args, err, out)
			}
		})
	}
}

// watches has a user watch until the right is withdrawn.
func (w *mapsWorld) watches(t *testing.T, on string) {
	t.Run("a watch ends soon after the right is withdrawn", func(t *testing.T) {
		not := w.may("watcher", rule("watch"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		execs := make(chan struct{})
		defer func() { cancel(); <-execs }()
		go func() {
			defer close(execs)
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "/bin/true", "it").Run()
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		path := mapsBase + "/watch/clusterbpfapplications/exec-snoop/maps/events" + on + "&type=event"
		watcher := w.as("watcher")
		var response *http.Response
		// The API server hears of the new right by a watch of its own.
		w.until("the right to watch", func() (err error) {
			if response, err = w.get(ctx, watcher, path); err == nil && response.StatusCode == http.StatusForbidden {
				_ = response.Body.Close()
				err = errors.New(response.Status)
			}
			return err
		})
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		seen, last := false, ""
		for lines.Scan() {
			if strings.Contains(lines.Text(), `"file":"/bin/true"`) && !seen {
				seen = true
				if code, body := w.read(watcher, path); code != http.StatusConflict || !strings.Contains(body, "watched by another user") {
					t.Errorf("a second watch: %d %s", code, body)
				}
				not()
			}
			if lines.Text() != "" {
				last = lines.Text()
			}
		}
		if !seen || !strings.Contains(last, `"code":403`) || lines.Err() != nil {
			t.Errorf("seen %v, the last line is %s, %v", seen, last, lines.Err())
		}
	})
}

// isBounded has a user ask too often.
func (w *mapsWorld) isBounded(t *testing.T, reader *rest.Config, on string) {
	t.Run("a user who asks too often is answered 429", func(t *testing.T) {
		for range 200 {
			response, err := w.get(t.Context(), reader, mapsOf+on)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if response.StatusCode == http.StatusTooManyRequests {
				if response.Header.Get("Retry-After") == "" {
					t.Error("it is not told when to ask again")
				}
				return
			}
		}
		t.Error("200 reads were answered")
	})
}

// TestMapsAreReadByNobodyByDefault has neither the controller nor the chart have any of it.
func TestMapsAreReadByNobodyByDefault(t *testing.T) {
	c := newCluster(t)
	served, _ := c.serve(t.TempDir())
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, served.url+"/v1/requests", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.token("skep-agent", "")
	request.Header.Set("Authorization", "Bearer "+c.tokenOn("none"))
	to := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: served.pool, MinVersion: tls.VersionTLS13}}}
	defer to.CloseIdleConnections()
	response, err := to.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNotFound {
		t.Errorf("the mirror answers %d", response.StatusCode)
	}
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	if err := c.Get(t.Context(), client.ObjectKey{Name: mapreads.Version + "." + mapreads.Group}, service); !apierrors.IsNotFound(err) {
		t.Errorf("the APIService: %v", err)
	}
}
