package chart

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/fixture/supply"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/helm"
)

// patience bounds what a test waits for; far more than anything takes.
const patience = 3 * time.Minute

// install is the chart in the API server, and its binaries, run as a kubelet
// would: with the arguments, the accounts and the capabilities of their Pods.
// What differs is where they listen, and where their files are.
type install struct {
	*supply.Chain
	t   *testing.T
	dir string
	// objects are the chart's.
	objects []*unstructured.Unstructured
	// webhook and mirror are where the controller listens.
	webhook, mirror string
}

// newInstall builds the binaries; the chart is rendered with values.
func newInstall(t *testing.T, values ...string) *install {
	t.Helper()
	i := &install{Chain: supply.New(t), t: t, dir: t.TempDir(), webhook: freeAddress(t), mirror: freeAddress(t)}
	i.objects = setting{values: values}.objects(t)
	for _, name := range []string{"./cmd/skep-controller", "./cmd/skep-agent"} {
		if err := command.Place(t.Context(), i.dir, name); err != nil {
			t.Fatal(err)
		}
	}
	i.file("admin", plane.Env.KubeConfig)
	return i
}

// install installs the chart with values as rendered.
func (i *install) install(values ...string) {
	i.t.Helper()
	i.release("install", values...)
	i.point()
}

// release installs or upgrades the chart as it is.
func (i *install) release(verb string, values ...string) {
	i.t.Helper()
	// The CRDs of other tests stay as they are, and helm asks whose they are.
	args := []string{verb, "skep", folder(), "--take-ownership"}
	for _, v := range values {
		args = append(args, "--set-json", v)
	}
	if out, err := i.helm(i.t.Context(), args...); err != nil {
		i.t.Fatalf("%v\n%s", err, out)
	}
	i.t.Cleanup(func() {
		_, _ = i.helm(context.WithoutCancel(i.t.Context()), "uninstall", "skep", "--no-hooks", "--ignore-not-found")
	})
}

// helm runs helm on the API server.
func (i *install) helm(ctx context.Context, args ...string) (string, error) {
	i.t.Helper()
	return helm.Run(ctx, i.t, append(args, "--namespace", namespace, "--kubeconfig", filepath.Join(i.dir, "admin"))...)
}

// point has webhooks call the process, for which there is no Service here. Where
// the API server has policies that mutate, there is no webhook that does.
func (i *install) point() {
	i.t.Helper()
	var validating admissionregistrationv1.ValidatingWebhookConfiguration
	var mutating admissionregistrationv1.MutatingWebhookConfiguration
	key := client.ObjectKey{Name: "skep"}
	err := admin.Get(i.t.Context(), key, &validating)
	for n := range validating.Webhooks {
		i.call(&validating.Webhooks[n].ClientConfig)
	}
	if err == nil {
		err = admin.Update(i.t.Context(), &validating)
	}
	if err == nil {
		err = client.IgnoreNotFound(admin.Get(i.t.Context(), key, &mutating))
	}
	for n := range mutating.Webhooks {
		i.call(&mutating.Webhooks[n].ClientConfig)
	}
	if err == nil && len(mutating.Webhooks) > 0 {
		err = admin.Update(i.t.Context(), &mutating)
	}
	if err != nil {
		i.t.Fatal(err)
	}
}

// call has a webhook be reached where the process listens; the path is the
// controller's to write.
func (i *install) call(to *admissionregistrationv1.WebhookClientConfig) {
	url := "https://" + i.webhook
	to.URL, to.Service = &url, nil
}

// until waits until check is content, looking often.
func (i *install) until(what string, check func() error) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), patience)
	defer cancel()
	if err := await.Until(ctx, 250*time.Millisecond, check); err != nil {
		i.t.Fatalf("wait for %s: %v", what, err)
	}
}

// freeAddress is one nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// token is a service account's, as a kubelet asks for it: bound to its Pod, for
// an audience or for the API server.
func (i *install) token(account string, pod *corev1.Pod, audiences ...string) string {
	i.t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences:      audiences,
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: account}}
	if err := admin.SubResource("token").Create(i.t.Context(), sa, request); err != nil {
		i.t.Fatalf("ask for a token of %s: %v", account, err)
	}
	return request.Status.Token
}

// file writes one of the test's.
func (i *install) file(name string, body []byte) string {
	i.t.Helper()
	path := filepath.Join(i.dir, name)
	if err := os.WriteFile(path, body, 0o600); err != nil {
		i.t.Fatal(err)
	}
	return path
}

// place makes the Pod of a template on a node, and a kubeconfig for its
// service account.
func (i *install) place(spec corev1.PodSpec, labels map[string]string, node string) (pod *corev1.Pod, kubeconfig string) {
	i.t.Helper()
	pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "pod-", Labels: labels}, Spec: spec}
	pod.Spec.NodeName = node
	if err := admin.Create(i.t.Context(), pod); err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(i.t.Context()), pod, client.GracePeriodSeconds(0)) })
	kube := clientcmdapi.NewConfig()
	kube.Clusters["c"] = &clientcmdapi.Cluster{
		Server: "https://" + strings.TrimPrefix(plane.Config.Host, "https://"), CertificateAuthorityData: plane.Config.CAData,
	}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: i.token(spec.ServiceAccountName, pod)}
	kube.Contexts["x"], kube.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	body, err := clientcmd.Write(*kube)
	if err != nil {
		i.t.Fatal(err)
	}
	return pod, i.file("kubeconfig-"+pod.Name, body)
}

// process is a container's.
type process struct {
	*exec.Cmd
	said log
	done chan error
}

// log is what a process says.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was said until now.
func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start runs a container: its binary by its arguments, to which some are added
// that take the place of those before, and by no more than its capabilities. As a
// kubelet does, it has arguments name variables of the environment.
func (i *install) start(binary string, c corev1.Container, env []string, more ...string) *process {
	i.t.Helper()
	command := []string{filepath.Join(i.dir, binary)}
	for _, arg := range append(c.Args, more...) {
		for _, variable := range env {
			name, value, _ := strings.Cut(variable, "=")
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		command = append(command, arg)
	}
	if os.Geteuid() == 0 {
		bound := "-all"
		for _, name := range c.SecurityContext.Capabilities.Add {
			bound += ",+" + strings.ToLower(string(name))
		}
		command = append([]string{"setpriv", "--nnp", "--bounding-set=" + bound, "--"}, command...)
	}
	p := &process{Cmd: exec.Command(command[0], command[1:]...), done: make(chan error, 1)}
	p.Stdout, p.Stderr = &p.said, &p.said
	p.Env = append(os.Environ(), append(env, "NO_PROXY=*", "no_proxy=*")...)
	if err := child.Start(p.Cmd); err != nil {
		i.t.Fatal(err)
	}
	go func() { p.done <- p.Wait() }()
	i.t.Cleanup(func() {
		_ = p.Process.Kill()
		if i.t.Failed() {
			i.t.Logf("%s:\n%s", binary, p.said.String())
		}
	})
	return p
}

// stop ends a process as a kubelet does, and holds it to have been rejected
// nothing.
func (i *install) stop(p *process) {
	i.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		i.t.Fatal(err)
	}
	if err := <-p.done; err != nil {
		i.t.Errorf("%s ends with %v", p.Path, err)
	}
	for line := range strings.Lines(p.said.String()) {
		if lower := strings.ToLower(line); strings.Contains(lower, "forbidden") || strings.Contains(lower, "unauthorized") {
			i.t.Errorf("it may not do what it needs: %s", line)
		}
	}
}

// probes waits until a container's probes are content.
func (i *install) probes(c corev1.Container, address string) {
	i.t.Helper()
	// As a kubelet does, which asks for no certificate that somebody vouches for.
	kubelet := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer kubelet.CloseIdleConnections()
	for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
		scheme := strings.ToLower(cmp.Or(string(probe.HTTPGet.Scheme), "http"))
		i.until(c.Name+probe.HTTPGet.Path, func() error {
			request, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, scheme+"://"+address+probe.HTTPGet.Path, http.NoBody)
			if err != nil {
				return err
			}
			answer, err := kubelet.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s %w", answer.Status, body, err)
			}
			return nil
		})
	}
}

// controller runs the Deployment's container, by its service account unless
// told another kubeconfig.
func (i *install) controller(more ...string) *process {
	i.t.Helper()
	template := typed[appsv1.Deployment](i.t, i.objects, "Deployment", "skep-controller").Spec.Template
	_, kubeconfig := i.place(template.Spec, template.Labels, "")
	_, port, err := net.SplitHostPort(i.webhook)
	if err != nil {
		i.t.Fatal(err)
	}
	health := freeAddress(i.t)
	p := i.start("skep-controller", template.Spec.Containers[0], []string{"POD_NAMESPACE=" + namespace, "MEMORY_LIMIT=1073741824"}, append([]string{
		"--kubeconfig=" + kubeconfig, "--cache=" + i.t.TempDir(), "--webhook-port=" + port, "--certificate-name=127.0.0.1",
		"--mirror-address=" + i.mirror, "--metrics-address=127.0.0.1:0", "--health-address=" + health,
	}, more...)...)
	i.probes(template.Spec.Containers[0], health)
	return p
}

// agent runs the DaemonSet's container on a node, whose pins are in a folder.
func (i *install) agent(node, bpffs string) *process {
	i.t.Helper()
	template := typed[appsv1.DaemonSet](i.t, i.objects, "DaemonSet", "skep-agent").Spec.Template
	pod, kubeconfig := i.place(template.Spec, template.Labels, node)
	// What a kubelet makes of the volumes.
	files := map[string]string{}
	i.until("what agents trust", func() error {
		var published corev1.ConfigMap
		if err := admin.Get(i.t.Context(), client.ObjectKey{Namespace: namespace, Name: sealing.ConfigMapName}, &published); err != nil {
			return err
		}
		for name, content := range published.Data {
			files[name] = i.file(name, []byte(content))
		}
		if files["trust.pem"] == "" || files[sealing.MirrorCA] == "" {
			return fmt.Errorf("it has %d files", len(files))
		}
		return nil
	})
	token := i.file("token", []byte(i.token(template.Spec.ServiceAccountName, pod, mirror.Audience)))
	listen := freeAddress(i.t)
	p := i.start("skep-agent", template.Spec.Containers[0], []string{"NODE_NAME=" + node, "MEMORY_LIMIT=4294967296"},
		"--kubeconfig="+kubeconfig, "--trust="+files["trust.pem"], "--mirror-ca="+files[sealing.MirrorCA], "--mirror-token="+token,
		"--mirror=https://"+i.mirror, "--bpffs="+bpffs, "--state="+filepath.Join(i.dir, "state"), "--listen="+listen)
	i.probes(template.Spec.Containers[0], listen)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := admin.Status().Update(i.t.Context(), pod); err != nil {
		i.t.Fatal(err)
	}
	return p
}

// ends waits for a process that ends by itself.
func (p *process) ends() error {
	select {
	case err := <-p.done:
		if err != nil {
			return errors.New(p.said.String())
		}
		return nil
	case <-time.After(patience):
		return errors.New("it does not end")
	}
}
