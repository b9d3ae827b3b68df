package arch_test

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/harness/golden"
)

//go:generate go test -run ^TestThePictureShowsTheImports$ -update

// The page with the table of layers, and the picture that is drawn from it.
const (
	pageFile    = "docs/architecture.md"
	pictureFile = "docs/images/packages.svg"
)

// apart is the layer of commands that build the project. They are in no binary of it, and
// are not drawn.
const apart = -1

// box is a row of the table: packages that are drawn as one.
type box struct {
	layer    int
	packages []string
}

// name is the text in the box: the last part of a path, but for a version.
func (b box) name() string {
	first := b.packages[0]
	if name := path.Base(first); !strings.HasPrefix(name, "v1") {
		return name
	}
	return first
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| ([0-9–]) \\| ((?:`[^`]+`(?:, )?)+) \\|")
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// boxes reads the table of the page, from the highest layer to the lowest.
func boxes(t *testing.T) []box {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root(t), pageFile))
	if err != nil {
		t.Fatal(err)
	}
	var all []box
	for _, row := range tableRow.FindAllSubmatch(page, -1) {
		b := box{}
		if b.layer, err = strconv.Atoi(string(row[1])); err != nil {
			b.layer = apart
		}
		for _, name := range quoted.FindAllSubmatch(row[2], -1) {
			b.packages = append(b.packages, strings.TrimSuffix(string(name[1]), "/…"))
		}
		all = append(all, b)
	}
	slices.SortStableFunc(all, func(a, b box) int { return cmp.Compare(b.layer, a.layer) })
	return all
}

// boxOf finds the box that a package is in: the one that names the longest part of it.
func boxOf(all []box, name string) int {
	best, found := -1, ""
	for i, b := range all {
		for _, p := range b.packages {
			if within(name, p) && len(p) > len(found) {
				best, found = i, p
			}
		}
	}
	return best
}

// arrows are the imports between boxes, and what is wrong with them: a package in no
// box, and an import that does not go down.
func arrows(g graph, all []box) (from map[int]map[int]bool, wrong []string) {
	from = map[int]map[int]bool{}
	for _, name := range g.packages() {
		if within(name, "test") {
			continue
		}
		importer := boxOf(all, name)
		if importer < 0 {
			wrong = append(wrong, name+" is in no row of the table in "+pageFile)
		}
		if importer < 0 || all[importer].layer == apart {
			continue
		}
		for _, path := range g[module+"/"+name].imports {
			other, ours := ownPackage(path)
			imported := boxOf(all, other)
			if !ours || imported < 0 || imported == importer {
				continue
			}
			if all[importer].layer <= all[imported].layer {
				wrong = append(wrong, fmt.Sprintf("%s of layer %d imports %s of layer %d", name, all[importer].layer, other, all[imported].layer))
			}
			if from[importer] == nil {
				from[importer] = map[int]bool{}
			}
			from[importer][imported] = true
		}
	}
	return from, wrong
}

// reaches reports whether there is a way of two arrows or more.
func reaches(from map[int]map[int]bool, a, b int) bool {
	for next := range from[a] {
		if next != b && (from[next][b] || reaches(from, next, b)) {
			return true
		}
	}
	return false
}

// direct leaves out each arrow that a longer way stands for.
func direct(from map[int]map[int]bool) map[int][]int {
	kept := map[int][]int{}
	for a, to := range from {
		for _, b := range slices.Sorted(maps.Keys(to)) {
			if !reaches(from, a, b) {
				kept[a] = append(kept[a], b)
			}
		}
	}
	return kept
}

func TestThePictureShowsTheImports(t *testing.T) {
	all := boxes(t)
	from, wrong := arrows(load(t), all)
	for _, w := range wrong {
		t.Error(w)
	}
	drawn := draw(all, direct(from))
	file := filepath.Join(root(t), pictureFile)
	golden.File(t, file, string(drawn), "go generate ./test/arch")
}

func TestAnImportThatGoesUpIsSeen(t *testing.T) {
	all := []box{{2, []string{"gate"}}, {1, []string{"hook"}}, {1, []string{"text"}}}
	for name, c := range map[string]struct {
		from, to string
		wrong    int
	}{
		"down":          {"gate", "hook", 0},
		"up":            {"hook", "gate", 1},
		"to its layer":  {"hook", "text", 1},
		"in its box":    {"gate/metrics", "gate", 0},
		"from nowhere":  {"util", "hook", 1},
		"from the test": {"test/arch", "hook", 0},
	} {
		from := module + "/" + c.from
		if _, wrong := arrows(graph{from: pkg{path: from, imports: []string{module + "/" + c.to}}}, all); len(wrong) != c.wrong {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}

// Sizes of the picture, in pixels.
const (
	pictureWidth = 1320
	margin       = 44
	boxHeight    = 34
	maxGap       = 120
	layerHeight  = 92
	letterWidth  = 7.6
)

// places are where the boxes are drawn: their left edges and widths.
type places struct{ x, width []float64 }

// middle is the middle of a box.
func (p places) middle(i int) float64 { return p.x[i] + p.width[i]/2 }

// arrange places the boxes of each layer side by side, each below those that import it.
func arrange(all []box, arrows map[int][]int) places {
	p := places{make([]float64, len(all)), make([]float64, len(all))}
	wish := make([]float64, len(all))
	for layer := all[0].layer; layer >= 0; layer-- {
		var row []int
		total := 0.0
		for i, b := range all {
			if b.layer == layer {
				p.width[i] = float64(len([]rune(b.name())))*letterWidth + 24
				row, total = append(row, i), total+p.width[i]
				wish[i] = wishOf(i, arrows, p)
			}
		}
		slices.SortStableFunc(row, func(a, b int) int { return cmp.Compare(wish[a], wish[b]) })
		gap := min(maxGap, (pictureWidth-2*margin-total)/float64(max(len(row)-1, 1)))
		at := (pictureWidth - total - gap*float64(len(row)-1)) / 2
		for _, i := range row {
			p.x[i] = at
			at += p.width[i] + gap
		}
	}
	return p
}

// wishOf is the mean of the middles of those that import a box; the middle of the
// picture where none does.
func wishOf(i int, arrows map[int][]int, p places) float64 {
	sum, n := 0.0, 0.0
	for from, to := range arrows {
		if slices.Contains(to, i) {
			sum, n = sum+p.middle(from), n+1
		}
	}
	if n == 0 {
		return pictureWidth / 2
	}
	return sum / n
}

// draw makes the picture: a row of boxes for each layer, the highest on top, and an
// arrow for each import that no longer way stands for.
func draw(all []box, arrows map[int][]int) []byte {
	top := all[0].layer
	p, height := arrange(all, arrows), (top+1)*layerHeight
	y := func(i int) int { return (top-all[i].layer)*layerHeight + margin/2 }
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`aria-labelledby="title desc" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif">
  <!-- Code generated by test/arch. DO NOT EDIT. -->
  <title id="title">The packages and their imports</title>
  <desc id="desc">One row of boxes for each layer. Every arrow goes from a package to one that it imports, in a lower layer. `+
		`An arrow is left out if a longer way shows the same.</desc>
`, pictureWidth, height, pictureWidth, height)
	b.WriteString(pictureStyle)
	for _, i := range slices.Sorted(maps.Keys(arrows)) {
		targets := slices.SortedFunc(slices.Values(arrows[i]), func(a, b int) int { return cmp.Compare(p.middle(a), p.middle(b)) })
		for n, to := range targets {
			x1 := p.x[i] + p.width[i]*float64(n+1)/float64(len(arrows[i])+1)
			y1, x2, y2 := y(i)+boxHeight, p.middle(to), y(to)-2
			fmt.Fprintf(&b, "  <path class=\"line\" d=\"M%.0f %d C%.0f %d %.0f %d %.0f %d\" marker-end=\"url(#to)\"/>\n", x1, y1, x1, y1+40, x2, y2-40, x2, y2)
		}
	}
	for layer := range top + 1 {
		fmt.Fprintf(&b, "  <text class=\"s\" x=\"12\" y=\"%d\">%d</text>\n", (top-layer)*layerHeight+margin/2+22, layer)
	}
	for i, one := range all {
		if one.layer == apart {
			continue
		}
		fmt.Fprintf(&b, "  <rect class=\"box\" x=\"%.0f\" y=\"%d\" width=\"%.0f\" height=\"%d\" rx=\"6\"/>\n", p.x[i], y(i), p.width[i], boxHeight)
		fmt.Fprintf(&b, "  <text class=\"m\" x=\"%.0f\" y=\"%d\">%s</text>\n", p.middle(i), y(i)+22, one.name())
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

const pictureStyle = `  <style>
    .panel { fill: #ffffff; stroke: #d0d7de; }
    .box { fill: #f6f8fa; fill-opacity: 0.8; stroke: #8c959f; }
    text { fill: #1f2328; font-size: 14px; }
    .s { font-size: 12px; fill: #59636e; }
    .m { text-anchor: middle; }
    .line { stroke: #8c959f; stroke-width: 1.2; fill: none; }
    .head { fill: #59636e; }
    @media (prefers-color-scheme: dark) {
      .panel { fill: #0d1117; stroke: #3d444d; }
      .box { fill: #151b23; stroke: #656c76; }
      text { fill: #f0f6fc; }
      .s { fill: #9198a1; }
      .line { stroke: #656c76; }
      .head { fill: #9198a1; }
    }
  </style>
  <defs>
    <marker id="to" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
      <path class="head" d="M0 0 L8 4 L0 8 z"/>
    </marker>
  </defs>
  <rect class="panel" x="0.5" y="0.5" width="99.9%" height="99.9%" rx="10"/>
`
