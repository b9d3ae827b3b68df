package ui_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/memory"

	"github.com/skep-dev/skep/test/harness/browser"
)

// clock lets a test set the page's clock, by so many milliseconds, and by a step whenever it is read.
const clock = `window.shift = 0; window.step = 0; const now = Date.now.bind(Date); Date.now = () => now() + (window.shift += window.step);`

// asking keeps what the page asks for, with the tag of what it has.
const asking = `window.asked = []; const ask = window.fetch.bind(window);
	window.fetch = (path, options) => { window.asked.push(path + ' ' + (options?.headers?.['If-None-Match'] || 'anew')); return ask(path, options); };`

// TestClocksThatAreSet change what is said of the past, and no rate.
func TestClocksThatAreSet(t *testing.T) {
	s, p := startHost(t, clock, asking)
	// All is read, and nothing is new from now on.
	p.Shows(".detail", "It is attached nowhere.")
	browser.Evaluate[bool](p, `window.shift = 100 * 86400000; true`)
	p.Shows(".detail .heading", "days ago")
	p.View("#/nodes")
	p.Shows("li.member .runs", "1,204,331")
	put := func(runs uint64) {
		n := nodeView(t, "web-1", runs)
		s.node.Store(&n)
	}
	// An hour is missing between any two answers: their rate would be wrong.
	browser.Evaluate[bool](p, `window.step = -3600000; true`)
	put(9_204_931)
	p.Shows("li.member .runs", "9,204,931")
	if got := browser.Evaluate[int](p, `document.querySelectorAll('.moving').length`); got != 0 {
		t.Errorf("%d rates are of an hour that was not", got)
	}
	browser.Evaluate[bool](p, `window.step = 0; window.asked.length = 0; true`)
	p.Holds("an answer is of the clock that is set no more", `window.asked.filter((one) => one.startsWith('data/node')).length > 1`)
	put(9_205_931)
	p.Shows("li.member .moving", "/s")
}

// TestAPlugInMakesNewCredentials once the API server does not accept the old ones.
func TestAPlugInMakesNewCredentials(t *testing.T) {
	dir := t.TempDir()
	token, plugIn := filepath.Join(dir, "token"), filepath.Join(dir, "plug-in")
	write := func(path, text string, mode os.FileMode) {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	s := fleetOf(t, 3, 8)
	accept := func(token string) {
		refuses := func(r *http.Request) int {
			if r.Header.Get("Authorization") != "Bearer "+token {
				return http.StatusUnauthorized
			}
			return 0
		}
		s.refuses.Store(&refuses)
	}
	write(token, "one", 0o600)
	accept("one")
	write(plugIn, "#!/bin/sh\nprintf '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{\"token\":\"%s\"}}' \"$(cat "+
		token+")\"\n", 0o700)
	// Credentials are sent by TLS alone.
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	kubeconfig := kubeconfigOf(t, server.URL,
		fmt.Sprintf(`{"exec":{"apiVersion":"client.authentication.k8s.io/v1","interactiveMode":"Never","command":%q}}`, plugIn))
	p := browser.Open(browser.Start(t), t, browser.UI(t, "--kubeconfig", kubeconfig))
	p.Shows(".detail h1", "xdp-counter-06")
	accept("two")
	p.Shows("#alert", "does not accept your credentials")
	write(token, "two", 0o600)
	p.Shows("#live", "Live")
	p.Forgive("502")
}

// TestASourceThatDoesNotAnswerIsSaid while the page waits for it.
func TestASourceThatDoesNotAnswerIsSaid(t *testing.T) {
	s, p := startHost(t, clock)
	p.Shows("#live", "Live")
	s.held.Lock()
	answer := sync.OnceFunc(s.held.Unlock)
	defer answer()
	browser.Evaluate[bool](p, `window.ticking = setInterval(() => { window.shift += 1000; }, 100); true`)
	p.Shows("#live", "Waiting for an answer; last")
	p.Shows(".detail h1", "first")
	browser.Evaluate[bool](p, `clearInterval(window.ticking); true`)
	answer()
	p.Shows("#live", "Live")
	// What was asked too long ago is an error.
	p.Forgive("502")
}

// TestAClusterThatGoesAwayAndComesBack is known all the while as it was.
func TestAClusterThatGoesAwayAndComesBack(t *testing.T) {
	s := fleetOf(t, 3, 8)
	p := startCluster(t, s)
	p.View("#/nodes/ip-10-0-0-1.eu-central-1")
	p.Shows("li.member", "guard_port")
	refuse := func(what func(path string) int) {
		refuses := func(r *http.Request) int { return what(r.URL.Path) }
		s.refuses.Store(&refuses)
	}
	// The right to ask nodes is taken away.
	refuse(func(path string) int {
		if strings.Contains(path, "/nodeviews/") || strings.Contains(path, "/bpfnodes/") {
			return http.StatusForbidden
		}
		return 0
	})
	p.Shows("main .error", "it needs the right to get nodeviews.view.skep.dev ip-10-0-0-1.eu-central-1")
	p.Shows("main .error", "What follows was read")
	p.Shows("li.member", "guard_port")
	p.Shows("#live", "Live")
	p.Shot("forbidden-node")
	// A node that was never read has no content.
	p.View("#/nodes/ip-10-0-0-2.eu-central-1")
	p.Shows("main .error", "ip-10-0-0-2.eu-central-1")
	p.Holds("it is not being read", `!document.querySelector('main').textContent.includes('Reading')`)
	p.View("#/cost/ip-10-0-0-2.eu-central-1")
	p.Shows("main .error", "it needs the right")
	// The credentials expire.
	refuse(func(string) int { return http.StatusUnauthorized })
	p.Shows("#alert", "does not accept your credentials")
	p.Shows("#live", "No answer; last")
	p.View("#/fleet")
	p.Shows("[role=gridcell]", " on ip-10-0-0-")
	p.Shot("expired")
	refuse(func(string) int { return 0 })
	p.Shows("#live", "Live")
	p.Holds("nothing is said any more", `document.getElementById('alert').textContent === ''`)
	// The lists are closed to the user.
	refuse(func(path string) int {
		if strings.HasSuffix(path, "/bpfnodes") || strings.HasSuffix(path, "/bpfsigners") {
			return http.StatusForbidden
		}
		return 0
	})
	p.Shows("#notes", "list bpfnodes.skep.dev; list bpfsigners.skep.dev")
	p.Shows("main", "You may not see nodes: you lack the right to list bpfnodes.skep.dev")
	p.View("#/trust")
	p.Shows("main", "you lack the right to list bpfsigners.skep.dev")
	p.Shot("partly")
	p.Forgive("502")
}

// TestAPageThatIsNotSeenAsksNothing until it is seen again.
func TestAPageThatIsNotSeenAsksNothing(t *testing.T) {
	_, p := startHost(t, asking, `window.away = false; Object.defineProperty(document, 'hidden', { get: () => window.away });
		window.timers = new Map(); const later = window.setTimeout.bind(window), not = window.clearTimeout.bind(window);
		window.setTimeout = (f, ms) => { const id = later(() => { window.timers.delete(id); f(); }, ms); window.timers.set(id, f); return id; };
		window.clearTimeout = (id) => { window.timers.delete(id); not(id); };`)
	p.Shows(".detail h1", "first")
	turn := func(away bool) {
		browser.Evaluate[bool](p, fmt.Sprintf(`window.away = %t; document.dispatchEvent(new Event('visibilitychange')); true`, away))
	}
	turn(true)
	// What was asked before is answered; then each timer runs, and those that they set.
	if asked := browser.Evaluate[int](p, `(async () => {
		await fetch('data/overview');
		const before = window.asked.length;
		for (let i = 0; i < 5; i += 1) {
			for (const [id, f] of [...window.timers]) { clearTimeout(id); f(); }
			await null;
		}
		return window.asked.length - before;
	})()`); asked != 0 {
		t.Errorf("it asked %d times", asked)
	}
	before := browser.Evaluate[int](p, `window.asked.length`)
	turn(false)
	p.Holds("it asks again", fmt.Sprintf(`window.asked.length > %d`, before))
}

// TestWhatTheUserTypedStays when another application is chosen, and so does the place in the list.
func TestWhatTheUserTypedStays(t *testing.T) {
	p := startCluster(t, fleetOf(t, 3, 200))
	p.Shows(".rows", "dns-watch-04")
	browser.Evaluate[bool](p, `(() => {
		const input = document.querySelector('.list-head input');
		input.value = 'WATCH';
		input.dispatchEvent(new Event('input', { bubbles: true }));
		document.querySelector('.rows').scrollTop = 200;
		return true;
	})()`)
	p.Holds("the list is filtered", `[...document.querySelectorAll('.rows .first')].every((e) => e.textContent.includes('watch'))`)
	browser.Evaluate[bool](p, `document.querySelectorAll('.rows a')[9].focus(); document.querySelectorAll('.rows a')[9].click(); true`)
	p.Holds("the application is shown", `location.hash.includes('watch') &&
		document.querySelector('.rows [aria-current] .first').textContent === document.querySelector('.detail h1').textContent.split('/').pop()`)
	p.Holds("the filter is shown", `document.querySelector('.list-head input').value === 'WATCH'`)
	p.Holds("the list is where it was", `document.querySelector('.rows').scrollTop === 200`)
	p.Holds("the link has the focus", `document.activeElement.getAttribute('aria-current') === 'true'`)
	p.View("#/fleet")
	browser.Evaluate[bool](p, `(() => {
		const [input, order] = [document.querySelector('.tools input'), document.querySelector('.tools select')];
		input.value = 'watch';
		input.dispatchEvent(new Event('input', { bubbles: true }));
		order.value = 'name';
		order.dispatchEvent(new Event('change', { bubbles: true }));
		return true;
	})()`)
	p.View("#/applications")
	p.View("#/fleet")
	p.Holds("the choices are shown", `document.querySelector('.tools input').value === 'watch' && document.querySelector('.tools select').value === 'name'`)
	// An address that is torn is one of the first view.
	p.View("#/%E0%A4%A/x")
	p.Shows("h1", "-")
	p.View("#/constructor")
	p.Shows(".rows", "watch")
	p.Holds("the filter is shown anew", `document.querySelector('.list-head input').value === 'WATCH'`)
}

// TestThePageDoesNotGrow however often views are changed and nodes are looked at.
func TestThePageDoesNotGrow(t *testing.T) {
	p := startCluster(t, fleetOf(t, 12, 20))
	p.Shows(".rows", "dns-watch-04")
	round := func() {
		for _, hash := range []string{"#/fleet", "#/trust", "#/applications", "#/cost", "#/nodes"} {
			p.View(hash)
			p.Holds("it is there", `document.querySelector('h1') && !document.querySelector('main').textContent.includes('Reading')`)
		}
	}
	counts := func() memory.GetDOMCountersResult {
		browser.Call(p, heapprofiler.CollectGarbage, cdp.Empty{})
		return browser.Call(p, memory.GetDOMCounters, cdp.Empty{})
	}
	round()
	round()
	first := counts()
	for range 10 {
		round()
	}
	last := counts()
	if last.Nodes > first.Nodes+first.Nodes/5 || last.JsEventListeners > first.JsEventListeners+first.JsEventListeners/5 {
		t.Errorf("it had %+v, and has %+v", first, last)
	}
}

// TestWhatWasLookedAtLongAgoIsForgotten by the page.
func TestWhatWasLookedAtLongAgoIsForgotten(t *testing.T) {
	p := startCluster(t, fleetOf(t, 12, 4), asking)
	for i := range 12 {
		p.View(fmt.Sprintf("#/nodes/ip-10-0-0-%d.eu-central-1", i))
		p.Shows("h1", fmt.Sprintf("ip-10-0-0-%d.", i))
		p.Shows("li.member", "guard_port")
	}
	for i, want := range map[int]string{0: " anew", 11: ` "`} {
		path := fmt.Sprintf("data/node?name=ip-10-0-0-%d.eu-central-1", i)
		browser.Evaluate[bool](p, `window.asked.length = 0; true`)
		p.View(fmt.Sprintf("#/nodes/ip-10-0-0-%d.eu-central-1", i))
		p.Holds("it is asked for", fmt.Sprintf(`window.asked.find((one) => one.startsWith('%s '))?.startsWith('%s%s')`, path, path, want))
	}
}
