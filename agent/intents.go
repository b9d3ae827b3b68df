package agent

import (
	"slices"
	"strings"

	"github.com/skep-dev/skep/intent"
)

// Intents returns the newest accepted intent of every application, tombstones
// included, ordered by UID.
func (a *Agent) Intents() []intent.Opened {
	a.accepted.mu.Lock()
	defer a.accepted.mu.Unlock()
	all := make([]intent.Opened, 0, len(a.accepted.apps))
	for _, app := range a.accepted.apps {
		all = append(all, app.Newest)
	}
	slices.SortFunc(all, func(x, y intent.Opened) int { return strings.Compare(x.Payload().UID, y.Payload().UID) })
	return all
}

// nameOf returns an application's name for the log, or its UID where no intent of it is
// known.
func (a *accepted) nameOf(uid string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if app := a.apps[uid]; app != nil {
		return app.Newest.Payload().Application.String()
	}
	return uid
}
