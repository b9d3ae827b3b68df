package dashboards

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
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
// the alert waits.
func firing(t *testing.T, rule rulefmt.Rule, s store, until time.Duration) (fires promql.Vector) {
	t.Helper()
	since := map[string]time.Duration{}
	for at := time.Duration(0); at <= until; at += interval {
		active, err := s.ask(t.Context(), rule.Expr, at)
		if err != nil {
			t.Fatal(err)
		}
		before := since
		since, fires = map[string]time.Duration{}, nil
		for _, one := range active {
			key := one.Metric.String()
			since[key] = at
			if began, found := before[key]; found {
				since[key] = began
			}
			if at-since[key] >= time.Duration(rule.For) {
				fires = append(fires, one)
			}
		}
	}
	return fires
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
