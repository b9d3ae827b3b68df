package admission

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
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
func authorities(t testing.TB) *admissionregistrationv1.ValidatingWebhookConfiguration {
	t.Helper()
	var config admissionregistrationv1.ValidatingWebhookConfiguration
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "skep"}, &config); err != nil {
		t.Fatal(err)
	}
	return &config
}

// called is the address that the API server calls.
func called(t testing.TB) string {
	t.Helper()
	return *authorities(t).Webhooks[0].ClientConfig.URL
}

// TestWhoMerelyReachesTheWebhookIsToldNothing asks it past the API server, as any
// Pod can, for another namespace and in another's name.
func TestWhoMerelyReachesTheWebhookIsToldNothing(t *testing.T) {
	w := newWorld(t)
	forged := review(t, w.app("forged", w.signed()))
	stranger := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer stranger.CloseIdleConnections()
	told := called(t)
	before := pair.requests(v1alpha1.KindBpfApplication)
	port := "https://" + pair.service.Address()
	for _, path := range []string{"/", "/validate", "/validate/", "/validate/" + strings.Repeat("0", 64), "/requester/" + strings.Repeat("0", 64)} {
		if err := ask(&stranger, port+path, forged); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s is answered: %v", path, err)
		}
	}
	if diff := cmp.Diff(before, pair.requests(v1alpha1.KindBpfApplication)); diff != "" {
		t.Errorf("what a stranger asks is evaluated:\n%s", diff)
	}
	if err := ask(&stranger, told, forged); err != nil {
		t.Errorf("so that the refusals say nothing: at the path that the API server calls, %v", err)
	}
	_, end, _ := strings.Cut(told, "/validate/")
	for _, one := range pair.running {
		families, err := one.metrics.Gather()
		if err != nil || strings.Contains(fmt.Sprint(families), end) {
			t.Errorf("metrics name the path (%v)", err)
		}
	}
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
	// An installer that applies the configuration again takes authority and path out.
	config := authorities(t)
	address, bare := called(t), "https://"+pair.service.Address()
	config.Webhooks[0].ClientConfig.CABundle, config.Webhooks[0].ClientConfig.URL = nil, &bare
	if err := admin.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	w.until(func() error {
		if !bytes.Equal(authorities(t).Webhooks[0].ClientConfig.CABundle, secret.Data["ca.crt"]) {
			return fmt.Errorf("nobody is trusted")
		}
		if now := called(t); now != address {
			return fmt.Errorf("%s is called, and was %s", now, address)
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
	if now := called(t); now != address {
		t.Error("a path is called before every replica had time to learn of it")
	}

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

// TestReplicasWithEmptyCachesDecideWhileTheRegistryIsAway replaces both replicas
// while nothing can be pulled: what those before them learned is enough.
func TestReplicasWithEmptyCachesDecideWhileTheRegistryIsAway(t *testing.T) {
	w := newWorld(t)
	hanna, said := w.user("hanna-of-"+w.namespace, "skep-application-editor")
	image := w.signed()
	first := w.app("first", image)
	w.create(hanna, first)
	w.intent(first, lives)
	_, digest, _ := strings.Cut(image, "@")
	w.until(func() error {
		var o v1alpha1.BpfImage
		if err := admin.Get(t.Context(), client.ObjectKey{Name: strings.Replace(digest, ":", "-", 1)}, &o); err != nil {
			return err
		}
		for kept := range o.Spec.Memory {
			if strings.HasPrefix(kept, "image.") {
				return nil
			}
		}
		return errors.New("the image itself is not kept")
	})
	w.Down.Store(true)
	for range 2 {
		if err := pair.add(); err != nil {
			t.Fatal(err)
		}
		if err := pair.remove(); err != nil {
			t.Fatal(err)
		}
	}
	w.until(func() error { return pair.ready(t.Context()) })
	second, misspelt := w.app("second", image), w.app("third", image)
	misspelt.Spec.Programs[0].Name = "count_pakets"
	// Each replica is asked.
	for range 4 {
		forbidden(t, hanna.Create(t.Context(), misspelt.DeepCopy()), "inspect/program", "count_packets")
		if err := hanna.Create(t.Context(), second.DeepCopy(), client.DryRunAll); err != nil {
			t.Fatal(err)
		}
	}
	w.create(hanna, second)
	w.intent(second, lives)
	if heard := said.all(); len(heard) > 0 {
		t.Errorf("heard %q", heard)
	}
}
