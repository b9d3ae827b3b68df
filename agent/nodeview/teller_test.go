package nodeview_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent/nodeview"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/intent/noderequest"
	"github.com/skep-dev/skep/intent/viewread"
)

// tells is what a Teller answers about a node.
func tells(t *testing.T, teller *nodeview.Teller, request viewread.Request) (lines []noderequest.Answer) {
	t.Helper()
	request.Header = noderequest.NewHeader("node-1", cmp.Or(request.User, "ann"), time.Now())
	teller.Tell(t.Context(), request, func(a noderequest.Answer) error {
		lines = append(lines, a)
		return nil
	})
	return lines
}

// nodeOf has an application with so many attachments.
func nodeOf(attachments int) view.NodeView {
	app := view.Application{Identity: v1alpha1.Identity{Kind: v1alpha1.KindClusterBpfApplication, Name: "app"}}
	for i := range attachments {
		app.Attachments = append(app.Attachments, view.Attachment{Program: "p", Hook: "xdp", Target: view.Target{Interface: fmt.Sprint("eth", i/2)}})
	}
	return view.NodeView{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Applications: []view.Application{app}}
}

func describing(n view.NodeView, err error) *nodeview.Teller {
	return nodeview.NewTeller(func(context.Context, view.Scope) (view.NodeView, error) { return n, err }, slog.New(slog.DiscardHandler))
}

func TestAttachmentsComeEachOnALineInTheOrderOfTheirNames(t *testing.T) {
	lines := tells(t, describing(nodeOf(40), nil), viewread.Request{Attachments: true})
	last := ""
	for _, line := range lines[:len(lines)-1] {
		var a view.BpfAttachment
		if err := json.Unmarshal(line.Value, &a); err != nil || a.Name <= last || !view.IsOn(a.Name, "node-1") {
			t.Errorf("%v: %s after %s", err, a.Name, last)
		}
		last = a.Name
	}
	if len(lines) != 41 || !lines[40].End {
		t.Errorf("%d lines", len(lines))
	}
}

func TestAttachmentsThatDidNotFitEndTheAnswerByAnError(t *testing.T) {
	n := nodeOf(3)
	n.LeftOut = []string{"interfaces are as of 12:00", "7 attachments" + nodeview.DidNotFit}
	lines := tells(t, describing(n, nil), viewread.Request{Attachments: true})
	if len(lines) != 4 || lines[3].Code != noderequest.TooLarge || lines[3].Error != "some are not shown: 7 attachments did not fit" {
		t.Errorf("%d lines: %+v", len(lines), lines[len(lines)-1])
	}
}

func TestANodeThatIsAskedTooOftenSaysSoAndAnswersOthers(t *testing.T) {
	teller := describing(nodeOf(0), nil)
	asks := func(user string) noderequest.Answer {
		return tells(t, teller, viewread.Request{Header: noderequest.Header{User: user}})[0]
	}
	answered := 0
	for asks("hasty").Code != noderequest.TooMany {
		if answered++; answered == 10_000 {
			t.Fatal("it answers 10,000 requests")
		}
	}
	for range 10_000 {
		asks("hasty")
	}
	if first := asks("system:serviceaccount:team:first"); first.Code != 0 {
		t.Errorf("an account is answered: %+v", first)
	}
	for range 10_000 {
		asks("system:serviceaccount:team:hasty")
	}
	if next := asks("system:serviceaccount:team:next"); next.Code != noderequest.TooMany {
		t.Errorf("another account of the namespace is answered: %+v", next)
	}
	if first := asks("ann"); first.Code != 0 {
		t.Errorf("another user is answered: %+v", first)
	}
	for i := range 10_000 {
		if asks(fmt.Sprint("user-", i)).Code == noderequest.TooMany {
			return
		}
	}
	t.Error("it answers 10,000 users at once")
}

func TestAnErrorOfTheViewerIsTold(t *testing.T) {
	if lines := tells(t, describing(view.NodeView{}, errors.New("the kernel is silent")), viewread.Request{}); len(lines) != 1 ||
		lines[0].Code != noderequest.Inside || lines[0].Error != "the kernel is silent" {
		t.Errorf("%+v", lines)
	}
}
