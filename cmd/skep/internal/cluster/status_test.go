package cluster

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
)

// of is the path of an object of Skep's API.
func of(parts ...string) string { return "/apis/skep.dev/v1alpha1/" + strings.Join(parts, "/") }

// condition is a part of a status.
func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

// app is an application as the API server has it.
func app(namespace, name string, all ...metav1.Condition) stored {
	s := stored{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid-of-app"}}
	s.Spec.Bytecode.Image = "r.example.com/" + name + ":v1"
	s.Status = v1alpha1.BpfApplicationStatus{Conditions: all, Digest: "sha256:" + strings.Repeat("ab", 32), Signers: []string{"release"},
		Nodes: &v1alpha1.NodesStatus{Summary: "3/3", Selected: 3, Loaded: 3}}
	return s
}

// ready and denied are applications that run and that do not.
func ready(namespace, name string) stored {
	return app(namespace, name, condition(v1alpha1.ConditionReady, metav1.ConditionTrue, "Succeeded", "it runs"))
}

var why = policies.Reason{Rule: "front/priority", Path: "spec.programs[0].attach[0].priority",
	Message: "hello asks for priority 10; places before 100 are for firewalls",
	Fix:     "give it a priority of 100 (or more)"}

func denied(namespace, name string) stored {
	sentence := gate.Sentence(why)
	return app(namespace, name, condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied", sentence),
		condition(v1alpha1.ConditionAllowed, metav1.ConditionFalse, "Denied", sentence))
}

// certificate is an authority that ends then, in PEM.
func certificate(t testing.TB, end time.Time) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "skep"}, NotAfter: end, IsCA: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// trusted is a public key in PEM, the same each time.
func trusted(t testing.TB) string {
	t.Helper()
	public := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize)).Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// conditionedAs is a policy or a signer.
func conditionedAs(name string, is metav1.Condition) map[string]any {
	return map[string]any{"metadata": map[string]any{"name": name}, "status": map[string]any{"conditions": []any{is}}}
}

// installed is a cluster with Skep in namespace bpf, and two applications.
func installed(t testing.TB) *fake {
	t.Helper()
	type m = map[string]any
	end := time.Now().Add(400*24*time.Hour + time.Hour)
	return &fake{forbidden: map[string]bool{}, objects: map[string]any{
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/skep": m{"webhooks": []any{m{"name": "validate.skep.dev",
			"clientConfig": m{"caBundle": certificate(t, end), "service": m{"namespace": "bpf", "name": "skep-webhook"}}}}},
		"/apis/apps/v1/namespaces/bpf/deployments/skep-controller": m{"spec": m{"replicas": 2}, "status": m{"readyReplicas": 2}},
		"/apis/apps/v1/namespaces/bpf/daemonsets/skep-agent":       m{"status": m{"desiredNumberScheduled": 3, "numberReady": 3}},
		"/apis/coordination.k8s.io/v1/namespaces/bpf/leases/skep-controller": m{"spec": m{"holderIdentity": "skep-controller-5f_d2c1", "leaseDurationSeconds": 60,
			"renewTime": metav1.NewMicroTime(time.Now())}},
		"/api/v1/namespaces/bpf/configmaps/skep-trust": m{"data": m{"trust.pem": trusted(t)}},
		of("bpfnodes"):                                []any{[]any{"a", "6.18", "v0.1.0"}, []any{"b", "6.12", "v0.1.0"}, []any{"c", "6.1", "v0.0.9"}},
		of("clusterbpfpolicies"):                      []any{conditionedAs("front", condition("Ready", "False", "Invalid", "it is broken"))},
		of("bpfsigners"):                              []any{conditionedAs("release", condition("Ready", "True", "Succeeded", ""))},
		of("clusterbpfapplications"):                  []any{ready("", "firewall")},
		of("bpfapplications"):                         []any{denied("team-a", "hello"), ready("team-b", "other")},
		of("namespaces", "team-a", "bpfapplications"): []any{denied("team-a", "hello")},
	}}
}

// printed is a status as people read it, without what changes each second.
func printed(t *testing.T, c *Client, names ...string) string {
	t.Helper()
	return printedAs(t, "text", c, names...)
}

func printedAs(t *testing.T, format string, c *Client, names ...string) string {
	t.Helper()
	s, err := c.Status(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := PrintStatus(&out, format, s); err != nil {
		t.Fatal(err)
	}
	text, date := out.String(), time.Now().Add(400*24*time.Hour+time.Hour).UTC().Format("2006-01-02")
	if _, after, found := strings.Cut(text, date+"T"); found {
		text = strings.Replace(text, date+"T"+after[:len("15:04:05Z")], "DATE", 1)
	}
	for _, ago := range []string{"0s ago", "1s ago", "2s ago", "3s ago", "4s ago", "5s ago"} {
		text = strings.Replace(text, ago, "AGO", 1)
	}
	return text
}

const applicationsOfAll = `
APPLICATION   READY  DIGEST                                                                   SIGNERS  NODES  REASON
firewall      True   sha256:abababababababababababababababababababababababababababababababab  release  3/3    
team-a/hello  False  sha256:abababababababababababababababababababababababababababababababab  release  3/3    Denied
team-b/other  True   sha256:abababababababababababababababababababababababababababababababab  release  3/3    
`

const whyHello = `
team-a/hello
  denied  front/priority at spec.programs[0].attach[0].priority
          hello asks for priority 10; places before 100 are for firewalls
          fix: give it a priority of 100 (or more)
`

func TestTheStatusOfAClusterBeginsWithSkepItself(t *testing.T) {
	want := `cluster kind-a, context admin@a
controller         OK       2 of 2 ready; leader skep-controller-5f, which renewed the lease AGO
webhook            OK       its certificate authority is valid until DATE, for 400d
agents             OK       3 of 3 ready; 3 report: v0.0.9 on 1, v0.1.0 on 2
trust              OK       keys fe812c12f3ab4ce6
policies           Warning  1, not ready: front (Invalid)
signers            OK       1, all ready
sources            OK       none: the API cueartifacts is not installed
registries         OK       none is out of reach
unload protection  OK       holds nothing back
` + applicationsOfAll + whyHello
	got := printed(t, installed(t).client(t, false))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhatACallerMayNotReadIsUnknown, with the right that is missing: an edit user of one namespace sees that one, and nothing of others.
func TestWhatACallerMayNotReadIsUnknown(t *testing.T) {
	f := installed(t)
	for path := range f.objects {
		f.forbidden[path] = path != of("namespaces", "team-a", "bpfapplications")
	}
	for _, path := range []string{"/apis/apps/v1/namespaces/skep-system/deployments/skep-controller", of("cueartifacts"),
		"/apis/coordination.k8s.io/v1/namespaces/skep-system/leases/skep-controller", "/api/v1/namespaces/skep-system/configmaps/skep-trust",
		"/api/v1/namespaces/skep-system/events"} {
		f.forbidden[path] = true
	}
	shown := `unload protection  OK       holds nothing back, of what is shown
applications       Unknown  some are not shown: it needs the right to list clusterbpfapplications.skep.dev
applications       Unknown  some are not shown: it needs the right to list bpfapplications.skep.dev in every namespace
`
	want := `cluster kind-a, context admin@a
8 parts of Skep are not shown: they need rights of an administrator; -o wide names each
` + shown + `
APPLICATION   READY  DIGEST                                                                   SIGNERS  NODES  REASON
team-a/hello  False  sha256:abababababababababababababababababababababababababababababababab  release  3/3    Denied
` + whyHello
	if diff := cmp.Diff(want, printed(t, f.client(t, false))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	const unknown = "Unknown  unknown: it needs the right to "
	want = `cluster kind-a, context admin@a
controller         ` + unknown + `get deployments.apps skep-controller in namespace skep-system; ` +
		`leader unknown: it needs the right to get leases.coordination.k8s.io skep-controller in namespace skep-system
webhook            ` + unknown + `get validatingwebhookconfigurations.admissionregistration.k8s.io skep
agents             ` + unknown + `list bpfnodes.skep.dev
trust              ` + unknown + `get configmaps skep-trust in namespace skep-system
policies           ` + unknown + `list clusterbpfpolicies.skep.dev
signers            ` + unknown + `list bpfsigners.skep.dev
sources            ` + unknown + `list cueartifacts.skep.dev
registries         ` + unknown + `list events in namespace skep-system
` + shown
	if got := printedAs(t, "wide", f.client(t, false)); !strings.HasPrefix(got, want) {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}

	t.Log("what is known of a part is shown, and a single right is named")
	f.forbidden = map[string]bool{of("bpfnodes"): true, of("bpfsigners"): true}
	got := printed(t, f.client(t, false))
	for _, want := range []string{"\nagents             Unknown  3 of 3 ready; unknown: it needs",
		"\nsigners            " + unknown + "list bpfsigners.skep.dev\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

// TestTheStatusNamesWhyARegistryIsAway, and how many applications wait for it. A cause that is past is left out.
func TestTheStatusNamesWhyARegistryIsAway(t *testing.T) {
	const unknown = "r.example.com: x509: certificate signed by unknown authority"
	away := func(name, registry string) stored {
		return app("team-a", name, condition(v1alpha1.ConditionVerified, metav1.ConditionUnknown, "EvaluationFailed", "resolve image of it: resolve "+registry+
			"/a:v1: registry "+registry+" could not be reached or is not allowed; ask your platform team"))
	}
	event := func(message string, ago time.Duration) map[string]any {
		return map[string]any{"reason": v1alpha1.ReasonRegistryUnreachable, "message": message, "eventTime": metav1.NewMicroTime(time.Now().Add(-ago))}
	}
	for sentence, c := range map[string]struct {
		applications, events []any
		want                 string
	}{
		"two wait": {[]any{away("a", "r.example.com"), away("b", "r.example.com")}, []any{event(unknown, 40*time.Minute)},
			"Warning  " + unknown + " (applications that wait: 2)"},
		"the newest cause counts": {[]any{away("a", "r.example.com")}, []any{event(unknown, time.Minute), event("r.example.com: refused", time.Hour)},
			"Warning  " + unknown + " (applications that wait: 1)"},
		"another one waits": {[]any{away("a", "s.example.com")}, []any{event(unknown, time.Hour)}, "OK       none is out of reach"},
		"somebody tried it": {nil, []any{event(unknown, time.Minute)}, "Warning  " + unknown},
		"it is past":        {nil, []any{event(unknown, 30*time.Minute)}, "OK       none is out of reach"},
	} {
		t.Run(sentence, func(t *testing.T) {
			f := installed(t)
			f.objects[of("bpfapplications")], f.objects["/api/v1/namespaces/bpf/events"] = c.applications, c.events
			if got := printed(t, f.client(t, false)); !strings.Contains(got, "\nregistries         "+c.want+"\n") {
				t.Errorf("want %q in\n%s", c.want, got)
			}
		})
	}
}

func TestANamespaceThatIsChosenIsTheOnlyOneShown(t *testing.T) {
	got := printed(t, installed(t).client(t, true))
	if strings.Contains(got, "firewall ") || strings.Contains(got, "team-b") || !strings.HasSuffix(got, whyHello) {
		t.Errorf("it says:\n%s", got)
	}
	if got := printed(t, installed(t).client(t, false), "firewall"); strings.Contains(got, "team-") || !strings.Contains(got, "\nfirewall ") {
		t.Errorf("of one application it says:\n%s", got)
	}
	for _, name := range []string{"hello", "team-a/hello"} {
		if got := printed(t, installed(t).client(t, true), name); !strings.Contains(got, "\nteam-a/hello ") {
			t.Errorf("of %s in a namespace it says:\n%s", name, got)
		}
	}
	_, err := installed(t).client(t, false).Status(t.Context(), []string{"nothing"})
	if err == nil || !strings.Contains(err.Error(), "show status of nothing: there is no") {
		t.Errorf("of none it says %v", err)
	}
}

func TestUnloadProtectionIsSaidWithWhatConfirms(t *testing.T) {
	f := installed(t)
	var all []any
	for i := range 5 {
		all = append(all, app("", fmt.Sprintf("app-%d", i), condition(v1alpha1.ConditionReady, metav1.ConditionFalse, "Denied",
			"front/x: no; unload protection holds it; to let it go, annotate any ClusterBpfPolicy or BpfSigner with skep.dev/confirm=sha256:12")))
	}
	f.objects[of("clusterbpfapplications")] = all
	want := "\nunload protection  Warning  keeps app-0, app-1, app-2, and 2 more; to unload, annotate any ClusterBpfPolicy or BpfSigner with " +
		"skep.dev/confirm=sha256:12\n"
	if got := printed(t, f.client(t, false)); !strings.Contains(got, want) {
		t.Errorf("it says:\n%s\nwant %q in it", got, want)
	}
}

func TestTheStatusOfAClusterHasStableKeys(t *testing.T) {
	s, err := installed(t).client(t, false).Status(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := PrintStatus(&out, "json", s); err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		t.Fatal(err)
	}
	keys := sorted(all)
	for _, one := range []any{all["health"].([]any)[0], all["applications"].([]any)[1], all["applications"].([]any)[1].(map[string]any)["denied"].([]any)[0]} {
		keys = append(keys, sorted(one.(map[string]any))...)
	}
	want := []string{"applications", "cluster", "health", "message", "name", "state", "denied", "image", "kind", "name", "namespace", "status", "fix", "message",
		"path", "rule"}
	if !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, want %q", keys, want)
	}
}

// TestACertificateThatEndsIsWarnedOf two weeks before.
func TestACertificateThatEndsIsWarnedOf(t *testing.T) {
	for in, want := range map[time.Duration]string{time.Hour: Warning, 13 * 24 * time.Hour: Warning, 15 * 24 * time.Hour: OK, -time.Hour: Warning} {
		f := installed(t)
		hooks := f.objects["/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/skep"].(map[string]any)["webhooks"].([]any)[0].(map[string]any)
		hooks["clientConfig"].(map[string]any)["caBundle"] = certificate(t, time.Now().Add(in))
		s, err := f.client(t, false).Status(t.Context(), nil)
		if err != nil || s.Health[1].State != want {
			t.Errorf("%s before its end: %v, %+v, want %s", in, err, s.Health[1], want)
		}
	}
}

// TestReasonsAreReadAsTheyWereWritten by gate.Sentence.
func TestReasonsAreReadAsTheyWereWritten(t *testing.T) {
	all := []policies.Reason{
		{Rule: "baseline/signed", Path: "spec.bytecode.image", Message: "no known signer signed r/x", Fix: "sign it (or have an admin add its signer (BpfSigner))"},
		why,
		{Rule: "team-a/own/rule", Message: "no: never (ever); not at all"},
	}
	var sentences []string
	for _, r := range all {
		sentences = append(sentences, gate.Sentence(r))
	}
	if diff := cmp.Diff(all, reasons(strings.Join(sentences, "; "))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := reasons("the registry does not answer"); got != nil {
		t.Errorf("of what is no denial it reads %v", got)
	}
}

// TestAThousandApplicationsAreReadByPages of a bounded number of requests.
func TestAThousandApplicationsAreReadByPages(t *testing.T) {
	f := installed(t)
	f.scale(1000, 1200)
	s, err := f.client(t, false).Status(t.Context(), nil)
	if err != nil || len(s.Applications) != 1001 {
		t.Fatalf("%v, %d applications", err, len(s.Applications))
	}
	pages := map[string]int{}
	for _, r := range f.requests {
		path, _, _ := strings.Cut(r, "?")
		pages[path]++
	}
	if pages[of("bpfapplications")] != 2 || pages[of("bpfnodes")] != 3 || len(f.requests) > 16 {
		t.Errorf("%d requests: %q", len(f.requests), f.requests)
	}
}

// scale has a fake have so many applications and nodes.
func (f *fake) scale(applications, nodes int) {
	var apps, reports []any
	for i := range applications {
		apps = append(apps, ready(fmt.Sprintf("team-%d", i%50), fmt.Sprintf("app-%d", i)))
	}
	for i := range nodes {
		reports = append(reports, []any{fmt.Sprintf("node-%d", i), "6.18", "v0.1.0"})
	}
	f.objects[of("bpfapplications")], f.objects[of("bpfnodes")] = apps, reports
}

// BenchmarkStatus of a thousand applications and nodes, with its printing; the server is in the same process.
func BenchmarkStatus(b *testing.B) {
	f := installed(b)
	f.scale(1000, 1000)
	c := f.client(b, false)
	for b.Loop() {
		s, err := c.Status(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := PrintStatus(&bytes.Buffer{}, "text", s); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(f.requests))/float64(b.N), "requests/op")
}
