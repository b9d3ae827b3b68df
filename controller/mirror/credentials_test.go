package mirror

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// crowd is an API server with intents of several applications for each object.
type crowd struct {
	api
	namespaces []string
}

func (c crowd) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for i, namespace := range c.namespaces {
		list.(*v1alpha1.BpfIntentList).Items = append(list.(*v1alpha1.BpfIntentList).Items,
			v1alpha1.BpfIntent{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("app", i), Namespace: namespace}})
	}
	return nil
}

// TestBadCredentialsOfOneApplicationTakeNoObjectFromOthers has many applications name
// one private image, and pull Secrets that do not open it, or a registry that hangs.
func TestBadCredentialsOfOneApplicationTakeNoObjectFromOthers(t *testing.T) {
	hundred := []string{"good"}
	for range 100 {
		hundred = append(hundred, "bad")
	}
	for sentence, c := range map[string]struct {
		namespaces []string
		hang       bool
	}{
		"the first is bad":                     {[]string{"bad", "good"}, false},
		"the last is bad":                      {[]string{"good", "bad"}, false},
		"the registry of another hangs":        {[]string{"bad", "good"}, true},
		"a namespace has a hundred bad ones":   {hundred, false},
		"several namespaces have nothing else": {[]string{"bad", "worse", "worst", "good"}, false},
	} {
		t.Run(sentence, func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					cache := newEmptied("object")
					a := serve(cache, func(ctx context.Context, p intent.Payload) error {
						switch {
						case p.Application.Namespace == "good":
							return cache.Keep(p.ObjectDigest, nil)
						case c.hang:
							<-ctx.Done()
							return ctx.Err()
						}
						return errors.New("unauthorized")
					})
					a.Client = crowd{namespaces: c.namespaces}
					a.Open = func(i *v1alpha1.BpfIntent) (intent.Payload, bool) {
						return intent.Payload{
							UID: i.Name, ObjectDigest: "object", Application: v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: i.Namespace, Name: i.Name},
						}, true
					}
					a.by(t.Context(), "node", "object")
					if got := <-a.answers; got.Code != http.StatusOK {
						t.Errorf("it is answered %d", got.Code)
					}
					synctest.Wait()
					a.holdsNothing(t)
				})
			}
		})
	}
}
