package admission

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// shown is the certificate that a replica serves.
func shown(t *testing.T, address string) []byte {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw
}

// stored is the Secret's certificate.
func stored(t *testing.T) (*corev1.Secret, []byte) {
	t.Helper()
	var secret corev1.Secret
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "skep-webhook"}, &secret); err != nil {
		return nil, nil
	}
	block, _ := pem.Decode(secret.Data["tls.crt"])
	return &secret, block.Bytes
}

// authorities is whom the API server is told to trust.
func authorities(t *testing.T) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "skep"}, &config); err != nil {
		t.Fatal(err)
	}
	return &config
}

func TestReplicasShareOneCertificateAndLoseNoRequest(t *testing.T) {
	w := newWorld(t)
	app := w.app("app", w.signed())
	serves := func(when string) {
		t.Helper()
		if err := admin.Create(t.Context(), app.DeepCopy(), client.DryRunAll); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	secret, first := stored(t)
	for _, one := range pair.running {
		if !bytes.Equal(shown(t, one.webhook), first) {
			t.Errorf("%s shows another certificate than the Secret's", one.webhook)
		}
	}
	// An installer that applies the configuration again takes the authority out.
	config := authorities(t)
	config.Webhooks[0].ClientConfig.CABundle = nil
	if err := admin.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	w.until(func() error {
		if !bytes.Equal(authorities(t).Webhooks[0].ClientConfig.CABundle, secret.Data["ca.crt"]) {
			return fmt.Errorf("nobody is trusted")
		}
		return admin.Create(t.Context(), app.DeepCopy(), client.DryRunAll)
	})

	// A Secret that goes is made again; what is shown meanwhile stays trusted.
	if err := admin.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.until(func() error {
		serves("while the Secret is made again")
		again, second := stored(t)
		switch {
		case again == nil || bytes.Equal(second, first):
			return fmt.Errorf("there is no new certificate")
		case !bytes.Contains(again.Data["ca.crt"], secret.Data["ca.crt"]):
			return fmt.Errorf("the authority before is not trusted any more")
		case !bytes.Equal(authorities(t).Webhooks[0].ClientConfig.CABundle, again.Data["ca.crt"]):
			return fmt.Errorf("the new authority is not published")
		}
		return nil
	})
	serves("after the Secret was made again")

	// One that starts now shows the new one; the one that runs longest leaves.
	add := func() {
		t.Helper()
		if err := pair.add(); err != nil {
			t.Fatal(err)
		}
		w.until(func() error { return pair.ready(t.Context()) })
	}
	add()
	_, second := stored(t)
	if newest := pair.running[len(pair.running)-1]; !bytes.Equal(shown(t, newest.webhook), second) {
		t.Error("a new replica does not show the new certificate")
	}
	for range 2 {
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
		w.until(func() error { return admin.Create(t.Context(), app.DeepCopy(), client.DryRunAll) })
	}
	serves("by the new replica alone")
	add()
}

// TestReplicasThatWantOtherNamesTakeNoTurns is a rolling upgrade to a version
// whose certificate has one name more, and one less.
func TestReplicasThatWantOtherNamesTakeNoTurns(t *testing.T) {
	w := newWorld(t)
	names := func() string {
		t.Helper()
		_, raw := stored(t)
		leaf, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(leaf.DNSNames)
	}
	add := func(names ...string) {
		t.Helper()
		if err := pair.add(names...); err != nil {
			t.Fatal(err)
		}
		w.until(func() error { return pair.ready(t.Context()) })
	}
	secret, before := stored(t)
	add("new.example")
	if _, now := stored(t); !bytes.Equal(now, before) {
		t.Error("one that does not lead made another certificate")
	}
	if newest := pair.running[len(pair.running)-1]; !bytes.Equal(shown(t, newest.webhook), before) {
		t.Error("a new replica does not show the certificate of the others")
	}
	// The others leave, and it leads.
	for range 2 {
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
	}
	w.until(func() error {
		if got := names(); got != "[new.example]" {
			return fmt.Errorf("the certificate is for %s", got)
		}
		return nil
	})
	if again, _ := stored(t); !bytes.Contains(again.Data["ca.crt"], secret.Data["ca.crt"]) {
		t.Error("the authority before is not trusted any more")
	}
	_, second := stored(t)
	add()
	if _, now := stored(t); !bytes.Equal(now, second) {
		t.Error("one that wants fewer names made another certificate")
	}
}
