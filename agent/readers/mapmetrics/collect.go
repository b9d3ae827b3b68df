package mapmetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/bytecode/values/series"
)

// severalHelp is the text of series that several applications have, each with a text of its own: Prometheus knows one.
const severalHelp = "Of maps of several applications; their definitions say what each is."

// What is said of each source. None begins as the series of definitions do.
var (
	leftOut = prometheus.NewDesc("skep_agent_map_entries_left_out",
		"Entries of a map that have no series, since the map, its application or the node has as many as it may.",
		[]string{"kind", "namespace", "application", "map"}, nil)
	age = prometheus.NewDesc("skep_agent_map_scan_age_seconds",
		"Time since the entries of a map were read in whole.",
		[]string{"kind", "namespace", "application", "map"}, nil)
	unreadable = prometheus.NewDesc("skep_agent_map_unreadable",
		"1 where the metrics of a map cannot be read as its definition asks for; the log says why.",
		[]string{"kind", "namespace", "application", "map"}, nil)
)

// snapshot is what is exported of a source.
type snapshot struct {
	*source
	reader  *series.Reader
	found   []sample
	at      time.Time
	leftOut int
	failed  bool
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	c.refresh()
	c.mu.Lock()
	var all []snapshot
	for _, s := range c.ordered() {
		all = append(all, snapshot{s, s.reader, s.found, s.at, s.leftOut, s.err != nil})
	}
	c.mu.Unlock()
	helps, has := helpOf(all), map[key]bool{}
	for _, s := range all {
		s.collect(to, helps, has)
	}
}

// metric is one series, or those of one histogram.
func (s *snapshot) metric(desc *prometheus.Desc, kind prometheus.ValueType, i int, of sample) (prometheus.Metric, error) {
	if s.reader.IsHistogram() {
		counts, all, sum := s.reader.Histogram(of.values)
		return prometheus.NewConstHistogram(desc, all, sum, counts, of.labels...)
	}
	return prometheus.NewConstMetric(desc, kind, of.values[i], of.labels...)
}

// helpOf is the text of each name.
func helpOf(all []snapshot) map[string]string {
	helps := map[string]string{}
	for _, s := range all {
		for name := range series.Names(s.Metrics) {
			if help, has := helps[name]; has && help != s.Metrics.Help {
				helps[name] = severalHelp
				continue
			}
			helps[name] = s.Metrics.Help
		}
	}
	return helps
}

// collect exports the series of one source, and what is said of it. A series that its application has already, which the gate
// denies, would have Prometheus lose all others with it.
func (s *snapshot) collect(to chan<- prometheus.Metric, helps map[string]string, has map[key]bool) {
	id := s.Application
	said := []string{id.Kind, id.Namespace, id.Name, s.Map}
	failed := 0.
	if s.failed {
		failed = 1
	}
	to <- prometheus.MustNewConstMetric(unreadable, prometheus.GaugeValue, failed, said...)
	if s.failed || s.at.IsZero() {
		return
	}
	to <- prometheus.MustNewConstMetric(leftOut, prometheus.GaugeValue, float64(s.leftOut), said...)
	to <- prometheus.MustNewConstMetric(age, prometheus.GaugeValue, time.Since(s.at).Seconds(), said...)
	constant := prometheus.Labels{series.KindLabel: id.Kind, series.NamespaceLabel: id.Namespace, series.ApplicationLabel: id.Name}
	kind := prometheus.GaugeValue
	if s.Metrics.Type == v1alpha1.MapCounter {
		kind = prometheus.CounterValue
	}
	for i, name := range s.reader.Names {
		if has[key{id, name}] {
			continue
		}
		has[key{id, name}] = true
		prefix := series.Prefix
		if s.reader.IsHistogram() {
			prefix = series.HistogramPrefix
		}
		desc := prometheus.NewDesc(prefix+name, helps[name], s.reader.Labels, constant)
		for _, one := range s.found {
			// So would one that Prometheus does not take.
			if metric, err := s.metric(desc, kind, i, one); err == nil {
				to <- metric
			}
		}
	}
}
