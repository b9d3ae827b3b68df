package hooks_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/world"
	"github.com/skep-dev/skep/test/harness/need"
)

// placed is an application with a program on fo0 that asks for a position.
func placed(w *world.World, name string, priority int32, position v1alpha1.Position) intent.Payload {
	p := counting(w, name, "tcx/ingress", "fo0")
	p.Programs[0].Attach[0].Priority, p.Programs[0].Attach[0].Position = &priority, position
	return p
}

// positions has an agent whose looks the test makes, and programs of others.
type positions struct {
	*testing.T
	w       *world.World
	a       *agent.Agent
	clock   *world.Clock
	foreign map[link.ID]string
}

func newPositions(t *testing.T) *positions {
	t.Helper()
	need.Kernel(t)
	world.NeedLink(t, "tcx/ingress")
	p := &positions{T: t, w: world.New(t), clock: world.NewClock(), foreign: map[link.ID]string{}}
	world.Veth(t, "fo0", "fo1")
	o := p.w.Options()
	o.Clock = p.clock.Now
	p.a = p.w.Idle(o)
	return p
}

// attach attaches a program of another tool.
func (p *positions) attach(name string, anchor link.Anchor) link.Link {
	p.Helper()
	_, l := attachAnother(p.T, name, "fo0", ebpf.AttachTCXIngress, anchor)
	info, err := l.Info()
	world.Must(p.T, err)
	p.foreign[info.ID] = name
	return l
}

// step hands intents over or, without any, looks, and compares what runs, and what one application says of its position.
func (p *positions) step(want, of, says string, payloads ...intent.Payload) {
	p.Helper()
	world.Hand(p.w, p.a, payloads...)
	if len(payloads) == 0 {
		world.Looks(p.T, p.a)
	}
	for range 5 {
		// One moves after the other.
		if order(p.T, p.a, p.foreign) != want {
			world.Looks(p.T, p.a)
		}
	}
	if got := order(p.T, p.a, p.foreign); got != want {
		p.Fatalf("the order is %q, not %q", got, want)
	}
	if got := world.LinkOf(p.T, p.a, of).PositionLost; !strings.Contains(got, says) || (got == "") != (says == "") {
		p.Errorf("in %q, %s says %q, want %q in it", want, of, got, says)
	}
}

func TestAllProgramsOfAHookTakeThePositionThatOneAsksFor(t *testing.T) {
	p := newPositions(t)
	p.attach("F", link.Tail())
	p.step("F m", "m", "", placed(p.w, "m", 400, ""))
	p.step("m a F", "a", "", placed(p.w, "a", 500, v1alpha1.PositionFirst))
	p.step("m a c F", "c", "", placed(p.w, "c", 500, ""))
	p.step("b m a c F", "a", "", placed(p.w, "b", 1, ""))
	// A new priority moves one among Skep's own.
	p.step("m a c b F", "b", "", placed(p.w, "b", 900, ""))
	const lost = "position Last is not kept: a asks for First on the same hook, which has precedence"
	p.step("m a c z b F", "z", lost, placed(p.w, "z", 600, v1alpha1.PositionLast))
	if got := conditionOf(p.a, "z"); !strings.Contains(got, lost) {
		t.Errorf("the condition says %q", got)
	}
	// Once nothing asks for First, Last holds at once: no other tool moved.
	p.step("F m a c z b", "z", "", placed(p.w, "a", 500, ""))
	p.clock.Forward(time.Minute)
	p.attach("G", link.Tail())
	p.step("F G m a c z b", "z", "")
	// Without a position, everything stays where it is.
	p.clock.Forward(time.Minute)
	p.attach("H", link.Tail())
	p.step("F G m a c z b H", "z", "", placed(p.w, "z", 600, ""))
	p.clock.Forward(time.Minute)
	p.step("F G m a c z b H", "z", "")
}

// TestAChangedPositionBlamesNoOtherTool, neither while programs are loaded once more to move nor since they moved within the last minute.
func TestAChangedPositionBlamesNoOtherTool(t *testing.T) {
	p := newPositions(t)
	p.attach("F", link.Tail())
	p.step("F m", "m", "", placed(p.w, "m", 400, ""))
	said := map[string]bool{}
	// changes hands all definitions over before the agent looks.
	changes := func(want string, payloads ...intent.Payload) {
		t.Helper()
		for _, payload := range payloads {
			world.Must(t, p.a.Accept(p.w.Seal(payload)))
		}
		world.Until(t, "the order "+want, time.Minute, func() bool {
			p.a.Reconcile(t.Context())
			for _, s := range p.a.Status() {
				// One that is not loaded yet has no program.
				for _, program := range s.Programs {
					for _, l := range program.Links {
						for _, note := range l.Notes() {
							said[note] = true
						}
					}
				}
			}
			return order(t, p.a, p.foreign) == want
		})
	}
	last := func(name string, priority int32) intent.Payload {
		return placed(p.w, name, priority, v1alpha1.PositionLast)
	}
	changes("m a z F", last("z", 600), placed(p.w, "a", 500, v1alpha1.PositionFirst))
	changes("F m a z", placed(p.w, "a", 500, ""))
	changes("m a z F", placed(p.w, "a", 500, v1alpha1.PositionFirst))
	changes("m a b y z F", last("y", 590), placed(p.w, "b", 550, v1alpha1.PositionFirst))
	for got := range said {
		// A copy of a program of Skep's, by which it moves, is no program of others.
		if strings.Contains(got, "came ") || strings.Contains(got, "count_ingress") {
			t.Errorf("says %q", got)
		}
	}
	if want := "position First is not reached yet: Skep moves its programs before F, one after the other"; !said[want] {
		t.Errorf("says %v, and never %q", said, want)
	}
}

// TestAPositionNeedsTCX: filters of clsact run by numbers that each tool chooses.
func TestAPositionNeedsTCX(t *testing.T) {
	need.Kernel(t)
	w := world.New(t)
	world.Veth(t, "fo0", "fo1")
	a, _ := w.Start()
	w.Must(a, placed(w, "a", 500, ""))
	err := w.Accept(a, placed(w, "a", 500, v1alpha1.PositionLast))
	if world.HasTCX() {
		if err != nil {
			t.Errorf("with TCX: %v", err)
		}
		return
	}
	const want = "place program count_ingress of a: this node's kernel has no TCX, which came with Linux 6.6, and runs filters of clsact by prefs that each " +
		"tool chooses for itself, so that position Last cannot be kept; leave position out, or keep the application away with nodeSelector"
	s := world.StatusOf(a, "a")
	if err == nil || s.Error != want || !s.Unsupported {
		t.Errorf("without TCX: %v, and the status says %q, want %q", err, s.Error, want)
	}
	if l := world.LinkOf(t, a, "a"); l.State != agent.Attached {
		t.Errorf("what ran is %+v", l)
	}
}

func TestAToolThatMovesBackIsAnsweredOnceAMinute(t *testing.T) {
	p := newPositions(t)
	p.step("a", "a", "", placed(p.w, "a", 500, v1alpha1.PositionFirst))
	p.attach("first_tool", link.Head())
	p.step("a first_tool", "a", "")
	for range 2 {
		back := p.attach("moves_back", link.Head())
		p.step("moves_back a first_tool", "a", "position First is not kept: moves_back came before it; Skep moves its programs at most once a minute")
		p.clock.Forward(59 * time.Second)
		p.step("moves_back a first_tool", "a", "is not kept")
		p.clock.Forward(time.Second)
		p.step("a moves_back first_tool", "a", "")
		world.Must(t, back.Close())
	}
}

// TestAPositionTakesNoTeamAheadOfTheCluster where the one that is to move before others cannot, since its object is lost: all stay in their
// order, and no program is made anew again and again.
func TestAPositionTakesNoTeamAheadOfTheCluster(t *testing.T) {
	const want = "F a z t G"
	for _, position := range []v1alpha1.Position{v1alpha1.PositionFirst, v1alpha1.PositionLast} {
		t.Run(string(position), func(t *testing.T) {
			p := newPositions(t)
			p.attach("F", link.Tail())
			stays, team := placed(p.w, "a", 500, ""), world.Tenant(placed(p.w, "t", 1, ""), "team-a", "t", 1, 1)
			lost := &stays
			if position == v1alpha1.PositionLast {
				lost = &team
			}
			lost.ObjectDigest = p.w.Object(world.ProgramsObject("tcx_count_v2"))
			world.Hand(p.w, p.a, stays, team)
			p.attach("G", link.Tail())
			lacksObject(t, p.w, lost.ObjectDigest)
			world.Hand(p.w, p.a, placed(p.w, "z", 900, position))
			for range 3 {
				world.Looks(t, p.a)
			}
			if got := order(t, p.a, p.foreign); got != want {
				t.Errorf("the order is %q, not %q", got, want)
			}
			before := world.LinksOf(p.a)
			for range 3 {
				world.Looks(t, p.a)
			}
			if diff := cmp.Diff(before, world.LinksOf(p.a)); diff != "" {
				t.Errorf("links were made anew (-before +after):\n%s", diff)
			}
		})
	}
}
