package aggregated

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/intent/noderequest"
)

// reviewTime is how long the API server may take to say whether a user may, and maxAllowed of how many answers are remembered.
const (
	reviewTime = 5 * time.Second
	maxAllowed = 4096
)

// Reviews asks the API server whether users may, by what a server understands of a request: kube-apiserver has authorised it by its
// path. It is safe for concurrent use.
type Reviews struct {
	writer  client.Client
	keep    time.Duration
	allowed *cache.LRUExpireCache
}

// NewReviews returns Reviews that remember that a user may for as long as keep says; zero remembers nothing.
func NewReviews(writer client.Client, keep time.Duration) *Reviews {
	return &Reviews{writer: writer, keep: keep, allowed: cache.NewLRUExpireCache(maxAllowed)}
}

// Check is nil where the user may. The error says which right is needed, and hint how to get it.
func (r *Reviews) Check(ctx context.Context, who user.Info, attributes authorizationv1.ResourceAttributes, hint string) error {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &attributes,
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{}}}
	for key, values := range who.GetExtra() {
		review.Spec.Extra[key] = values
	}
	// Maps have their keys in order.
	asked, err := json.Marshal(review.Spec)
	if err != nil {
		return err
	}
	// What is remembered has one size, however many groups a user has.
	key := sha256.Sum256(asked)
	if _, known := r.allowed.Get(key); known && r.keep > 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	resource := attributes.Resource
	if attributes.Subresource != "" {
		resource += "/" + attributes.Subresource
	}
	if err := r.writer.Create(ctx, review); err != nil {
		ctrl.Log.WithName("aggregated").Error(err, "ask whether a user may", "verb", attributes.Verb, "resource", resource, "group", attributes.Group)
		return noderequest.Fail(http.StatusServiceUnavailable, "the API server cannot be asked whether you may %s %s; try again", attributes.Verb, resource)
	}
	if !review.Status.Allowed {
		where := attributes.Name
		if attributes.Namespace != "" {
			where = attributes.Namespace + "/" + where
		}
		return noderequest.Fail(http.StatusForbidden, "user %s may not %s %s of API group %s for %q: bind a role with this verb and resource, %s", who.GetName(),
			attributes.Verb, resource, attributes.Group, where, hint)
	}
	if r.keep > 0 {
		r.allowed.Add(key, nil, r.keep)
	}
	return nil
}
