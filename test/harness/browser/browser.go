// Package browser looks at skep ui in a real Chromium, as its user does. It owns the command's process, the browser and what a test asks of
// a page, and fails a test for what the page must never do: it must not know what a page shows.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// Patience is how long a page may take on a busy machine.
const Patience = time.Minute

// UI runs skep ui with arguments, and returns the address that it prints.
func UI(t testing.TB, args ...string) string {
	t.Helper()
	binary, err := command.Cached(t.Context(), "./cmd/skep")
	if err != nil {
		t.Fatal(err)
	}
	// Address ends it, by Ctrl-C.
	return Address(t, exec.CommandContext(context.Background(), binary, append([]string{"ui"}, args...)...))
}

// Address runs a command of skep ui until the test ends, and returns the address that it prints.
func Address(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	if err := child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 130 {
			t.Errorf("skep ui ended with %d after Ctrl-C: %s", code, complaint.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("read the address: %v: %s", err, complaint.String())
	}
	return strings.TrimSpace(line)
}

// Start starts a Chromium for one test, and skips the test without one.
func Start(t testing.TB) context.Context {
	t.Helper()
	path := need.Program(t, "chromium", "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(t.TempDir(), "profile")),
		// It asks nothing of the network but this machine.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("lang", "en-GB"), chromedp.WindowSize(1280, 900))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	return ctx
}

// Tab is a page in a browser. Its test fails for what the console complains about, and for a request to another origin.
type Tab struct {
	testing.TB

	ctx    context.Context
	origin string

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// Open opens an address in a tab of the browser, whose documents run the scripts first.
func Open(in context.Context, t testing.TB, address string, scripts ...string) *Tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(in)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &Tab{TB: t, ctx: ctx, origin: u.Scheme + "://" + u.Host}
	if err := chromedp.Listen(ctx, p.note); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, complaint := range p.complaints {
			t.Errorf("the console says: %s", complaint)
		}
		for _, request := range p.requests {
			if !strings.HasPrefix(request, p.origin+"/") {
				t.Errorf("the page asks %s", request)
			}
		}
	})
	Call(p, network.Enable, network.EnableParams{})
	Call(p, log.Enable, cdp.Empty{})
	Call(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	for _, script := range scripts {
		Call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
	}
	p.do(chromedp.Navigate(address))
	return p
}

// note keeps what the browser says of the page.
func (p *Tab) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.complaints = append(p.complaints, text)
	case *runtime.EventConsoleAPICalled:
		for _, arg := range e.Args {
			p.complaints = append(p.complaints, string(arg.Value))
		}
	case *log.EventEntryAdded:
		p.complaints = append(p.complaints, e.Entry.Text+" "+e.Entry.URL)
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

// Forgive takes complaints back that have a text.
func (p *Tab) Forgive(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = slices.DeleteFunc(p.complaints, func(c string) bool { return strings.Contains(c, text) })
}

// Call sends a command of the protocol.
func Call[P, R any](p *Tab, command cdp.Command[P, R], params P) R {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, Patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		p.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// do runs actions of the browser.
func (p *Tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, Patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// Evaluate is the value of an expression in the page, or of the promise that it is.
func Evaluate[T any](p *Tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, Patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return value
}

// drawn is a promise that the page was painted.
const drawn = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`

// View leads to a view of the page, by its address behind the #.
func (p *Tab) View(hash string) {
	p.Helper()
	Evaluate[bool](p, `location.hash = `+strconv.Quote(hash)+`; `+drawn)
}

// Size gives the page a width, a height and a scheme of colours.
func (p *Tab) Size(width, height int64, scheme string) {
	p.Helper()
	p.do(chromedp.EmulateViewport(width, height))
	Call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	Evaluate[bool](p, drawn)
}

// Shows waits until the page has a text in an element.
func (p *Tab) Shows(selector, want string) {
	p.Helper()
	p.Holds(selector+" shows "+want, `[...document.querySelectorAll(`+strconv.Quote(selector)+`)].some((e) => e.textContent.includes(`+strconv.Quote(want)+`))`)
}

// Holds waits until a condition of the page is true.
func (p *Tab) Holds(what, condition string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, Patience)
	defer cancel()
	err := await.Until(ctx, 100*time.Millisecond, func() error {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition))
		if err == nil && !is {
			err = errors.New("it does not")
		}
		return err
	})
	if err != nil {
		p.Fatalf("%s: %v\n%s", what, err, Evaluate[string](p, `document.body.innerText`))
	}
}

// Shot keeps a picture of the whole page where SKEP_UI_SHOTS names a folder for it.
func (p *Tab) Shot(name string) {
	p.Helper()
	if dir := os.Getenv("SKEP_UI_SHOTS"); dir != "" {
		p.write(filepath.Join(dir, name+".png"), chromedp.FullScreenshot(100))
	}
}

// Picture keeps what the window shows.
func (p *Tab) Picture(path string) {
	p.Helper()
	p.write(path, chromedp.CaptureScreenshot())
}

// write keeps a picture.
func (p *Tab) write(path string, picture chromedp.Action[[]byte]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, Patience)
	defer cancel()
	png, err := chromedp.Run(ctx, picture)
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// Keys presses keys, by their names in KeyboardEvent.key.
func (p *Tab) Keys(names ...string) {
	p.Helper()
	codes := map[string]int64{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36, "Enter": 13, "Tab": 9}
	for _, name := range names {
		for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
			key := input.DispatchKeyEventParams{Type: kind, Key: name, Code: name, WindowsVirtualKeyCode: codes[name]}
			if name == "Enter" {
				key.Text = "\r"
			}
			Call(p, input.DispatchKeyEvent, key)
		}
	}
}
