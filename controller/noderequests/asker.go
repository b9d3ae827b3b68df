package noderequests

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/text"
)

// Asker asks the agents of nodes.
type Asker struct {
	// Hub has the agents that poll this replica, and Sealer signs requests. Needed.
	Hub    *Hub
	Sealer func() *intent.Sealer
	// Relay asks other replicas for the answer of a node's agent; nil means that there are none.
	Relay func(ctx context.Context, node, id string, envelope []byte) (io.ReadCloser, error)
}

// Ask has the agent of a node answer a request. The error is ErrNotHere where no replica reaches the agent.
func (a *Asker) Ask(ctx context.Context, request noderequest.Request) (io.ReadCloser, error) {
	head := request.Head()
	envelope, err := noderequest.Seal(a.Sealer(), request)
	if err != nil {
		return nil, err
	}
	if a.Relay == nil {
		return a.Hub.Ask(ctx, head.Node, head.ID, envelope, deliverTime)
	}
	answer, err := a.Hub.Ask(ctx, head.Node, head.ID, envelope, passTime)
	if !errors.Is(err, ErrNotHere) {
		return answer, err
	}
	done := a.Hub.relays(head.ID)
	answer, err = a.Relay(ctx, head.Node, head.ID, envelope)
	if done(); err == nil {
		return answer, nil
	}
	ctrl.Log.WithName("noderequests").V(1).Info("no replica reaches the agent", "node", head.Node, "error", err.Error())
	return a.Hub.Ask(ctx, head.Node, head.ID, envelope, deliverTime)
}

// Each calls do with each value of an answer, whose lines have at most so many bytes, until do returns an error, which Each returns.
// A line that only says that the agent is there has no value. An answer that is not whole is a noderequest.Failure.
func Each(answer io.Reader, most int, do func(value json.RawMessage) error) error {
	lines := bufio.NewScanner(answer)
	lines.Buffer(nil, most)
	for lines.Scan() {
		var line noderequest.Answer
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return noderequest.Fail(http.StatusBadGateway, "its agent sends what is no answer")
		}
		switch {
		case line.Error != "":
			return failure(line)
		case line.End:
			return nil
		}
		if err := do(line.Value); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return noderequest.Fail(http.StatusBadGateway, "its agent sends a line of more than %d bytes: the answer ended before it was whole", most)
	}
	return noderequest.Fail(http.StatusBadGateway, "the answer of its agent ended before it was whole")
}

// maxError bounds what an agent says of an error, in bytes.
const maxError = 4 << 10

// failure is the error of an agent, for a terminal. Its status is one that agents have: with another, a client would take the agent for
// the API server, such as that the user is not known.
func failure(of noderequest.Answer) noderequest.Failure {
	switch of.Code {
	case noderequest.NotFound, noderequest.Conflict, noderequest.TooLarge, noderequest.Unprocessable, noderequest.TooMany, noderequest.Inside,
		noderequest.Late:
	default:
		of.Code = http.StatusBadGateway
	}
	return noderequest.Failure{Code: of.Code, Text: text.Line(text.Cut(of.Error, maxError))}
}
