package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// recently is how long an event about a registry is shown that no application waits for: somebody may try again.
const recently = 10 * time.Minute

// registries names those that the controller could not reach, and why: applications of namespaces do not name the cause.
func (c *Client) registries(ctx context.Context, namespace string, all []Application) Part {
	o := object{namespace: namespace, resource: "events", query: url.Values{"fieldSelector": {"reason=" + v1alpha1.ReasonRegistryUnreachable}}}
	events, err := list[event](ctx, c, o)
	if isAbsent(err) {
		err = nil
	}
	return part("registries", o, err, func() (string, string) {
		newest := map[string]Event{}
		for _, e := range events {
			seen := e.seen()
			registry, _, _ := strings.Cut(seen.Message, ": ")
			if known, is := newest[registry]; !is || known.Time.Before(&seen.Time) {
				newest[registry] = seen
			}
		}
		var away []string
		for _, registry := range slices.Sorted(maps.Keys(newest)) {
			waiting, seen := waitingFor(registry, all), newest[registry]
			switch {
			case waiting > 0:
				away = append(away, fmt.Sprintf("%s (applications that wait: %d)", seen.Message, waiting))
			case time.Since(seen.Time.Time) < recently:
				away = append(away, seen.Message)
			}
		}
		if len(away) > 0 {
			return Warning, first(away)
		}
		return OK, "none is out of reach"
	})
}

// waitingFor counts the applications that are not evaluated since a registry could not be reached.
func waitingFor(registry string, all []Application) int {
	count := 0
	for _, a := range all {
		if strings.Contains(a.condition(v1alpha1.ConditionVerified).Message, "registry "+registry+" could not be reached") {
			count++
		}
	}
	return count
}
