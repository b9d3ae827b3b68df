package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	remotetransport "github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/skep-dev/skep/image"
)

// unreachableText is all that is said of a registry that could not be reached
// or may not be named, so that nobody learns which of them it is, and what is where
// in the network.
const unreachableText = "registry %s could not be reached or is not allowed; ask your platform team"

// withheld replaces an error of the way to a registry, whose cause goes to report,
// by one whose text does not name the cause. What the registry itself answered is kept.
func withheld(registry string, err error, report func(registry string, cause error) error) error {
	if err == nil || report == nil || answeredBy(registry, err) {
		return err
	}
	cause := report(registry, &remoteError{text: ownPort.ReplaceAllString(describe(err), "")})
	hidden := &remoteError{text: fmt.Sprintf(unreachableText, registry), cause: endOf(err)}
	return image.OfKind(image.ErrUnavailable, image.Withhold(hidden, cause.Error()))
}

// ownPort is the near end of a connection in errors of package net. It differs each time, and one cause would read like many.
var ownPort = regexp.MustCompile(`\S+:\d+->`)

// answeredBy reports whether an error is what a registry said of what it was asked
// for: not what stands in its place, nor where it sent on to, nor how it was reached.
func answeredBy(registry string, err error) bool {
	var status *remotetransport.Error
	if !errors.As(err, &status) {
		return !isNetwork(err) && !errors.Is(err, image.ErrSilent) || image.HasKind(err) && !errors.Is(err, image.ErrUnavailable)
	}
	if status.Request == nil || status.Request.URL == nil {
		return false
	}
	switch at := status.Request.URL; {
	case at.Path == "/v2/":
		return false
	case status.StatusCode == http.StatusUnauthorized, status.StatusCode == http.StatusForbidden:
		return true
	default:
		return strings.EqualFold(at.Host, registry)
	}
}

// remoteError is what a registry or the way to it said, without secrets. It
// keeps no reference to the original error, whose text may hold the query
// string of a presigned URL, but for the context's end.
type remoteError struct {
	text  string
	cause error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.cause }

// Classify turns an error of go-containerregistry into one of this package's
// kinds that says "verb object: cause" and holds no query string, user
// information or response body. An error that already has a kind keeps it. It
// returns nil for nil.
func Classify(verb, object string, err error) error {
	if err == nil {
		return nil
	}
	// Where the HTTP client stands in between, its text has the URL in it.
	var request *url.Error
	if image.HasKind(err) && !errors.As(err, &request) {
		return fmt.Errorf("%s %s: %w", verb, object, err)
	}
	safe := &remoteError{text: fmt.Sprintf("%s %s: %s", verb, object, describe(err)), cause: endOf(err)}
	return image.OfKind(kindOf(err), safe)
}

// endOf is how a request ended before its answer was read, or nil: callers go on
// otherwise after each.
func endOf(err error) (end error) {
	for _, one := range []error{context.Canceled, context.DeadlineExceeded, image.ErrSilent, image.ErrTooLong} {
		if errors.Is(err, one) {
			end = one
		}
	}
	return end
}

// kindOf never answers ErrMalformed: a registry's answer that could not be
// verified says nothing about the digest.
func kindOf(err error) error {
	var status *remotetransport.Error
	if !errors.As(err, &status) {
		return image.ErrUnavailable
	}
	switch status.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return image.ErrUnauthorized
	case http.StatusNotFound, http.StatusGone:
		return image.ErrNotFound
	}
	return image.ErrUnavailable
}

// isNetwork tells failures of the way to the registry from answers that came
// and make no sense.
func isNetwork(err error) bool {
	var request *url.Error
	var network net.Error
	return errors.As(err, &request) || errors.As(err, &network) || image.HasKind(err)
}

// describe renders an error for a person. Of a registry's answer it takes the
// status and the registry's own codes and messages, never the body: object
// stores put access keys and signatures there.
func describe(err error) string {
	var status *remotetransport.Error
	if errors.As(err, &status) {
		parts := []string{fmt.Sprintf("status %d %s", status.StatusCode, http.StatusText(status.StatusCode))}
		for _, d := range status.Errors {
			parts = append(parts, fmt.Sprintf("%s: %s", d.Code, d.Message))
		}
		if status.Request != nil && status.Request.URL != nil {
			parts[0] += " from " + status.Request.URL.Host
		}
		return image.Scrub(strings.Join(parts, "; "))
	}
	return image.Scrub(err.Error())
}
