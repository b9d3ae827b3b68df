package dashboards

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	schema "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// paths are the files of the dashboards.
func paths(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(files, "dashboards", "*.json"))
	if err != nil || len(found) != 4 {
		t.Fatalf("the dashboards are %v, %v", found, err)
	}
	return found
}

// TestDashboardsMeetGrafanasSchema has the types that Grafana generates of its schema read each dashboard: an unknown field, one that
// lacks, or a wrong type, also in the options of a panel, is an error.
func TestDashboardsMeetGrafanasSchema(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	for _, path := range paths(t) {
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var d schema.Dashboard //nolint:staticcheck // files that the sidecar imports are of the classic schema
		var raw struct {
			Panels []struct{ Targets []json.RawMessage }
		}
		if err := errors.Join(strict(&d, body), d.Validate(), json.Unmarshal(body, &raw)); err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		for i, p := range raw.Panels {
			// A target is of its panel's data source, which the types do not know when they read it.
			for _, target := range p.Targets {
				if err := strict(&prometheus.Dataquery{}, target); err != nil {
					t.Errorf("%s: panel %d: %v", filepath.Base(path), i, err)
				}
			}
		}
	}
}

// strict reads JSON. The types return an empty list of errors where there is none.
func strict(into interface{ UnmarshalJSONStrict(raw []byte) error }, body []byte) error {
	if err := into.UnmarshalJSONStrict(body); err != nil && err.Error() != "" {
		return err
	}
	return nil
}

// address is where a link in a panel leads.
var address = regexp.MustCompile(`"url": *"(/d/[^"]+)"`)

// TestLinksLeadToDashboards: to one of the chart's, with variables that it has.
func TestLinksLeadToDashboards(t *testing.T) {
	has, links := map[string]bool{}, map[string]string{}
	for _, path := range paths(t) {
		d := read(t, path)
		has["/d/"+d.UID] = true
		for _, v := range d.Templating.List {
			has["/d/"+d.UID+" var-"+v.Name] = true
		}
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range address.FindAllStringSubmatch(string(body), -1) {
			links[found[1]] = path
		}
	}
	if len(links) == 0 {
		t.Error("no panel has a link")
	}
	for link, path := range links {
		to, query, _ := strings.Cut(link, "?")
		if !has[to] {
			t.Errorf("%s: there is no dashboard %s", path, to)
		}
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Errorf("%s: %s: %v", path, link, err)
		}
		for name := range values {
			if strings.HasPrefix(name, "var-") && !has[to+" "+name] {
				t.Errorf("%s: %s has no %s", path, to, name)
			}
		}
	}
}

// TestDashboardsKeepToGrafanasPractice are the rules of Grafana's dashboard-linter that hold here and that the schema does not have:
// values of variables follow the time range, all shown together is chosen by a regular expression, rates take Grafana's interval.
func TestDashboardsKeepToGrafanasPractice(t *testing.T) {
	window := regexp.MustCompile(`\[([$\d][^\]]*)\]`)
	for _, path := range paths(t) {
		d := read(t, path)
		for _, v := range d.Templating.List {
			if v.Type == "query" && (v.Refresh != 2 || v.IncludeAll != (v.AllValue == ".*")) {
				t.Errorf("%s: variable %s has refresh %d and all as %q", d.Title, v.Name, v.Refresh, v.AllValue)
			}
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				for _, found := range window.FindAllStringSubmatch(target.Expr, -1) {
					if found[1] != "$__rate_interval" && found[1] != "$__range" {
						t.Errorf("%s: %s: a window of %s", d.Title, p.Title, found[1])
					}
				}
				if p.Type == "timeseries" && target.LegendFormat == "" {
					t.Errorf("%s: %s: %s has no legend", d.Title, p.Title, target.Expr)
				}
			}
		}
	}
}

// TestRatesAreOfCounters: the sum of a counter says nothing after a restart, and a gauge has no rate.
func TestRatesAreOfCounters(t *testing.T) {
	all, until := scraped(t, "healthy", "story")
	exprs := map[string]string{}
	for name, rule := range alerts(t) {
		exprs[name] = rule.Expr
	}
	for _, path := range paths(t) {
		d := read(t, path)
		fill := d.fill(t, all, until)
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				exprs[fmt.Sprintf("%s: %s: %s", d.Title, p.Title, target.RefID)] = fill(target.Expr)
			}
		}
	}
	for name, expr := range exprs {
		parsed, err := syntax().ParseExpr(expr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		parser.Inspect(parsed, func(node parser.Node, above []parser.Node) error {
			selector, ok := node.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			rate := false
			for _, one := range above {
				call, ok := one.(*parser.Call)
				rate = rate || ok && (call.Func.Name == "rate" || call.Func.Name == "increase")
			}
			for _, one := range all.matching(selector.LabelMatchers...) {
				if one.counter != rate {
					t.Errorf("%s: %s is a counter: %t, and has a rate: %t", name, one.labels, one.counter, rate)
					break
				}
			}
			return nil
		})
	}
}

// TestNoPanelFailsWithoutData: a variable without values is empty, and Prometheus takes no selector that names nothing.
func TestNoPanelFailsWithoutData(t *testing.T) {
	for _, path := range paths(t) {
		d := read(t, path)
		values := []string{"$__rate_interval", "5m", "$__range", "1h"}
		for _, v := range d.Templating.List {
			values = append(values, "$"+v.Name, v.AllValue)
		}
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				if _, err := (store{}).ask(t.Context(), strings.NewReplacer(values...).Replace(target.Expr), 0); err != nil {
					t.Errorf("%s: %s: %v", d.Title, p.Title, err)
				}
			}
		}
	}
}

// TestNoPanelHasALineForEach of many nodes, applications, rules and so on.
func TestNoPanelHasALineForEach(t *testing.T) {
	const copies, most = 24, 22
	scrapes, until := scraped(t, "healthy", "story")
	all := maps.Clone(scrapes)
	for _, one := range scrapes {
		for _, many := range []string{"node", "application", "name", "namespace", "program", "rule", "map"} {
			// A binary's own namespace is Skep's.
			if !one.labels.Has(many) || many == "namespace" && !one.labels.Has("kind") {
				continue
			}
			for i := range copies {
				b := labels.NewBuilder(one.labels).Set(many, fmt.Sprintf("%s-%d", one.labels.Get(many), i))
				if many == "node" {
					b.Set("instance", fmt.Sprintf("%s-%d", one.labels.Get("instance"), i))
				}
				all[b.Labels().String()] = &series{labels: b.Labels(), samples: one.samples}
			}
		}
	}
	for _, path := range paths(t) {
		d := read(t, path)
		fill := d.fill(t, scrapes, until)
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				if p.Type != "timeseries" {
					continue
				}
				if got, err := all.ask(t.Context(), fill(target.Expr), until); err != nil || len(got) > most {
					t.Errorf("%s: %s: it has %d lines, %v", d.Title, p.Title, len(got), err)
				}
			}
		}
	}
}
