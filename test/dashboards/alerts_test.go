package dashboards

import (
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/template"
	"go.yaml.in/yaml/v3"
)

// scenario is what an alert is about: series as promtool writes them, a value each minute.
type scenario struct {
	Series map[string]string
	// Fires are the labels that it fires with, one set each.
	Fires []map[string]string
	// Quiet are values of the same series with which it does not fire.
	Quiet map[string]string
}

// alerts are those of the chart, by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(files, "rules", "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("the rules are %v, %v", paths, err)
	}
	all := map[string]rulefmt.Rule{}
	for _, path := range paths {
		groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, syntax(), slog.New(slog.DiscardHandler))
		for _, err := range errs {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			for _, rule := range g.Rules {
				if _, twice := all[rule.Alert]; twice || rule.Alert == "" {
					t.Errorf("%s: the alert %q is there twice, or no alert", path, rule.Alert)
				}
				all[rule.Alert] = rule
			}
		}
	}
	return all
}

// scenarios are those of scenarios.yaml, by the name of the alert.
func scenarios(t *testing.T) (all map[string]scenario) {
	t.Helper()
	body, err := os.ReadFile("scenarios.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(body, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// play makes the series of a scenario, and returns how long they last.
func play(t *testing.T, of map[string]string) (s store, until time.Duration) {
	t.Helper()
	s = store{}
	for name, values := range of {
		l, sequence, err := syntax().ParseSeriesDesc(name + " " + values)
		if err != nil {
			t.Fatal(err)
		}
		for i, value := range sequence {
			at := time.Duration(i) * interval
			if !value.Omitted {
				s.add(l, at, value.Value)
			}
			until = max(until, at)
		}
	}
	return s, until
}

// firing evaluates an alert once an interval, and returns for what it fires at the end: what its expression has yielded all the time that
// the alert waits, and what it yielded before less than the time that the alert stays.
func firing(t *testing.T, rule rulefmt.Rule, s store, until time.Duration) (fires promql.Vector) {
	t.Helper()
	type state struct {
		promql.Sample
		since, last time.Duration
		fires       bool
	}
	states := map[string]*state{}
	for at := time.Duration(0); at <= until; at += interval {
		active, err := s.ask(t.Context(), rule.Expr, at)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range active {
			key := one.Metric.String()
			now, found := states[key]
			if !found {
				now = &state{since: at}
				states[key] = now
			}
			now.Sample, now.last = one, at
			now.fires = now.fires || at-now.since >= time.Duration(rule.For)
		}
		maps.DeleteFunc(states, func(_ string, s *state) bool {
			return s.last < at && !(s.fires && at-s.last < time.Duration(rule.KeepFiringFor))
		})
	}
	for _, key := range slices.Sorted(maps.Keys(states)) {
		if states[key].fires {
			fires = append(fires, states[key].Sample)
		}
	}
	return fires
}

// TestNoAlertEndsWithARestart: the series of a binary that restarts are away for a scrape or two, which ends no alert about a state. Alerts
// on rates look further back, and whether a target is up is not said by the binary.
func TestNoAlertEndsWithARestart(t *testing.T) {
	scenarios, looksBack := scenarios(t), regexp.MustCompile(`increase\(|rate\(|\bup\{`)
	for name, rule := range alerts(t) {
		if looksBack.MatchString(rule.Expr) {
			continue
		}
		s, until := play(t, scenarios[name].Series)
		for _, one := range s {
			last := one.samples[len(one.samples)-1].F()
			s.add(one.labels, until+interval, math.Float64frombits(value.StaleNaN))
			s.add(one.labels, until+3*interval, last)
		}
		if len(firing(t, rule, s, until)) == 0 || len(firing(t, rule, s, until+3*interval)) == 0 {
			t.Errorf("%s fires before a restart for\n%s\nand afterwards for\n%s", name, described(firing(t, rule, s, until)),
				described(firing(t, rule, s, until+3*interval)))
		}
	}
}

func TestEveryAlertCanFire(t *testing.T) {
	all, _ := scraped(t, "healthy", "story")
	told, rules := scenarios(t), alerts(t)
	for name := range told {
		if _, found := rules[name]; !found {
			t.Errorf("there is a scenario for %s, and no alert", name)
		}
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			lacks, err := all.lacks(rule.Expr)
			if err != nil {
				t.Fatal(err)
			}
			for _, lack := range lacks {
				t.Errorf("%s: %s", rule.Expr, lack)
			}
			s, until := play(t, told[name].Series)
			for _, one := range s {
				one.labels.Range(func(l labels.Label) {
					metric := labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, one.labels.Get(model.MetricNameLabel))
					if len(all.matching(metric, labels.MustNewMatcher(labels.MatchNotEqual, l.Name, ""))) == 0 {
						t.Errorf("the scenario has %s, and no scrape has such a series with the label %s", one.labels, l.Name)
					}
				})
			}
			fires := firing(t, rule, s, until)
			var got []map[string]string
			for _, one := range fires {
				got = append(got, one.Metric.Map())
				expands(t, rule, one)
			}
			if !slices.EqualFunc(got, told[name].Fires, maps.Equal) || len(got) == 0 {
				t.Errorf("it fires for\n%s\nwant %v", described(fires), told[name].Fires)
			}
			if quiet, until := play(t, told[name].Quiet); len(quiet) > 0 {
				if fires := firing(t, rule, quiet, until); len(fires) > 0 {
					t.Errorf("it fires for what is to leave it quiet:\n%s", described(fires))
				}
			}
		})
	}
}

// expands fills in the annotations of an alert that fires.
func expands(t *testing.T, rule rulefmt.Rule, one promql.Sample) {
	t.Helper()
	for name, text := range rule.Annotations {
		const before = "{{$labels := .Labels}}{{$externalLabels := .ExternalLabels}}{{$externalURL := .ExternalURL}}{{$value := .Value}}"
		data := template.AlertTemplateData(one.Metric.Map(), nil, "", one)
		got, err := template.NewTemplateExpander(t.Context(), before+text, rule.Alert, data, 0, nil, nil, []string{"missingkey=error"}).Expand()
		if err != nil || strings.Contains(got, "<no value>") || strings.TrimSpace(got) == "" {
			t.Errorf("%s is %q: %v", name, got, err)
		}
	}
}

func TestNoAlertFiresWhileAllIsWell(t *testing.T) {
	healthy, until := scraped(t, "healthy")
	for name, rule := range alerts(t) {
		active, err := healthy.ask(t.Context(), rule.Expr, until)
		if err != nil || len(active) > 0 {
			t.Errorf("%s: %v, %s", name, err, described(active))
		}
	}
}
