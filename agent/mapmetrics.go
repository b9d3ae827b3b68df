package agent

import (
	"github.com/skep-dev/skep/agent/queue"
	"github.com/skep-dev/skep/agent/readers/grants"
	"github.com/skep-dev/skep/agent/readers/mapmetrics"
)

// publishMetrics has the metrics of maps read as the newest intents ask for, from the maps of the revisions that run now: a
// metric that is withdrawn waits for no rollout.
func (rec *reconcile) publishMetrics() {
	if rec.env.opts.MapMetrics == nil {
		return
	}
	var all []mapmetrics.Source
	for _, app := range rec.intents.Applications {
		payload := app.Newest.Payload()
		runs, by := rec.look.Revision(payload.UID, app.Status.Revision), app.Intent(app.Status.Revision)
		if runs == nil || by == nil {
			continue
		}
		for name, metrics := range grants.Metrics(payload, by.Payload()) {
			if held := runs.Maps[name]; held != nil {
				all = append(all, mapmetrics.Source{Owner: queue.OwnerOf(payload.UID, payload.Application), Application: payload.Application,
					Map: name, Metrics: metrics, Held: held})
			}
		}
	}
	rec.env.opts.MapMetrics.Publish(all)
}
