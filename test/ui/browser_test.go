package ui_test

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
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/need"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience is how long a page may take on a busy machine.
const patience = time.Minute

// startUI runs skep ui with arguments, and returns the address that it prints.
func startUI(t testing.TB, args ...string) string {
	t.Helper()
	binary, err := command.Cached(t.Context(), "./cmd/skep")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, append([]string{"ui"}, args...)...)
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

// browser is a Chromium for one test.
func browser(t testing.TB) context.Context {
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

// tab is a page in a browser. Its test fails for what the console complains about, and for a request to another origin.
type tab struct {
	testing.TB

	ctx    context.Context
	origin string

	mu         sync.Mutex
	complaints []string
	requests   []string
}

// open opens an address in a tab of the browser, whose documents run the scripts first.
func open(in context.Context, t testing.TB, address string, scripts ...string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(in)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p := &tab{TB: t, ctx: ctx, origin: u.Scheme + "://" + u.Host}
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
	call(p, network.Enable, network.EnableParams{})
	call(p, log.Enable, cdp.Empty{})
	call(p, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"})
	for _, script := range scripts {
		call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
	}
	p.do(chromedp.Navigate(address))
	return p
}

// note keeps what the browser says of the page.
func (p *tab) note(event any) {
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

// forgive takes complaints back that have a text.
func (p *tab) forgive(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complaints = slices.DeleteFunc(p.complaints, func(c string) bool { return strings.Contains(c, text) })
}

// call sends a command of the protocol.
func call[P, R any](p *tab, command cdp.Command[P, R], params P) R {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		p.Fatalf("%s: %v", command.Method, err)
	}
	return result
}

// do runs actions of the browser.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.Fatal(err)
	}
}

// evaluate is the value of an expression in the page, or of the promise that it is.
func evaluate[T any](p *tab, expression string) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.Fatalf("%s: %v", expression, err)
	}
	return value
}

// drawn is a promise that the page was painted.
const drawn = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`

// view leads to a view of the page, by its address behind the #.
func (p *tab) view(hash string) {
	p.Helper()
	evaluate[bool](p, `location.hash = `+quote(hash)+`; `+drawn)
}

// size gives the page a width, a height and a scheme of colours.
func (p *tab) size(width, height int64, scheme string) {
	p.Helper()
	p.do(chromedp.EmulateViewport(width, height))
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	evaluate[bool](p, drawn)
}

// shows waits until the page has a text in an element.
func (p *tab) shows(selector, want string) {
	p.Helper()
	p.holds(selector+" shows "+want, `[...document.querySelectorAll(`+quote(selector)+`)].some((e) => e.textContent.includes(`+quote(want)+`))`)
}

// holds waits until a condition of the page is true.
func (p *tab) holds(what, condition string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	err := await.Until(ctx, 100*time.Millisecond, func() error {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool](condition))
		if err == nil && !is {
			err = errors.New("it does not")
		}
		return err
	})
	if err != nil {
		p.Fatalf("%s: %v\n%s", what, err, evaluate[string](p, `document.body.innerText`))
	}
}

// shot keeps a picture of the whole page where SKEP_UI_SHOTS names a folder for it.
func (p *tab) shot(name string) {
	p.Helper()
	if dir := os.Getenv("SKEP_UI_SHOTS"); dir != "" {
		p.write(filepath.Join(dir, name+".png"), chromedp.FullScreenshot(100))
	}
}

// picture keeps what the window shows.
func (p *tab) picture(path string) {
	p.Helper()
	p.write(path, chromedp.CaptureScreenshot())
}

// write keeps a picture.
func (p *tab) write(path string, picture chromedp.Action[[]byte]) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, picture)
	if err == nil {
		err = os.WriteFile(path, png, 0o644)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// keys presses keys, by their names in KeyboardEvent.key.
func (p *tab) keys(names ...string) {
	p.Helper()
	codes := map[string]int64{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Home": 36, "Enter": 13, "Tab": 9}
	for _, name := range names {
		for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
			key := input.DispatchKeyEventParams{Type: kind, Key: name, Code: name, WindowsVirtualKeyCode: codes[name]}
			if name == "Enter" {
				key.Text = "\r"
			}
			call(p, input.DispatchKeyEvent, key)
		}
	}
}
