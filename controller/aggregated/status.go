package aggregated

import (
	"encoding/json"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/intent/noderequest"
)

// reasons are what clients of Kubernetes tell errors by.
func reason(code int) metav1.StatusReason {
	switch code {
	case http.StatusBadRequest:
		return metav1.StatusReasonBadRequest
	case http.StatusUnauthorized:
		return metav1.StatusReasonUnauthorized
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusNotFound:
		return metav1.StatusReasonNotFound
	case http.StatusConflict:
		return metav1.StatusReasonConflict
	case http.StatusTooManyRequests:
		return metav1.StatusReasonTooManyRequests
	case http.StatusServiceUnavailable:
		return metav1.StatusReasonServiceUnavailable
	case http.StatusGatewayTimeout:
		return metav1.StatusReasonTimeout
	}
	return metav1.StatusReasonUnknown
}

// retryAfter is when a user who asked too often may try again, in seconds.
const retryAfter = "5"

// StatusOf returns an error as Kubernetes answers it. A code that is no error is 502.
func StatusOf(code int, text string) metav1.Status {
	if code < 400 || code > 599 {
		code = http.StatusBadGateway
	}
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: text, Reason: reason(code), Code: int32(code)}
}

// Reject answers an error, by the status of a noderequest.Failure or as 500.
func Reject(w http.ResponseWriter, err error) {
	known := noderequest.Failure{Code: http.StatusInternalServerError, Text: err.Error()}
	_ = errors.As(err, &known)
	status := StatusOf(known.Code, known.Text)
	if status.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	WriteJSON(w, int(status.Code), status)
}

// WriteJSON answers an object.
func WriteJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
