package aggregated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/intent/noderequest"
)

func TestAnErrorHasTheReasonByWhichClientsKnowIt(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int32
		reason metav1.StatusReason
	}{
		{noderequest.Fail(http.StatusBadRequest, "no"), 400, metav1.StatusReasonBadRequest},
		{noderequest.Fail(http.StatusUnauthorized, "no"), 401, metav1.StatusReasonUnauthorized},
		{noderequest.Fail(http.StatusForbidden, "no"), 403, metav1.StatusReasonForbidden},
		{noderequest.Fail(http.StatusNotFound, "no"), 404, metav1.StatusReasonNotFound},
		{noderequest.Fail(http.StatusMethodNotAllowed, "no"), 405, metav1.StatusReasonMethodNotAllowed},
		{noderequest.Fail(http.StatusNotAcceptable, "no"), 406, metav1.StatusReasonNotAcceptable},
		{noderequest.Fail(http.StatusConflict, "no"), 409, metav1.StatusReasonConflict},
		{noderequest.Fail(http.StatusUnprocessableEntity, "no"), 422, metav1.StatusReasonInvalid},
		{noderequest.Fail(http.StatusTooManyRequests, "no"), 429, metav1.StatusReasonTooManyRequests},
		{noderequest.Fail(http.StatusServiceUnavailable, "no"), 503, metav1.StatusReasonServiceUnavailable},
		{noderequest.Fail(http.StatusGatewayTimeout, "no"), 504, metav1.StatusReasonTimeout},
		{noderequest.Fail(http.StatusOK, "no"), 502, metav1.StatusReasonInternalError},
		{errors.New("no"), 500, metav1.StatusReasonInternalError},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), 504, metav1.StatusReasonTimeout},
	} {
		w := httptest.NewRecorder()
		Reject(w, c.err)
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Code != c.code || got.Reason != c.reason || int32(w.Code) != c.code || got.Message == "" {
			t.Errorf("%v: %d %+v %v", c.err, w.Code, got, err)
		}
		if hasTime := w.Header().Get("Retry-After") != ""; hasTime != (c.code == http.StatusTooManyRequests) {
			t.Errorf("%v: Retry-After %q", c.err, w.Header().Get("Retry-After"))
		}
	}
}
