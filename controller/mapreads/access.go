package mapreads

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/mapread"
	"github.com/skep-dev/skep/intent/noderequest"
)

// allowed is nil where the user may read this.
func (s *reads) allowed(ctx context.Context, who user.Info, request mapread.Request) error {
	attributes := authorizationv1.ResourceAttributes{Group: Group, Version: Version, Verb: "get", Resource: "clusterbpfapplications", Subresource: "maps",
		Namespace: request.Application.Namespace, Name: request.Application.Name}
	if request.Operation == mapread.Watch {
		attributes.Verb = "watch"
	}
	if request.Application.Kind == v1alpha1.KindBpfApplication {
		attributes.Resource = "bpfapplications"
	}
	return s.reviews.Check(ctx, who, attributes, "which no role of Kubernetes or Skep has by default")
}

// complete fills in which application it is, and rejects reads of what is another application's or a reader's.
func (s *reads) complete(ctx context.Context, request *mapread.Request) error {
	found, err := s.Intents(ctx, request.Application)
	if err != nil {
		return noderequest.Fail(http.StatusServiceUnavailable, "the intents of application %s cannot be read; try again", request.Application)
	}
	var newest *intent.Payload
	for _, i := range found {
		if !i.Payload.Tombstone && (newest == nil || newest.Serial < i.Payload.Serial) {
			newest = i.Payload
		}
	}
	if newest == nil {
		return noderequest.Fail(http.StatusNotFound, "no %s %s runs: it does not exist, or no version of it was allowed, which its conditions tell",
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
		return noderequest.Fail(http.StatusConflict, "map %s of %s is map %s of application %s (spec.maps.%s.from): read it there, by the right to that application",
			request.Map, request.Application, m.From.Map, m.From.Application, request.Map)
	case request.Operation == mapread.Watch && slices.ContainsFunc(m.Export, consumes):
		return noderequest.Fail(http.StatusConflict, "map %s of %s is exported to a reader that consumes it (spec.maps.%s.export), and two consumers lose records: "+
			"withdraw that grant first", request.Map, request.Application, request.Map)
	}
	return nil
}

// unsureFor is for how long a watch lasts while the API server cannot be asked about it.
const unsureFor = 30 * time.Second

// recheck ends a watch soon after the user may not watch any more, or a reader was granted the records.
func (s *reads) recheck(ctx context.Context, end context.CancelCauseFunc, who user.Info, request mapread.Request) {
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
				err = noderequest.Fail(http.StatusNotFound, "application %s was deleted and made anew", request.Application)
			}
		}
		var known noderequest.Failure
		switch {
		case err == nil:
			sure = time.Now()
		case errors.As(err, &known) && known.Code == http.StatusServiceUnavailable && time.Since(sure) < unsureFor:
		default:
			end(err)
			return
		}
	}
}
