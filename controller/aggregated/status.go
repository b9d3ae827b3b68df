package aggregated

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skep-dev/skep/intent/noderequest"
)

// retryAfter is when a user who asked too often may try again, in seconds.
const retryAfter = "5"

// StatusOf returns an error as Kubernetes answers it. A code that is no error is 502.
func StatusOf(code int, text string) metav1.Status {
	if code < 400 || code > 599 {
		code = http.StatusBadGateway
	}
	known := apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false)
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: text, Reason: known.ErrStatus.Reason, Code: int32(code)}
}

// Reject answers an error, by the status of a noderequest.Failure, or as 504 or 500.
func Reject(w http.ResponseWriter, err error) {
	known := noderequest.Failure{Code: http.StatusInternalServerError, Text: err.Error()}
	if errors.Is(err, context.DeadlineExceeded) {
		known = noderequest.Failure{Code: http.StatusGatewayTimeout, Text: "other requests had the places to ask nodes for too long; try again, or ask for one node"}
	}
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
