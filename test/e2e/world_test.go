package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/skep-dev/skep/test/fixture/userbinary"
)

// authorities is the machine's file of certificate authorities.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

// authority is a certificate authority, the only one that the node knows.
type authority struct {
	certificate string
	parsed      *x509.Certificate
	key         *ecdsa.PrivateKey
}

// newAuthority makes one.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "e2e"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a := &authority{parsed: template}
	der, key := a.sign(t, template)
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a.parsed, a.key = parsed, key
	a.certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// sign signs a certificate with a key of its own; the first one signs itself.
func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	by := a.key
	if by == nil {
		by = key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, a.parsed, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// issue makes a certificate for names and addresses, and its key, in PEM.
func (a *authority) issue(t *testing.T, usage x509.ExtKeyUsage, subject string, names ...string) (certificate, key string) {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: subject}, ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, name)
	}
	der, private := a.sign(t, template)
	body, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: body}))
}

// registry is a real one with the images in it that Pods need.
func (n *node) registry(a *authority) {
	n.t.Helper()
	n.serve(a, "registry.example.com", "443")
	for image, v := range map[string]struct {
		command string
		others  map[string][]byte
	}{
		"pause:1":                         {"pause", nil},
		"worker:1":                        {"worker", probing()},
		"reader:1":                        {"reader", nil},
		"exporter:v1":                     {"packet-exporter", nil},
		"examples/flow-reader:v1":         {"flow-reader", nil},
		"examples/firewall-controller:v1": {"firewall-controller", nil},
		"library/busybox:1.37":            {"pause", shell(n.t)},
	} {
		ref, err := name.ParseReference("registry.example.com/" + image)
		if err == nil {
			err = remote.Write(ref, imageOf(n.t, n.path("bin/"+v.command), v.others))
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// shell is what the image busybox has of what pods of the pages use, made of the machine's own
// files, which are Debian's.
func shell(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for to, from := range map[string]string{
		"bin/sh": "/usr/bin/dash", "bin/date": "/usr/bin/date", "bin/sleep": "/usr/bin/sleep",
		"lib/x86_64-linux-gnu/libc.so.6": "/lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2": "/lib64/ld-linux-x86-64.so.2",
	} {
		body, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		all[to] = body
	}
	return all
}

// serve starts a registry that has a name, and shows a certificate of it.
func (n *node) serve(a *authority, host, port string) {
	n.t.Helper()
	certificate, key := a.issue(n.t, x509.ExtKeyUsageServerAuth, "registry", host)
	pair, err := tls.X509KeyPair([]byte(certificate), []byte(key))
	if err != nil {
		n.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", net.JoinHostPort(address, port), &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		n.t.Fatal(err)
	}
	server := &http.Server{
		Handler:           registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))),
		ErrorLog:          log.New(io.Discard, "", 0),
		ReadHeaderTimeout: time.Minute,
	}
	go func() { _ = server.Serve(l) }()
}

// probing are binaries that pass a USDT probe as often as their names say.
func probing() map[string][]byte {
	all := map[string][]byte{}
	for _, times := range []uint32{fewest, asked} {
		all[fmt.Sprint("probes/", times)] = userbinary.Worker(times - 1)
	}
	return all
}

// imageOf is an image with one file, which runs, and others beside it by their paths.
func imageOf(t *testing.T, path string, others map[string][]byte) v1.Image {
	t.Helper()
	body, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	add := func(name string, body []byte) {
		_ = w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(body))})
		_, _ = w.Write(body)
	}
	add(filepath.Base(path), body)
	for _, name := range slices.Sorted(maps.Keys(others)) {
		add(name, others[name])
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err == nil {
		image, err = mutate.Config(image, v1.Config{Entrypoint: []string{"/" + filepath.Base(path)}})
	}
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// names answers what Pods ask of DNS: addresses of Services and of registries.
func (n *node) names() {
	n.t.Helper()
	conn, err := net.ListenPacket("udp", address+":53")
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for buffer := make([]byte, 1500); ; {
			size, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := n.answer(buffer[:size]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
}

// answer answers one question (RFC 1035, section 4).
func (n *node) answer(question []byte) []byte {
	const header, pointer = 12, 0xc00c
	var labels []string
	at := header
	for at < len(question) && question[at] != 0 && at+1+int(question[at]) < len(question) {
		labels = append(labels, string(question[at+1:at+1+int(question[at])]))
		at += 1 + int(question[at])
	}
	if at += 5; at > len(question) {
		return nil
	}
	kind := binary.BigEndian.Uint16(question[at-4:])
	ip := n.lookup(strings.ToLower(strings.Join(labels, ".")))
	// One question, and as many answers as there is to say to it.
	out := append([]byte{}, question[:at]...)
	binary.BigEndian.PutUint16(out[2:], 0x8180)
	copy(out[4:header], []byte{0, 1, 0, 0, 0, 0, 0, 0})
	switch {
	case ip == nil:
		out[3] |= 3
	case kind == 1:
		out[7] = 1
		out = binary.BigEndian.AppendUint16(out, pointer)
		out = append(out, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4)
		out = append(out, ip.To4()...)
	}
	return out
}

// lookup finds the address of a name.
func (n *node) lookup(name string) net.IP {
	if strings.HasSuffix(name, ".example.com") {
		return net.ParseIP(address)
	}
	service, ok := strings.CutSuffix(name, ".svc.cluster.local")
	parts := strings.Split(service, ".")
	if !ok || len(parts) != 2 {
		return nil
	}
	out, err := n.kubectl("get", "service", parts[0], "--namespace="+parts[1], "--output=jsonpath={.spec.clusterIP}")
	if err != nil {
		return nil
	}
	return net.ParseIP(out)
}
