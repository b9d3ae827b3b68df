package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// files is the folder of what the chart ships.
const files = "../../charts/skep/files"

// dashboard is what the tests read of one of Grafana's.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct{ List []variable }
	Panels        []panel
}

type variable struct {
	Name, Type, Query, AllValue string
	IncludeAll                  bool
	Refresh                     int
}

type panel struct {
	ID                       int
	Title, Type, Description string
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Datasource               struct{ Type, UID string }
	Targets                  []struct{ Expr, RefID, LegendFormat string }
	GridPos                  struct{ H, W, X, Y int }
}

// read reads a dashboard.
func read(t *testing.T, file string) (d dashboard) {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(body, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// labelValues is a query of a variable.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// fill returns expressions with values in the place of variables: all of them where a panel can show all, and else the first one.
func (d dashboard) fill(t *testing.T, all store, until time.Duration) func(expr string) string {
	t.Helper()
	values := []string{"$__rate_interval", "5m", "$__range", "1h"}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		asked := labelValues.FindStringSubmatch(v.Query)
		if asked == nil {
			t.Fatalf("variable %s asks for %q, which is no label_values(SELECTOR, LABEL)", v.Name, v.Query)
		}
		selector := strings.NewReplacer(values...).Replace(asked[1])
		lacks, err := all.lacks(selector)
		if err != nil || len(lacks) > 0 {
			t.Errorf("variable %s: %v, %v", v.Name, lacks, err)
		}
		found, err := all.ask(t.Context(), selector, until)
		if err != nil {
			t.Fatalf("variable %s: %v", v.Name, err)
		}
		value := v.AllValue
		for _, one := range found {
			if has := one.Metric.Get(asked[2]); has != "" && !v.IncludeAll {
				value = has
				break
			}
		}
		if value == "" {
			t.Errorf("variable %s has no value by %s", v.Name, v.Query)
		}
		values = append(values, "$"+v.Name, value)
	}
	return strings.NewReplacer(values...).Replace
}

func TestEveryPanelHasData(t *testing.T) {
	all, until := scraped(t, "healthy", "story")
	for _, path := range paths(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			d := read(t, path)
			fill := d.fill(t, all, until)
			for _, p := range d.Panels {
				for _, target := range p.Targets {
					expr := fill(target.Expr)
					if strings.Contains(expr, "$") {
						t.Errorf("%s: %s has a variable that the dashboard has not", p.Title, expr)
						continue
					}
					lacks, err := all.lacks(expr)
					if err != nil {
						t.Errorf("%s: %s: %v", p.Title, expr, err)
						continue
					}
					for _, lack := range lacks {
						t.Errorf("%s: %s: %s", p.Title, expr, lack)
					}
					if got, err := all.ask(t.Context(), expr, until); err != nil || len(got) == 0 {
						t.Errorf("%s: %s yields no number: %v", p.Title, expr, err)
					}
				}
			}
		})
	}
}

func TestEveryPanelSaysWhatItShows(t *testing.T) {
	titles := map[string]string{}
	for _, path := range paths(t) {
		d, name := read(t, path), filepath.Base(path)
		if d.UID != "skep-"+strings.TrimSuffix(name, ".json") || d.Title == "" || d.SchemaVersion < 39 || titles[d.Title] != "" {
			t.Errorf("%s: uid %s, title %s, schema version %d", name, d.UID, d.Title, d.SchemaVersion)
		}
		titles[d.Title] = name
		ids := map[int]bool{}
		for _, p := range d.Panels {
			if ids[p.ID] || p.ID == 0 || p.Title == "" {
				t.Errorf("%s: panel %q has id %d, as another has", name, p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.Type == "row" {
				continue
			}
			if p.Description == "" || p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "$datasource" || len(p.Targets) == 0 {
				t.Errorf("%s: %s has no description, no unit, no target, or another data source than $datasource", name, p.Title)
			}
			for _, other := range d.Panels {
				a, b := p.GridPos, other.GridPos
				if other.ID != p.ID && a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H || a.X+a.W > 24 {
					t.Errorf("%s: %s lies over %s, or beyond the right edge", name, p.Title, other.Title)
				}
			}
		}
	}
}
