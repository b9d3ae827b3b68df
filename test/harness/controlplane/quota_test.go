package controlplane_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/module"
)

// documentedQuota is the quota that the page about installing shows.
func documentedQuota(t *testing.T) *corev1.ResourceQuota {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(module.Root(), "docs", "operations", "install.md"))
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(page), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		var quota corev1.ResourceQuota
		if yaml.UnmarshalStrict([]byte(block), &quota) == nil && quota.Kind == "ResourceQuota" {
			return &quota
		}
	}
	t.Fatal("docs/operations/install.md shows no ResourceQuota")
	return nil
}

// counting runs Kubernetes' own controller of quotas until the test ends.
func counting(t *testing.T) {
	t.Helper()
	kube, dir := clientcmdapi.NewConfig(), t.TempDir()
	kube.Clusters["c"] = &clientcmdapi.Cluster{Server: plane.Config.Host, CertificateAuthorityData: plane.Config.CAData}
	if !strings.Contains(plane.Config.Host, "://") {
		kube.Clusters["c"].Server = "https://" + plane.Config.Host
	}
	kube.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: plane.Config.CertData, ClientKeyData: plane.Config.KeyData}
	kube.Contexts["x"], kube.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*kube, kubeconfig); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(filepath.Dir(plane.Kubectl), "kube-controller-manager")
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: these binaries have no kube-controller-manager: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "--kubeconfig="+kubeconfig, "--controllers=resourcequota-controller", "--leader-elect=false",
		"--secure-port=0")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
}

func TestAQuotaBoundsTheApplicationsOfANamespace(t *testing.T) {
	quota := documentedQuota(t)
	most, ok := quota.Spec.Hard["count/bpfapplications.skep.dev"]
	if !ok {
		t.Fatalf("the quota bounds %v", quota.Spec.Hard)
	}
	c := newClient(t)
	quota.Namespace = "quota"
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: quota.Namespace}}, quota} {
		if err := c.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	counting(t)
	await.True(t, "the count of objects", 3*time.Minute, func() bool {
		return c.Get(t.Context(), client.ObjectKeyFromObject(quota), quota) == nil && len(quota.Status.Hard) > 0
	})
	write := func(name string) error {
		app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: quota.Namespace, Name: name}}
		app.Spec.Bytecode.Image, app.Spec.Programs = "r.example.com/x:v1", []v1alpha1.Program{{Name: "p"}}
		return c.Create(t.Context(), app)
	}
	for i := range most.Value() {
		if err := write(fmt.Sprintf("app-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := write("beyond"); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: "+quota.Name) {
		t.Errorf("one more: %v", err)
	}
}
