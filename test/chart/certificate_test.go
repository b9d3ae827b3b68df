package chart

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/harness/controlplane"
)

// path ends what the API server calls, where the chart chooses it.
var path = strings.Repeat("0f", 32)

// TestTheCertificateOfSomebodyElseIsShownAndTold is what cert-manager asks for,
// without it: its Secret's three files, and the chart's.
func TestTheCertificateOfSomebodyElseIsShownAndTold(t *testing.T) {
	if _, err := envtest.InstallCRDs(plane.Config, controlplane.CRDInstall()); err != nil {
		t.Fatal(err)
	}
	// The account has its rights from the chart, which is not installed here:
	// there is no cert-manager.
	i := newInstall(t, `certificates.certManager=true`, `certificates.path="`+path+`"`)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "skep-controller"}}
	if err := admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Delete(t.Context(), account) }()
	authority, pool := i.certificate()
	controller := i.controller("--kubeconfig="+i.dir+"/admin", "--webhook-certificate="+i.dir)
	i.until("agents to be told", func() error {
		var published corev1.ConfigMap
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: sealing.ConfigMapName}, &published); err != nil {
			return err
		}
		if got := published.Data[sealing.MirrorCA]; got != string(authority) {
			return fmt.Errorf("they are told %q", got)
		}
		return nil
	})
	for _, address := range []string{i.webhook, i.mirror} {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Errorf("%s shows another certificate: %v", address, err)
			continue
		}
		_ = conn.Close()
	}
	stranger := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}}}
	defer stranger.CloseIdleConnections()
	called := one(t, i.objects, "ValidatingWebhookConfiguration",
		"skep").Object["webhooks"].([]any)[0].(map[string]any)["clientConfig"].(map[string]any)["service"].(map[string]any)["path"]
	for at, want := range map[string]int{
		"/validate": http.StatusNotFound, "/validate/" + strings.Repeat("0", 64): http.StatusNotFound, called.(string): http.StatusOK,
	} {
		answer, err := stranger.Post("https://"+i.webhook+at, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s is answered with %s, want %d", at, answer.Status, want)
		}
	}
	another := strings.Repeat("f0", 32)
	i.file("path", []byte(another))
	i.until("another path to be served", func() error {
		answer, err := stranger.Post("https://"+i.webhook+"/validate/"+another, "application/json", strings.NewReader("{}"))
		if err != nil {
			return err
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
	i.stop(controller)
}

// certificate writes the files of one that is its own authority, and is good for
// 127.0.0.1.
func (i *install) certificate() (authority []byte, pool *x509.CertPool) {
	i.t.Helper()
	borrowed := httptest.NewUnstartedServer(nil)
	borrowed.StartTLS()
	defer borrowed.Close()
	key, err := x509.MarshalPKCS8PrivateKey(borrowed.TLS.Certificates[0].PrivateKey)
	if err != nil {
		i.t.Fatal(err)
	}
	authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: borrowed.Certificate().Raw})
	i.file("ca.crt", authority)
	i.file("tls.crt", authority)
	i.file("path", []byte(path))
	i.file("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	pool = x509.NewCertPool()
	pool.AddCert(borrowed.Certificate())
	return authority, pool
}

// TestThePathThatTheChartChoosesIsKept renders as an upgrade does, with a cluster
// to ask.
func TestThePathThatTheChartChoosesIsKept(t *testing.T) {
	managers(t)
	i := &install{t: t, dir: t.TempDir()}
	i.file("admin", plane.Env.KubeConfig)
	rendered := func() string {
		t.Helper()
		out, err := i.helm(t.Context(), "template", "skep", folder(), "--dry-run=server", "--set-json", `certificates.certManager=true`, "--set-json",
			`crds.enabled=false`, "--show-only", "templates/webhook.yaml")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`path: "?(?:/validate/)?([0-9a-f]{64})`).FindAllStringSubmatch(out, -1)
		if len(found) != 2 || found[0][1] != found[1][1] {
			t.Fatalf("the Secret and the webhook have other paths: %v", found)
		}
		return found[0][1]
	}
	made := rendered()
	if made == rendered() {
		t.Error("a path can be guessed")
	}
	kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "skep-webhook-path", Labels: map[string]string{"app.kubernetes.io/managed-by": "Helm"},
		Annotations: map[string]string{"meta.helm.sh/release-name": "skep", "meta.helm.sh/release-namespace": namespace},
	}, StringData: map[string]string{"path": made}}
	if err := admin.Create(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Delete(t.Context(), kept) }()
	if again := rendered(); again != made {
		t.Errorf("it is %s, and was %s", again, made)
	}
}

// managers has the API server know cert-manager's kinds.
func managers(t *testing.T) {
	t.Helper()
	preserve := true
	var kinds []*apiextensionsv1.CustomResourceDefinition
	for plural, kind := range map[string]string{"certificates": "Certificate", "issuers": "Issuer"} {
		o := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: plural + ".cert-manager.io"}}
		o.Spec.Group, o.Spec.Scope = "cert-manager.io", apiextensionsv1.NamespaceScoped
		o.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind}
		o.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve},
			}}}
		kinds = append(kinds, o)
	}
	if _, err := envtest.InstallCRDs(plane.Config, envtest.CRDInstallOptions{CRDs: kinds}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := envtest.UninstallCRDs(plane.Config, envtest.CRDInstallOptions{CRDs: kinds}); err != nil {
			t.Error(err)
		}
	})
}

// TestAnUpgradeLeavesWhatTheAPIServerCalls holds helm to leave alone what the
// controller writes into the webhook's configuration.
func TestAnUpgradeLeavesWhatTheAPIServerCalls(t *testing.T) {
	i := newInstall(t)
	i.release("install")
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	calls := func() admissionregistrationv1.WebhookClientConfig {
		t.Helper()
		if err := admin.Get(t.Context(), client.ObjectKey{Name: "skep"}, &config); err != nil {
			t.Fatal(err)
		}
		return config.Webhooks[0].ClientConfig
	}
	controller := i.controller()
	i.until("the webhook to be called", func() error {
		if to := calls(); to.Service.Path == nil || to.CABundle == nil {
			return fmt.Errorf("it is called at %+v", to)
		}
		return nil
	})
	// So that nobody puts right what the upgrade changed.
	i.stop(controller)
	before := calls()
	i.release("upgrade", `admission.timeoutSeconds=9`)
	if diff := cmp.Diff(before, calls()); diff != "" || *config.Webhooks[0].TimeoutSeconds != 9 {
		t.Errorf("after the upgrade another one is called, or there was none:\n%s", diff)
	}
}
