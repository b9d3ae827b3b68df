package chart

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/controller/keys"
	"github.com/skep-dev/skep/test/controlplane"
)

// TestTheCertificateOfSomebodyElseIsShownAndTold is what cert-manager asks for,
// without it: its Secret's three files.
func TestTheCertificateOfSomebodyElseIsShownAndTold(t *testing.T) {
	if _, err := envtest.InstallCRDs(plane.Config, controlplane.CRDInstall()); err != nil {
		t.Fatal(err)
	}
	// The account has its rights from the chart, which is not installed here:
	// there is no cert-manager.
	i := newInstall(t, `certificates.certManager=true`)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "skep-controller"}}
	if err := admin.Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Delete(t.Context(), account) }()
	authority, pool := i.certificate()
	controller := i.controller("--kubeconfig="+i.dir+"/admin", "--webhook-certificate="+i.dir)
	i.until("agents to be told", func() error {
		var published corev1.ConfigMap
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: keys.ConfigMapName}, &published); err != nil {
			return err
		}
		if got := published.Data[keys.MirrorCA]; got != string(authority) {
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
	i.file("tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	pool = x509.NewCertPool()
	pool.AddCert(borrowed.Certificate())
	return authority, pool
}
