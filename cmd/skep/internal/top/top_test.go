package top_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/top"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/golden"
	"github.com/skep-dev/skep/test/harness/hostile"
	"github.com/skep-dev/skep/test/harness/terminal"
)

// TestProgramsAreShown as each case says: the first part has the nodes, and the name of each other part the flags and arguments.
func TestProgramsAreShown(t *testing.T) {
	here := time.Local
	time.Local = time.UTC
	defer func() { time.Local = here }()
	golden.Cases(t, "testdata/*.txtar", func(t *testing.T, a *txtar.Archive) (parts []txtar.File) {
		var nodes []view.NodeView
		if err := yaml.UnmarshalStrict(a.Files[0].Data, &nodes); err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files[1:] {
			var (
				c      top.Choice
				s      top.Screen
				asJSON bool
			)
			flags := pflag.NewFlagSet("top", pflag.ContinueOnError)
			flags.StringVar(&c.Sort, "sort", top.ByCPU, "")
			flags.StringVar(&c.Namespace, "namespace", "", "")
			flags.BoolVar(&c.Unmanaged, "unmanaged", false, "")
			flags.IntVar(&s.Width, "width", 0, "")
			flags.IntVar(&s.Height, "height", 0, "")
			flags.BoolVar(&asJSON, "json", false, "")
			if err := flags.Parse(strings.Fields(strings.TrimPrefix(f.Name, "top"))); err != nil {
				t.Fatal(err)
			}
			c.Owners = flags.Args()
			var out bytes.Buffer
			if asJSON {
				from := func(context.Context) ([]view.NodeView, error) { return nodes, nil }
				if err := top.Show(t.Context(), &out, from, top.Request{Choice: c, Output: "json"}); err != nil {
					t.Fatal(err)
				}
			} else {
				lines := top.Print(nodes, top.Rows(nodes, c), s, func(header string) string { return header })
				for _, l := range lines[len(lines)-1-min(len(lines)-1, len(top.Rows(nodes, c))):] {
					if n := len([]rune(l)); s.Width > 0 && n > s.Width {
						t.Errorf("%s: a line of %d characters: %s", f.Name, n, l)
					}
				}
				if s.Height > 0 && len(lines) > s.Height {
					t.Errorf("%s: %d lines", f.Name, len(lines))
				}
				for _, l := range lines {
					out.WriteString(strings.TrimRight(l, " ") + "\n")
				}
			}
			parts = append(parts, golden.Part(f.Name, out.String()))
		}
		return parts
	})
}

// measured is a node whose program was measured at a second.
func measured(second int64) []view.NodeView {
	return []view.NodeView{{Programs: []view.Program{{ID: 1, Name: "count", Type: "XDP",
		Cost: &view.Cost{Measured: metav1.NewTime(time.Unix(second, 0)), WindowSeconds: 1, Runs: uint64(second)}}}}}
}

// TestEachMeasurementIsShownOnce, and an error of the source ends it.
func TestEachMeasurementIsShownOnce(t *testing.T) {
	read, write := io.Pipe()
	var looks atomic.Int64
	gone := errors.New("the host is gone")
	ended := make(chan error, 1)
	go func() {
		err := top.Show(t.Context(), write, func(context.Context) ([]view.NodeView, error) {
			n := looks.Add(1)
			if n > 30 {
				return nil, gone
			}
			return measured(100 + n/10), nil
		}, top.Request{Follow: true, Interval: time.Millisecond})
		_ = write.Close()
		ended <- err
	}()
	out, err := io.ReadAll(read)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, gone) {
		t.Errorf("it ended with %v", err)
	}
	if n := strings.Count(string(out), "PROGRAM"); n != 4 || strings.Contains(string(out), "\x1b") {
		t.Errorf("4 measurements are shown %d times: %q", n, out)
	}
}

// TestOneLookEndsByItself, and a look that is followed with its context.
func TestOneLookEndsByItself(t *testing.T) {
	var out bytes.Buffer
	from := func(context.Context) ([]view.NodeView, error) { return measured(7), nil }
	absent := top.Request{Choice: top.Choice{Owners: []string{"nothing"}}}
	if code, line := exit.Of(top.Show(t.Context(), &out, from, absent), 0); code != exit.Denied || !strings.Contains(line, "nothing") || out.Len() > 0 {
		t.Errorf("of an owner that has none: exit code %d, %q", code, line)
	}
	if err := top.Show(t.Context(), &out, from, top.Request{}); err != nil || strings.Count(out.String(), "count") != 1 {
		t.Errorf("%v: %s", err, &out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- top.Show(ctx, io.Discard, from, top.Request{Follow: true}) }()
	cancel()
	await.True(t, "it to end", time.Minute, func() bool {
		select {
		case err := <-ended:
			return errors.Is(err, context.Canceled)
		default:
			return false
		}
	})
}

// TestATerminalIsRedrawn in the place of what it shows, as wide and as high as it is.
func TestATerminalIsRedrawn(t *testing.T) {
	screen := terminal.New(t, 60, 8)
	t.Setenv("NO_COLOR", "1")
	many := measured(100)
	for id := range uint32(40) {
		many[0].Programs = append(many[0].Programs, view.Program{ID: 10 + id, Name: strings.Repeat("long", 30), Type: "TracePoint", MemoryBytes: 5000})
	}
	looks, gone := 0, errors.New("the host is gone")
	err := top.Show(t.Context(), screen.File, func(context.Context) ([]view.NodeView, error) {
		if looks++; looks > 2 {
			return nil, gone
		}
		many[0].Programs[0].Cost = measured(100 + int64(looks))[0].Programs[0].Cost
		return many, nil
	}, top.Request{Follow: true, Interval: time.Millisecond})
	if !errors.Is(err, gone) {
		t.Fatal(err)
	}
	shown, isEnded := strings.CutSuffix(screen.Written(t), "\r\n")
	if !isEnded {
		t.Errorf("what is printed next does not begin a line: %q", shown)
	}
	pages := strings.Split(shown, "\x1b[H")
	if len(pages) != 3 {
		t.Fatalf("%d pages: %q", len(pages), pages)
	}
	for _, page := range pages[1:] {
		lines := strings.Split(strings.TrimSuffix(page, "\x1b[K\x1b[J"), "\x1b[K\r\n")
		if len(lines) > 8 || !strings.Contains(page, "more") {
			t.Errorf("%d lines on a screen of 8: %q", len(lines), page)
		}
		for _, l := range lines {
			if n := len([]rune(l)); n > 60 {
				t.Errorf("%d characters on a screen of 60: %q", n, l)
			}
		}
	}
}

func TestNoFieldOfANodeReachesTheTerminalAsItIs(t *testing.T) {
	var n view.NodeView
	hostile.Fill(&n)
	nodes := []view.NodeView{n, n}
	lines := top.Print(nodes, top.Rows(nodes, top.Choice{}), top.Screen{}, func(line string) string { return line })
	hostile.Check(t, "top", strings.Join(lines, "\n"))
	for _, line := range lines {
		if strings.Contains(line, "\n") {
			t.Errorf("a line is several: %q", line)
		}
	}
}
