package dashboards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// interval is between two scrapes, and between two evaluations of an alert.
const interval = time.Minute

// syntax is PromQL's without feature flags.
func syntax() parser.Parser { return parser.NewParser(parser.Options{}) }

// store has series in memory, for Prometheus' engine.
type store map[string]*series

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
	// counter is set for a series that only grows, of a histogram as well.
	counter bool
}

// add appends a sample.
func (s store) add(l labels.Labels, at time.Duration, value float64) *series {
	one, found := s[l.String()]
	if !found {
		one = &series{labels: l}
		s[l.String()] = one
	}
	one.samples = append(one.samples, sample{at.Milliseconds(), value})
	return one
}

// sample is a value at a time in milliseconds.
type sample struct {
	t int64
	f float64
}

func (s sample) T() int64                    { return s.t }
func (sample) ST() int64                     { return 0 }
func (s sample) F() float64                  { return s.f }
func (sample) H() *histogram.Histogram       { return nil }
func (sample) FH() *histogram.FloatHistogram { return nil }
func (sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample         { return s }

// matching are the series that have all labels, in a fixed order.
func (s store) matching(matchers ...*labels.Matcher) (found []*series) {
	for _, one := range s {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(one.labels.Get(m.Name)) }) {
			found = append(found, one)
		}
	}
	slices.SortFunc(found, func(a, b *series) int { return labels.Compare(a.labels, b.labels) })
	return found
}

// selected is a storage.SeriesSet.
type selected struct {
	all []*series
	now *series
}

func (s *selected) Next() bool {
	if len(s.all) == 0 {
		return false
	}
	s.now, s.all = s.all[0], s.all[1:]
	return true
}
func (s *selected) At() storage.Series              { return storage.NewListSeries(s.now.labels, s.now.samples) }
func (*selected) Err() error                        { return nil }
func (*selected) Warnings() annotations.Annotations { return nil }

// ask evaluates an expression at a time, and returns all numbers that it yields.
func (s store) ask(ctx context.Context, expr string, at time.Duration) (promql.Vector, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: syntax()})
	from := &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			return &selected{all: s.matching(matchers...)}
		},
	}}
	q, err := engine.NewInstantQuery(ctx, from, nil, expr, time.UnixMilli(at.Milliseconds()))
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	var all promql.Vector
	switch value := result.Value.(type) {
	case promql.Vector:
		all = append(all, value...)
	case promql.Scalar:
		all = promql.Vector{{F: value.V}}
	default:
		return nil, fmt.Errorf("the expression yields a %s", value.Type())
	}
	return slices.DeleteFunc(all, func(s promql.Sample) bool { return math.IsNaN(s.F) }), nil
}

// target are the labels that the ServiceMonitors of the chart give what a binary serves; a host and the API server are as
// docs/operations/observe.md has them scraped.
func target(name string) map[string]string {
	component, instance, _ := strings.Cut(name, "-")
	of := map[string]string{"instance": name + ":8080"}
	switch component {
	case "controller", "agent":
		service := "skep-" + component + "-metrics"
		maps.Copy(of, map[string]string{"job": service, "service": service, "namespace": "skep-system", "endpoint": "metrics", "container": component,
			"pod": "skep-" + name})
		if component == "agent" {
			of["node"] = instance
		}
	case "run":
		of["job"], of["node"] = "skep-run", instance
	default:
		of["job"] = component
	}
	return of
}

// scraped are the phases of the story in the folder, in their order; an interval is between two scrapes. Until is when the last one was.
func scraped(t *testing.T, phases ...string) (all store, until time.Duration) {
	t.Helper()
	folder := os.Getenv("SKEP_SCRAPES")
	if folder == "" {
		t.Fatal("SKEP_SCRAPES names no folder of scrapes: run go test ./test/integration -run TestDashboardsAndAlerts, with it to keep them")
	}
	all = store{}
	for _, phase := range phases {
		for round := 0; ; round++ {
			files, err := filepath.Glob(filepath.Join(folder, fmt.Sprintf("*.%s.%d", phase, round)))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) == 0 {
				break
			}
			until += interval
			for _, file := range files {
				body, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				name, _, _ := strings.Cut(filepath.Base(file), ".")
				if err := all.scrape(body, target(name), until); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
			}
		}
	}
	if until == 0 {
		t.Fatalf("there are no scrapes in %s", folder)
	}
	return all, until
}

// scrape adds what a target answered, as Prometheus does with honorLabels: a label of a series is not replaced by that of its
// target, and an empty one keeps it away.
func (s store) scrape(body []byte, of map[string]string, at time.Duration) error {
	p, err := textparse.New(body, "text/plain; version=0.0.4", nil, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	grows := false
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.add(labels.NewBuilder(labels.FromMap(of)).Set(model.MetricNameLabel, "up").Labels(), at, 1)
			return nil
		case err != nil:
			return err
		case entry == textparse.EntryType:
			_, kind := p.Type()
			grows = kind == model.MetricTypeCounter || kind == model.MetricTypeHistogram
			continue
		case entry != textparse.EntrySeries:
			continue
		}
		var own labels.Labels
		_, _, value := p.Series()
		p.Labels(&own)
		b := labels.NewBuilder(own)
		for name, value := range of {
			if !own.Has(name) {
				b.Set(name, value)
			}
		}
		s.add(b.Labels(), at, value).counter = grows
	}
}

// lacks returns what an expression names and no series has: a metric, a label, or a value of one.
func (s store) lacks(expr string) (lacks []string, err error) {
	parsed, err := syntax().ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			lacks = append(lacks, s.lacksOf(n.LabelMatchers)...)
		case *parser.AggregateExpr:
			if !n.Without {
				lacks = append(lacks, s.lacksLabels(n)...)
			}
		}
		return nil
	})
	return lacks, nil
}

// lacksOf is lacks of one selector.
func (s store) lacksOf(matchers []*labels.Matcher) (lacks []string) {
	others := func(m *labels.Matcher) []*labels.Matcher {
		return slices.DeleteFunc(slices.Clone(matchers), func(other *labels.Matcher) bool { return other == m })
	}
	for _, m := range matchers {
		values := m.SetMatches()
		switch m.Type {
		case labels.MatchEqual:
			values = []string{m.Value}
		case labels.MatchNotEqual, labels.MatchNotRegexp:
			values = nil
		}
		for _, value := range values {
			if len(s.matching(append(others(m), labels.MustNewMatcher(labels.MatchEqual, m.Name, value))...)) == 0 {
				lacks = append(lacks, fmt.Sprintf("no series has %s=%q beside %v", m.Name, value, others(m)))
			}
		}
		has := labels.MustNewMatcher(labels.MatchNotEqual, m.Name, "")
		if !m.Matches("") || m.Type == labels.MatchNotEqual || m.Type == labels.MatchNotRegexp {
			if len(s.matching(append(others(m), has)...)) == 0 {
				lacks = append(lacks, fmt.Sprintf("no series has %s beside %v", m.Name, others(m)))
			}
		}
	}
	return lacks
}

// lacksLabels returns the labels that series are grouped by, and that none has.
func (s store) lacksLabels(n *parser.AggregateExpr) (lacks []string) {
	var below []*series
	parser.Inspect(n.Expr, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			below = append(below, s.matching(selector.LabelMatchers...)...)
		}
		return nil
	})
	for _, name := range n.Grouping {
		if !slices.ContainsFunc(below, func(one *series) bool { return one.labels.Has(name) }) {
			lacks = append(lacks, fmt.Sprintf("no series has %s in %s", name, n))
		}
	}
	return lacks
}

// described are numbers as a failed test shows them.
func described(v promql.Vector) string {
	lines := make([]string, 0, len(v))
	for _, one := range v {
		lines = append(lines, fmt.Sprintf("%s %v", one.Metric, one.F))
	}
	return cmp.Or(strings.Join(lines, "\n"), "nothing")
}
