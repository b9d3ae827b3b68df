package mapreads

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
)

// reviewTime is how long the API server may take to say whether a user may.
const reviewTime = 5 * time.Second

// allowed is nil where the user may read this. kube-apiserver has authorised the request by its path; this is what the server
// itself understands of it.
func (s *Server) allowed(ctx context.Context, who user.Info, request mapread.Request) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTime)
	defer cancel()
	attributes := &authorizationv1.ResourceAttributes{Group: Group, Version: Version, Verb: "get", Resource: "clusterbpfapplications", Subresource: "maps",
		Namespace: request.Application.Namespace, Name: request.Application.Name}
	if request.Operation == mapread.Watch {
		attributes.Verb = "watch"
	}
	if request.Application.Kind == v1alpha1.KindBpfApplication {
		attributes.Resource = "bpfapplications"
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: attributes,
		User: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: map[string]authorizationv1.ExtraValue{}}}
	for key, values := range who.GetExtra() {
		review.Spec.Extra[key] = values
	}
	if err := s.Writer.Create(ctx, review); err != nil {
		ctrl.Log.WithName("mapreads").Error(err, "ask whether a user may read maps")
		return fail(http.StatusServiceUnavailable, "the API server cannot be asked whether you may read maps; try again")
	}
	if !review.Status.Allowed {
		return fail(http.StatusForbidden, "user %s may not %s %s/maps of API group %s for application %s: bind a role with this verb and resource, "+
			"which no role of Kubernetes or Skep has by default", who.GetName(), attributes.Verb, attributes.Resource, Group, request.Application)
	}
	return nil
}

// complete fills in which application it is, and rejects reads of what is another application's or a reader's.
func (s *Server) complete(ctx context.Context, request *mapread.Request) error {
	found, err := s.Intents(ctx, request.Application)
	if err != nil {
		return fail(http.StatusServiceUnavailable, "the intents of application %s cannot be read; try again", request.Application)
	}
	var newest *intent.Payload
	for _, i := range found {
		if !i.Payload.Tombstone && (newest == nil || newest.Serial < i.Payload.Serial) {
			newest = i.Payload
		}
	}
	if newest == nil {
		return fail(http.StatusNotFound, "no %s %s runs: it does not exist, or no version of it was allowed, which its conditions tell",
			request.Application.Kind, request.Application)
	}
	request.UID = newest.UID
	// A node may run any of them.
	for _, version := range newest.Versions() {
		if err := isOwn(version.Maps[request.Map], *request); err != nil {
			return err
		}
	}
	return nil
}

// isOwn rejects a map that the application has from another, whose right is another one, and a watch that takes records from a reader.
func isOwn(m v1alpha1.Map, request mapread.Request) error {
	consumes := func(e v1alpha1.MapExport) bool { return e.Access == v1alpha1.MapConsume }
	switch {
	case m.From != nil:
		return fail(http.StatusConflict, "map %s of %s is map %s of application %s (spec.maps.%s.from): read it there, by the right to that application",
			request.Map, request.Application, m.From.Map, m.From.Application, request.Map)
	case request.Operation == mapread.Watch && slices.ContainsFunc(m.Export, consumes):
		return fail(http.StatusConflict, "map %s of %s is exported to a reader that consumes it (spec.maps.%s.export), and two consumers lose records: "+
			"withdraw that grant first", request.Map, request.Application, request.Map)
	}
	return nil
}

// unsureFor is for how long a watch lasts while the API server cannot be asked about it.
const unsureFor = 30 * time.Second

// recheck ends a watch soon after the user may not watch any more, or a reader was granted the records.
func (s *Server) recheck(ctx context.Context, end context.CancelCauseFunc, who user.Info, request mapread.Request) {
	again := time.NewTicker(s.Recheck)
	defer again.Stop()
	for sure := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		err := s.allowed(ctx, who, request)
		if now := request; err == nil {
			if err = s.complete(ctx, &now); err == nil && now.UID != request.UID {
				err = fail(http.StatusNotFound, "application %s was deleted and made anew", request.Application)
			}
		}
		var known failure
		switch {
		case err == nil:
			sure = time.Now()
		case errors.As(err, &known) && known.code == http.StatusServiceUnavailable && time.Since(sure) < unsureFor:
		default:
			end(err)
			return
		}
	}
}
