package mapreads

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/skep-dev/skep/controller/aggregated"
	"github.com/skep-dev/skep/intent/noderequest"
)

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
		return noderequest.Failure{Code: code, Text: text}
	}
	line, err := json.Marshal(aggregated.StatusOf(code, text))
	if err == nil {
		err = s.line(line)
	}
	if err == nil {
		_ = s.control.Flush()
	}
	return nil
}
