package mapreads

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// failure is an error with its status of HTTP.
type failure struct {
	code int
	text string
}

func (f failure) Error() string { return f.text }

func fail(code int, format string, args ...any) error {
	return failure{code, fmt.Sprintf(format, args...)}
}

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

func statusOf(code int, text string) metav1.Status {
	if code < 400 || code > 599 {
		code = http.StatusBadGateway
	}
	return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Message: text, Reason: reason(code), Code: int32(code)}
}

// reject answers an error.
func reject(w http.ResponseWriter, err error) {
	known := failure{http.StatusInternalServerError, err.Error()}
	_ = errors.As(err, &known)
	status := statusOf(known.code, known.text)
	if status.Code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	writeJSON(w, int(status.Code), status)
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

// takeTime is how long a user may take to read a line.
const takeTime = 10 * time.Second

// stream is an answer to a user.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	// prompt says that each line is sent at once.
	prompt bool
	begun  bool
}

// line sends a value. None keeps the connection in use, so that a user who is gone is noticed.
func (s *stream) line(value json.RawMessage) error {
	if !s.begun {
		if value == nil && !s.prompt {
			return nil
		}
		s.begun = true
		s.w.Header().Set("Content-Type", "application/json")
		s.w.WriteHeader(http.StatusOK)
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(takeTime)); err != nil {
		return err
	}
	if _, err := s.w.Write(append(value, '\n')); err != nil {
		return err
	}
	if !s.prompt {
		return nil
	}
	return s.control.Flush()
}

// flush ends an answer that is whole.
func (s *stream) flush() error {
	if !s.begun {
		// Such as a map without entries.
		s.w.Header().Set("Content-Type", "application/json")
		s.w.WriteHeader(http.StatusOK)
	}
	_ = s.control.Flush()
	return nil
}

// fail ends an answer that is not whole: by its status, or by a last line where it began.
func (s *stream) fail(code int, text string) error {
	if !s.begun {
		return failure{code, text}
	}
	line, err := json.Marshal(statusOf(code, text))
	if err == nil {
		err = s.line(line)
	}
	if err == nil {
		_ = s.control.Flush()
	}
	return nil
}

// resources are those of the API, by which kube-apiserver and kubectl find it.
func apiResources() metav1.APIResourceList {
	verbs := metav1.Verbs{"get", "watch"}
	return metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: Group + "/" + Version,
		APIResources: []metav1.APIResource{
			{Name: "bpfapplications/maps", Kind: "Map", Namespaced: true, Verbs: verbs},
			{Name: "clusterbpfapplications/maps", Kind: "Map", Verbs: verbs},
		},
	}
}

func apiGroup() metav1.APIGroup {
	version := metav1.GroupVersionForDiscovery{GroupVersion: Group + "/" + Version, Version: Version}
	return metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: Group,
		Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
}
