package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxcd/pkg/runtime/conditions"
	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/rules"
	"github.com/skep-dev/skep/test/harness/command"
)

// BenchmarkWebhook asks the webhook about changes of a thousand applications
// that it knows, each another one, by two clients at once, in the API server's own words and past
// the API server. It reports what one answer takes: the median, what one of a hundred
// exceeds, and the processor time of this process and its workers, in which that of the
// clients is, and what of it clients and a server that answers without a look take. An
// image that is named by a tag costs one request to its registry, which is on this
// machine. What is asked again is what the webhook was asked before, as by whoever
// applies a repository every few minutes.
func BenchmarkWebhook(b *testing.B) {
	for _, named := range []string{"digest", "tag", "digest/rules=20", "digest/rules=20/again", "digest/rules=20-of-the-namespace"} {
		b.Run("by="+named, func(b *testing.B) {
			w := newWorld(b)
			spec := v1alpha1.BpfPolicySpec{
				Rego: "package skep.policy\n\n" + strings.Join(rules.Deny(), "\n"), Match: &v1alpha1.PolicyMatch{Namespaces: []string{w.namespace}},
			}
			switch named {
			case "digest/rules=20", "digest/rules=20/again":
				w.standing(b, &v1alpha1.ClusterBpfPolicy{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Spec: v1alpha1.ClusterBpfPolicySpec{BpfPolicySpec: spec}})
			case "digest/rules=20-of-the-namespace":
				spec.Match = nil
				w.standing(b, &v1alpha1.BpfPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "rules"}, Spec: spec})
			}
			image := w.signed()
			if named == "tag" {
				image, _ = w.Push("tagged:v1", append(programs.Object("xdp_count"), w.namespace...), w.signer)
			}
			w.answers(b, image, strings.HasSuffix(named, "/again"))
		})
	}
}

// standing makes a policy, and waits until it is active.
func (w *world) standing(b *testing.B, p interface {
	client.Object
	conditions.Getter
}) {
	w.create(admin, p)
	b.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(b.Context()), p) })
	w.until(func() error {
		if err := admin.Get(b.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if !conditions.IsTrue(p, v1alpha1.ConditionReady) {
			return fmt.Errorf("policy is not ready: %+v", p.GetConditions())
		}
		return nil
	})
}

// answers measures answers about applications of an image, where again is set to what was
// asked before.
func (w *world) answers(b *testing.B, image string, again bool) {
	reviews := make([][]byte, 1000)
	for i := range reviews {
		app := w.app(fmt.Sprintf("app-%d", i), image)
		w.create(admin, app)
		reviews[i] = review(b, app)
	}
	b.Cleanup(func() {
		_ = admin.DeleteAllOf(context.WithoutCancel(b.Context()), &v1alpha1.BpfApplication{}, client.InNamespace(w.namespace))
	})
	asks := asking{reviews: reviews, url: called(b), again: again}
	// Two rounds make it warm.
	for range 2 {
		if _, err := asks.round(); err != nil {
			b.Fatal(err)
		}
	}
	atRest(b)
	var took []time.Duration
	before := command.CPUOfSelf(b)
	for b.Loop() {
		round, err := asks.round()
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, round...)
	}
	cpu := command.CPUOfSelf(b) - before
	slices.Sort(took)
	b.ReportMetric(cpu.Seconds()*1e3/float64(len(took)), "ms-cpu/answer")
	b.ReportMetric(w.unseen(b, reviews).Seconds()*1e3, "ms-cpu/unseen")
	b.ReportMetric(took[len(took)/2].Seconds()*1e3, "ms/p50")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1e3, "ms/p99")
	b.ReportMetric(0, "ns/op")
}

// unseen measures the processor time of an answer that is given without a look at what is
// asked: that of the clients, and of HTTP and TLS on both sides.
func (w *world) unseen(b *testing.B, reviews [][]byte) time.Duration {
	allowed := []byte(`{"response":{"allowed":true}}`)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write(allowed)
	}))
	defer server.Close()
	asks := asking{reviews: reviews, url: server.URL}
	before := command.CPUOfSelf(b)
	const rounds = 5
	answers := 0
	for range rounds {
		round, err := asks.round()
		if err != nil {
			b.Fatal(err)
		}
		answers += len(round)
	}
	return (command.CPUOfSelf(b) - before) / time.Duration(answers)
}

// asking asks about each of its reviews, and of each as nobody has asked before, unless
// it asks again.
type asking struct {
	reviews [][]byte
	url     string
	again   bool
	asked   atomic.Int64
}

// round has two clients ask every review, and returns what each answer took.
func (a *asking) round() ([]time.Duration, error) {
	took := make([][]time.Duration, 2)
	var clients errgroup.Group
	for c := range took {
		clients.Go(func() error {
			one := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
			defer one.CloseIdleConnections()
			for i := range a.reviews {
				review := a.reviews[(i+c*len(a.reviews)/len(took))%len(a.reviews)]
				if !a.again {
					review = bytes.Replace(review, []byte(somewhere), fmt.Appendf(nil, "n%010d", a.asked.Add(1)), 1)
				}
				began := time.Now()
				if err := ask(&one, a.url, review); err != nil {
					return err
				}
				took[c] = append(took[c], time.Since(began))
			}
			return nil
		})
	}
	err := clients.Wait()
	return slices.Concat(took...), err
}

// atRest waits until this process computes next to nothing: until the applications are
// sealed, and nothing that follows from it is left to do.
func atRest(b *testing.B) {
	b.Helper()
	const span, most = time.Second, 50 * time.Millisecond
	tick := time.NewTicker(span)
	defer tick.Stop()
	for before := command.CPUOfSelf(b); ; {
		<-tick.C
		now := command.CPUOfSelf(b)
		if now-before < most {
			return
		}
		before = now
	}
}

// somewhere stands for the interface that is chosen.
const somewhere = "n0000000000"

// review is what an API server asks when another interface is chosen.
func review(b testing.TB, app *v1alpha1.BpfApplication) []byte {
	b.Helper()
	app.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(v1alpha1.KindBpfApplication))
	changed := app.DeepCopy()
	changed.Annotations = map[string]string{v1alpha1.AnnotationRequester: `{"username":"admin","groups":[]}`}
	changed.Spec.Programs[0].Attach[0].Interfaces.Names = []string{somewhere}
	raw := func(o any) runtime.RawExtension {
		body, err := json.Marshal(o)
		if err != nil {
			b.Fatal(err)
		}
		return runtime.RawExtension{Raw: body}
	}
	resource := metav1.GroupVersionResource{Group: v1alpha1.Group, Version: v1alpha1.Version, Resource: "bpfapplications"}
	kind := metav1.GroupVersionKind{Group: v1alpha1.Group, Version: v1alpha1.Version, Kind: v1alpha1.KindBpfApplication}
	return raw(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: types.UID(app.Name), Kind: kind, Resource: resource, RequestKind: &kind, RequestResource: &resource,
			Name: app.Name, Namespace: app.Namespace, Operation: admissionv1.Update,
			UserInfo: authenticationv1.UserInfo{Username: "admin"}, Object: raw(changed), OldObject: raw(app),
		},
	}).Raw
}

// ask sends a review and expects that it is allowed.
func ask(c *http.Client, url string, review []byte) error {
	response, err := c.Post(url, "application/json", bytes.NewReader(review))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Response == nil || !answer.Response.Allowed {
		return fmt.Errorf("refused: %+v", answer.Response)
	}
	return nil
}
