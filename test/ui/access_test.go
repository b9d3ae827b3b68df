package ui_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/agent"
	"github.com/skep-dev/skep/api/v1alpha1"
	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/nodemode"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/browser"
)

// textOf is the text of a value of the accessibility tree.
func textOf(v *accessibility.Value) string {
	var text string
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return strings.TrimSpace(text)
}

// named are the roles whose elements need a name.
var named = []string{"button", "link", "textbox", "searchbox", "combobox", "grid", "gridcell", "img", "image", "navigation", "table", "region",
	"group", "heading", "option", "columnheader"}

// checkTree fails for a control without a name, and returns how often each role is there.
func checkTree(t *testing.T, p *browser.Tab, where string) map[string]int {
	t.Helper()
	roles := map[string]int{}
	level := 0
	for _, n := range browser.Call(p, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		role := textOf(n.Role)
		if n.Ignored {
			continue
		}
		roles[role]++
		if slices.Contains(named, role) && textOf(n.Name) == "" {
			t.Errorf("%s: a %s has no name", where, role)
		}
		if role != "heading" {
			continue
		}
		for _, property := range n.Properties {
			if property.Name != accessibility.PropertyNameLevel {
				continue
			}
			var now int
			_ = json.Unmarshal(property.Value.Value, &now)
			if now > level+1 {
				t.Errorf("%s: the heading %q has level %d after one of level %d", where, textOf(n.Name), now, level)
			}
			level = now
		}
	}
	return roles
}

func TestEachViewIsAccessible(t *testing.T) {
	p := startCluster(t, fleetOf(t, 12, 20))
	for hash, want := range map[string][]string{
		"#/applications":                   {"img", "searchbox", "list"},
		"#/fleet":                          {"grid", "gridcell", "combobox", "group"},
		"#/nodes/ip-10-0-0-3.eu-central-1": {"table", "list", "combobox"},
		"#/trust":                          {"table", "list"},
		"#/cost":                           {"table", "img"},
	} {
		p.View(hash)
		p.Holds("the view is there", `document.querySelector('h1') && !document.querySelector('main').textContent.includes('Reading…')`)
		roles := checkTree(t, p, hash)
		for _, role := range append(want, "banner", "navigation", "main", "heading", "link") {
			alias := map[string]string{"img": "image"}[role]
			if roles[role]+roles[alias] == 0 {
				t.Errorf("%s has no %s: %v", hash, role, roles)
			}
		}
		if got := browser.Evaluate[int](p, `document.querySelectorAll('h1').length`); got != 1 {
			t.Errorf("%s has %d first headings", hash, got)
		}
	}
}

// TestAUsersOwnColors replace those of the page, and what is chosen is still seen.
func TestAUsersOwnColors(t *testing.T) {
	p := startCluster(t, fleetOf(t, 12, 20))
	browser.Call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "forced-colors", Value: "active"}}})
	p.View("#/fleet")
	p.Shows("[role=gridcell]", " on ")
	p.Shot("forced-fleet")
	if got := browser.Evaluate[string](p, `[...document.querySelectorAll('nav a[aria-current], button[aria-pressed=true]')].map((e) => {
		const [on, off] = [e, e.parentElement.querySelector(':scope > :not([aria-current]):not([aria-pressed=true])')].map((one) => getComputedStyle(one));
		return on.outlineStyle !== off.outlineStyle || on.textDecorationLine !== off.textDecorationLine ? '' : e.textContent;
	}).join(' ').trim()`); got != "" {
		t.Errorf("the choice of %s is not seen", got)
	}
	// The grid is drawn in what the style sheet names.
	if got := browser.Evaluate[string](p, `getComputedStyle(document.documentElement).getPropertyValue('--surface').trim()`); got != "Canvas" {
		t.Errorf("the grid's ground is %s", got)
	}
	p.View("#/applications")
	p.Shows(".detail h1", "-")
	p.Shot("forced-application")
}

// TestTheKeyboardReachesEverything goes through a view with Tab alone: each place shows that it has the focus.
func TestTheKeyboardReachesEverything(t *testing.T) {
	p := startCluster(t, fleetOf(t, 3, 4))
	p.View("#/fleet")
	p.Shows("[role=gridcell]", " on ")
	browser.Evaluate[bool](p, `document.activeElement.blur(); true`)
	var seen []string
	for range 24 {
		p.Keys("Tab")
		seen = append(seen, browser.Evaluate[string](p, `(() => {
			const e = document.activeElement;
			if (e === document.body) return 'body';
			const s = getComputedStyle(e);
			return (e.className || e.localName) + (s.outlineStyle === 'none' || parseFloat(s.outlineWidth) < 2 ? ': the focus is not seen' : '');
		})()`))
	}
	for _, want := range []string{"skip", "card grid", "input", "select", "button"} {
		if !slices.Contains(seen, want) {
			t.Errorf("Tab does not reach %q: %v", want, seen)
		}
	}
	for _, one := range seen {
		if strings.Contains(one, "not seen") {
			t.Errorf("%s", one)
		}
	}
}

// hostile are texts that a page may take for something else than text.
func hostile() []string {
	return []string{
		`<script>document.title = "taken"</script>`, `"><img src=x onerror="document.title='taken'">`, `'"&amp;` + "`${1}`", "javascript:alert(1)",
		"safe\u202eexe.cod", "nul\x00bell\x07esc\x1b[31m", strings.Repeat("LongName", 1250), "🐝🐝 família 日本語", "../../etc/passwd",
		`</title><svg onload=alert(1)>`, "two\nlines\ttab",
		// Names that every object of JavaScript has, and a state's letter that none has.
		"constructor", "__proto__", "Q",
	}
}

// dress is a host where all that somebody may choose is a text.
func dress(t *testing.T, s string) (*nodemode.Status, *view.NodeView) {
	t.Helper()
	of, n := oneHost(t)
	for i := range of.Applications {
		a := &of.Applications[i]
		a.Name, a.Source, a.Image, a.Signers = fmt.Sprintf("%d%s", i, s), s, s, []string{s}
		a.Conditions = slices.Clone(a.Conditions)
		for j := range a.Conditions {
			a.Conditions[j].Message = s
			if a.Conditions[j].Type == v1alpha1.ConditionAllowed && a.Conditions[j].Status == metav1.ConditionTrue {
				a.Conditions[j].Message = "allowed by " + s
			}
		}
		a.Reasons = []policies.Reason{{Rule: s, Path: s, Message: s, Fix: s}}
		a.Warnings = a.Reasons
		for j := range a.Programs {
			a.Programs[j].Name, a.Programs[j].Links = s, []agent.LinkStatus{{Hook: s, Target: s, State: agent.Failed, Error: s}}
		}
	}
	of.Source.Address, of.Source.Revision, of.Source.Cautions = s, s, []string{s}
	id := v1alpha1.Identity{Kind: v1alpha1.KindBpfApplication, Namespace: s, Name: s}
	target := view.Target{Text: s, Interface: s}
	n.Name, n.Kernel.Release, n.LeftOut = s, s, []string{s}
	for i := range n.Applications {
		a := &n.Applications[i]
		a.Identity, a.Message, a.Error, a.VerifierLog, a.Pods = id, s, s, s, []string{s}
		a.Attachments = []view.Attachment{{Program: s, Hook: s, Target: target, State: s, Message: s, Notes: []string{s}}}
	}
	for i := range n.Interfaces {
		n.Interfaces[i].Target, n.Interfaces[i].Error, n.Interfaces[i].ModeReason = target, s, s
		for j := range n.Interfaces[i].Members {
			m := &n.Interfaces[i].Members[j]
			m.Application, m.Program, m.Notes, m.ProceedOn, m.Verdicts = &id, s, []string{s}, []string{s}, map[string]uint64{s: 3}
		}
	}
	for i := range n.Programs {
		n.Programs[i].Name, n.Programs[i].Type, n.Programs[i].Attached, n.Programs[i].Pins = s, s, []string{s}, []string{s}
		n.Programs[i].Holders = []view.Process{{PID: 1, Name: s}}
	}
	n.Loads = []view.Load{{Application: id, Waiting: s}}
	return &of, &n
}

func TestHostileTextIsText(t *testing.T) {
	s, p := startHost(t)
	elements := browser.Evaluate[int](p, `document.querySelectorAll('script, iframe, object, style, link').length`)
	for i, text := range hostile() {
		status, node := dress(t, text)
		// The number of loads says which text is shown.
		for range i % 2 {
			node.Loads = append(node.Loads, node.Loads[0])
		}
		s.put(status, node)
		p.View("#/nodes")
		p.Holds("the text is there", fmt.Sprintf(`document.querySelectorAll('.loads li').length === %d`, 1+i%2))
		p.Size([]int64{320, 1280}[i%2], 800, "light")
		for _, hash := range []string{"#/nodes", "#/fleet", "#/trust", "#/cost", "#/applications"} {
			p.View(hash)
			if broken := browser.Evaluate[string](p, `document.getElementById('alert').textContent`); broken != "" {
				t.Errorf("%.40q breaks %s: %s", text, hash, broken)
			}
			if wide := browser.Evaluate[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
				t.Errorf("%.40q makes %s %d pixels wider than the window", text, hash, wide)
			}
		}
		p.Holds("the first application is there", `/^[01]/.test(document.querySelector('.detail h1')?.textContent)`)
		if title := browser.Evaluate[string](p, `document.title`); strings.Contains(title, "taken") {
			t.Errorf("%q ran: %s", text, title)
		}
		if got := browser.Evaluate[int](p, `document.querySelectorAll('script, iframe, object, style, link').length`); got != elements {
			t.Errorf("%.40q made elements: %d, %d before", text, got, elements)
		}
		if got := browser.Evaluate[int](p, `document.querySelectorAll('main img, main [onerror], main [onload]').length`); got != 0 {
			t.Errorf("%.40q made %d elements in the page", text, got)
		}
		if hidden := browser.Evaluate[bool](p, `/[\u0000-\u0008\u000b-\u001f\u202a-\u202e\u2066-\u2069]/.test(document.body.textContent)`); hidden {
			t.Errorf("%.40q: a character is in the page that changes what others look like", text)
		}
	}
	p.Size(320, 800, "light")
	p.View("#/nodes")
	p.Shot("hostile-narrow")
}
