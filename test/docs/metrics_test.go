package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// servers says which binary serves the metrics of a folder.
func servers() map[string][]string {
	return map[string][]string{
		"controller": {"controller"}, "gate/metrics": {"controller", "run"},
		"agent/kube": {"agent"}, "agent/metrics": {"agent", "run"}, "agent/readers/mapmetrics": {"agent", "run"}, "nodemode": {"run"},
	}
}

// serversOf is by the longest folder that holds a file.
func serversOf(folder string) []string {
	for at := folder; at != "."; at = filepath.Dir(at) {
		if found, ok := servers()[at]; ok {
			return found
		}
	}
	return []string{"nobody: give " + folder + " a row in servers"}
}

// metric is one row of the table.
type metric struct {
	Type, From string
	Labels     []string
}

// maker is a function of client_golang that makes a metric, and whether it takes
// labels.
var maker = regexp.MustCompile(`^New(Counter|Gauge|Histogram)(Vec|Func)?$`)

// metricsOf finds the metrics that a file makes: by New… with options that name
// them, or by NewDesc for a gauge, which is a counter if its name says so.
func metricsOf(file *ast.File) map[string]metric {
	found := map[string]metric{}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		of, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		made := maker.FindStringSubmatch(of.Sel.Name)
		switch {
		case made != nil:
			m := metric{Type: strings.ToLower(made[1])}
			if made[2] == "Vec" {
				m.Labels = literals(call.Args[1])
			}
			if named := literals(call.Args[0]); len(named) > 0 {
				found[named[0]] = m
			}
		// Series of maps are named by definitions.
		case of.Sel.Name == "NewDesc" && len(literals(call.Args[0])) > 0:
			m := metric{Type: "gauge", Labels: literals(call.Args[2])}
			if strings.HasSuffix(literals(call.Args[0])[0], "_total") {
				m.Type = "counter"
			}
			found[literals(call.Args[0])[0]] = m
		}
		return true
	})
	return found
}

// literals are the strings in an expression, in their order.
func literals(e ast.Expr) []string {
	var all []string
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}

// metricsOfCode are those of every file that is no test.
func metricsOfCode(t *testing.T) map[string]metric {
	t.Helper()
	all := map[string]metric{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"test", "testdata", "dist"}, name)) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for metricName, m := range metricsOf(file) {
			if !strings.HasPrefix(metricName, "skep_") {
				continue
			}
			from := append(serversOf(filepath.Dir(name)), strings.FieldsFunc(all[metricName].From, func(r rune) bool { return r == ',' || r == ' ' })...)
			slices.Sort(from)
			m.From = strings.Join(slices.Compact(from), ", ")
			if before, twice := all[metricName]; twice && (before.Type != m.Type || !slices.Equal(before.Labels, m.Labels)) {
				t.Errorf("%s is a %v in one place and a %v in another", metricName, before, m)
			}
			all[metricName] = m
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// row is a metric in a table.
var row = regexp.MustCompile("(?m)^\\| `(skep_[a-z_]+)(?:\\{([a-z_,]+)\\})?` \\| (\\w+) \\| ([a-z, ]+) \\|")

// metricsOfPage are the rows of a page's tables.
func metricsOfPage(page string) map[string]metric {
	all := map[string]metric{}
	for _, found := range row.FindAllStringSubmatch(page, -1) {
		m := metric{Type: found[3], From: found[4]}
		if found[2] != "" {
			m.Labels = strings.Split(found[2], ",")
		}
		all[found[1]] = m
	}
	return all
}

func TestEveryMetricIsInTheTableAsItIsServed(t *testing.T) {
	code := metricsOfCode(t)
	if diff := cmp.Diff(code, metricsOfPage(read(t, "docs/operations/observe.md"))); diff != "" {
		t.Errorf("docs/operations/observe.md, Metrics (-code +page):\n%s", diff)
	}
	for name, m := range code {
		if total := strings.HasSuffix(name, "_total"); total != (m.Type == "counter") {
			t.Errorf("%s is a %s", name, m.Type)
		}
		if m.Type == "histogram" && !strings.HasSuffix(name, "_seconds") {
			t.Errorf("%s names no unit", name)
		}
	}
}

// anyMetric is one wherever it stands, ofHistogram what Prometheus adds to the
// name of a histogram.
var (
	anyMetric   = regexp.MustCompile(`skep_[a-z_]+[a-z]`)
	ofHistogram = regexp.MustCompile(`_(count|sum|bucket)$`)
)

func TestNoPageNamesAMetricThatIsNotServed(t *testing.T) {
	known := slices.Collect(maps.Keys(metricsOfCode(t)))
	for _, name := range pages(t) {
		// The changelog says what metrics were called before, and a function of the corpus is called as if it were one.
		if name == "CHANGELOG.md" || name == "docs/calls.md" {
			continue
		}
		for _, found := range anyMetric.FindAllString(read(t, name), -1) {
			// Definitions name the series of maps, and a chain's program has a name like a metric's.
			if found == "skep_xdp_chain" || strings.HasPrefix(found, "skep_map") || strings.HasPrefix(found, "skep_histogram") {
				continue
			}
			if !slices.Contains(known, ofHistogram.ReplaceAllString(found, "")) {
				t.Errorf("%s: there is no metric %s", name, found)
			}
		}
	}
}

func TestAMetricIsFoundWhereverItIsMade(t *testing.T) {
	const source = `package p
var a = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "skep_a_total", Help: "A."}, []string{"x", "y"})
var b = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skep_b"}, f)
var c = prometheus.NewDesc("skep_c", "C.", []string{"z"}, nil)
var d = prometheus.NewDesc("skep_d_total", "D.", nil, nil)
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]metric{
		"skep_a_total": {Type: "counter", Labels: []string{"x", "y"}}, "skep_b": {Type: "gauge"}, "skep_c": {Type: "gauge", Labels: []string{"z"}},
		"skep_d_total": {Type: "counter"},
	}
	if diff := cmp.Diff(want, metricsOf(file)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}
