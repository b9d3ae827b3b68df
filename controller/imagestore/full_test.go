package imagestore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/image"
)

// newAPI is an API server that holds some objects.
func newAPI(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// digestNo is the digest of one of many images.
func digestNo(i int) string { return fmt.Sprintf("sha256:%064x", i) }

// uses is an application of a namespace that uses an image of a repository.
func uses(namespace, repository, digest string) client.Object {
	app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: strings.ReplaceAll(repository, "/", "-") + digest[60:]}}
	app.Spec.Bytecode.Image = "registry.example.com/" + repository + ":v1"
	app.Status.Digest = digest
	return app
}

// imagesOf counts the BpfImages there are, and their bytes.
func imagesOf(t *testing.T, api client.Reader) (count, bytes int) {
	t.Helper()
	var all v1alpha1.BpfImageList
	if err := api.List(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		bytes += held(&all.Items[i])
	}
	return len(all.Items), bytes
}

func TestWhoeverAsksDoesNotFillEtcd(t *testing.T) {
	for sentence, m := range map[string]*Memory{
		"by many images":  {MaxImages: 2},
		"by large images": {MaxBytes: 100},
	} {
		t.Run(sentence, func(t *testing.T) {
			m.Client = newAPI(t)
			name := func(i int) string { return "evidence-" + digestNo(i) }
			for i := range 5 {
				if err := m.Store(name(i), []byte("what a registry said")); err != nil {
					t.Fatal(err)
				}
				if _, known := m.Load(name(i)); !known {
					t.Errorf("what was said last, of %d, is not remembered", i)
				}
				if count, bytes := imagesOf(t, m.Client); m.MaxImages > 0 && count > m.MaxImages || m.MaxBytes > 0 && bytes > m.MaxBytes {
					t.Errorf("%d images of %d bytes are remembered", count, bytes)
				}
			}
			if err := m.Store(name(4), []byte("what it says now")); err != nil {
				t.Fatal(err)
			}
			if data, _ := m.Load(name(4)); string(data) != "what it says now" {
				t.Errorf("the last is not kept up to date: %q", data)
			}
		})
	}
}

// TestANamespaceTakesNoOthersImages has one namespace use as many images as are
// remembered, and others few: theirs are remembered, old or new.
func TestANamespaceTakesNoOthersImages(t *testing.T) {
	const most = 10
	var objects []client.Object
	remembered := func(i int, age time.Duration) {
		objects = append(objects, &v1alpha1.BpfImage{
			ObjectMeta: metav1.ObjectMeta{Name: objectName(digestNo(i)), CreationTimestamp: metav1.NewTime(time.Now().Add(-age))},
			Spec:       v1alpha1.BpfImageSpec{Memory: map[string][]byte{"evidence": []byte("x")}},
		})
	}
	for i := range most - 1 {
		objects = append(objects, uses("greedy", "greedy/app", digestNo(i)))
		remembered(i, time.Minute)
	}
	const old, another, unused = 100, 101, 102
	objects = append(objects, uses("small", "small/app", digestNo(old)), uses("greedy", "small/app", digestNo(old)),
		uses("another", "another/app", digestNo(another)))
	remembered(old, time.Hour)
	m := &Memory{Client: newAPI(t, objects...), MaxImages: most}
	store := func(i int) {
		t.Helper()
		if err := m.Store("evidence-"+digestNo(i), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	known := func(i int) bool {
		var o v1alpha1.BpfImage
		return m.Client.Get(t.Context(), client.ObjectKey{Name: objectName(digestNo(i))}, &o) == nil
	}
	store(another)
	for i := range 3 * most {
		store(unused + i)
	}
	if !known(old) || !known(another) {
		t.Errorf("remembered of a namespace with one image: an old one %v, a new one %v", known(old), known(another))
	}
	if count, _ := imagesOf(t, m.Client); count > most {
		t.Errorf("%d images are remembered", count)
	}
	greedy := 0
	for i := range most - 1 {
		if known(i) {
			greedy++
		}
	}
	if greedy < most/2-2 {
		t.Errorf("%d images of the namespace with most are remembered: what no application uses took more than its share", greedy)
	}
}

// TestACopyElsewhereTakesNoSignatures has an image copied to more repositories than are
// remembered, by a namespace and by somebody who only asks.
func TestACopyElsewhereTakesNoSignatures(t *testing.T) {
	digest := digestNo(1)
	of := func(repository string) string {
		return "signatures." + repositoryOf(image.Resolved{Registry: "registry.example.com", Repository: repository}) + "-" + digest
	}
	objects := []client.Object{uses("small", "small/app", digest)}
	copies := make([]string, 3*maxKept)
	for i := range copies {
		copies[i] = fmt.Sprint("greedy/app", i)
		if i%2 == 0 {
			objects = append(objects, uses("greedy", copies[i], digest))
		}
	}
	m := &Memory{Client: newAPI(t, objects...)}
	for _, repository := range append([]string{"small/app"}, copies...) {
		if err := m.Store(of(repository), []byte(repository)); err != nil {
			t.Fatal(err)
		}
		if _, known := m.Load(of(repository)); !known {
			t.Errorf("what was said of %s is not remembered", repository)
		}
	}
	if said, _ := m.Load(of("small/app")); string(said) != "small/app" {
		t.Errorf("the copies took the signatures of the first: %q", said)
	}
}
