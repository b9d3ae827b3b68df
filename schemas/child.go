package schemas

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"syscall"
	"time"
)

// childVariable is set in the environment of the child process and nowhere
// else.
const childVariable = "SKEP_SCHEMAS_CHILD"

// maxOutput bounds what one child may render, in bytes of JSON.
const maxOutput = 16 << 20

// reserve is the private memory a Go process may need beside its heap, in bytes.
const reserve = 192 << 20

// maxDeaths is how many units may break their child before the rest is given
// up.
const maxDeaths = 8

// job is what the parent tells the child.
type job struct {
	Files       map[string][]byte
	Units       []unit
	Tags        []string
	MemoryBytes int64
}

// record is one line of what the child answers. Exactly one field is set.
type record struct {
	// Begin and End bracket what belongs to the unit with that index.
	Begin *int `json:"begin,omitempty"`
	End   *int `json:"end,omitempty"`
	// UsedTag is the key of a tag the unit has a place for.
	UsedTag string   `json:"usedTag,omitempty"`
	Object  *Object  `json:"object,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

// outcome is what a child made of its units.
type outcome struct {
	objects  []Object
	problems []Problem
	usedTags map[string]bool
	// done counts the units that ended, from the first.
	done int
	// begun tells that the child got as far as a unit.
	begun bool
	// broke says why the unit after those broke the child; empty where all ended.
	broke, remedy string
}

// MaybeRenderChild turns this process into a renderer where package schemas
// started it as one; then it never returns. Every binary that calls Load or
// Render calls it first thing in main, and so does the TestMain of their tests.
func MaybeRenderChild() {
	if os.Getenv(childVariable) == "" {
		return
	}
	if err := renderChild(); err != nil {
		fmt.Fprintf(os.Stderr, "render: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// renderChild is the child: it gives up what it was not given on purpose, then
// serves.
func renderChild() error {
	// Opened while files can be, read when the job is in memory.
	statm, err := os.Open("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("limit the renderer: %w", err)
	}
	defer statm.Close()
	if err := isolate(); err != nil {
		return err
	}
	return serve(os.Stdin, os.Stdout, statm)
}

// serve reads a job, takes from this process what the job does not need, and
// renders. statm is /proc/self/statm.
func serve(in io.Reader, out io.Writer, statm io.Reader) error {
	var j job
	if err := gob.NewDecoder(in).Decode(&j); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if err := confine(j.MemoryBytes, statm); err != nil {
		return err
	}
	go watchMemory(j.MemoryBytes)
	return newRenderer(j.Files, j.Tags, out).run(j.Units)
}

// outOfMemory is what the child says of itself, in the words the Go runtime has
// for it.
const outOfMemory = "out of memory"

// watchMemory ends this process where its heap outgrows the limit. The limit
// set by confine is only the net below: Go does not always meet it with a
// message of its own.
func watchMemory(limit int64) {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	for range time.Tick(20 * time.Millisecond) {
		metrics.Read(heap)
		if heap[0].Value.Uint64() > uint64(limit) {
			fmt.Fprintln(os.Stderr, outOfMemory)
			os.Exit(1)
		}
	}
}

// renderAll renders the units in children, one after another: a unit that
// breaks its child is reported and the next child goes on after it.
func renderAll(ctx context.Context, t *tree, units []unit, o Options) (outcome, error) {
	all := outcome{usedTags: map[string]bool{}, problems: t.problems}
	for deaths := 0; len(units) > 0; deaths++ {
		if deaths == maxDeaths {
			for _, u := range units {
				all.problems = append(all.problems, Problem{
					Source:  Position{File: u.Path},
					unit:    u.Path,
					Message: fmt.Sprintf("not rendered, since %d others before it broke the renderer", maxDeaths),
					Remedy:  "mend those first",
				})
			}
			return all, nil
		}
		out, err := renderIn(ctx, job{t.files, units, o.Tags, o.MemoryBytes}, o.Timeout)
		if err != nil {
			return outcome{}, err
		}
		all.objects = append(all.objects, out.objects...)
		all.problems = append(all.problems, out.problems...)
		for tag := range out.usedTags {
			all.usedTags[tag] = true
		}
		if out.broke == "" {
			break
		}
		broken := units[out.done].Path
		all.problems = append(all.problems, Problem{Source: Position{File: broken}, Message: out.broke, Remedy: out.remedy, unit: broken})
		units = units[out.done+1:]
	}
	return all, nil
}

// renderIn runs one child, on a thread that ends with it; see startApart.
func renderIn(ctx context.Context, j job, timeout time.Duration) (out outcome, err error) {
	if os.Getenv(childVariable) != "" {
		return outcome{}, fmt.Errorf("start the renderer: this process is a renderer itself: %w", errNoRenderer)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		out, err = renderHere(ctx, j, timeout)
	}()
	<-ended
	return out, err
}

// renderHere runs one child. What the caller or the machine did is an error;
// what the units did is part of the outcome.
func renderHere(ctx context.Context, j job, timeout time.Duration) (outcome, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var stderr head
	p, err := startApart(limited, &stderr)
	if err != nil {
		return outcome{}, err
	}
	go func() {
		// A child that died early shows in its exit, not here.
		_ = gob.NewEncoder(p.stdin).Encode(j)
		_ = p.stdin.Close()
	}()
	out, decodeErr := readOutcome(p.stdout, j.Units)
	if decodeErr != nil {
		cancel()
	}
	end := death{output: decodeErr, exit: p.cmd.Wait(), timeout: errors.Is(limited.Err(), context.DeadlineExceeded), stderr: stderr.String()}
	switch {
	case ctx.Err() != nil:
		return outcome{}, fmt.Errorf("render: %w", ctx.Err())
	case out.done >= len(j.Units):
		return out, nil
	case !out.begun && !end.timeout:
		return outcome{}, fmt.Errorf("start the renderer: %w: %s", errors.Join(errNoRenderer, end.exit, decodeErr), stderr.line())
	}
	out.broke, out.remedy = end.words(j.MemoryBytes, timeout)
	return out, nil
}

// renderProcess is a child that runs.
type renderProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Reader
}

// startRenderer starts this binary once more, as a renderer in namespaces of its
// own: with an environment of its own, and killed with ctx or with its parent.
func startRenderer(ctx context.Context, stderr io.Writer, namespaces uintptr) (*renderProcess, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	// The argument keeps a test binary whose TestMain does not call
	// MaybeRenderChild from running its tests once more.
	cmd.Args = []string{"skep-render", "-test.run=^$"}
	cmd.Dir = "/"
	// No GOMEMLIMIT: near it the collector would run without end, and what
	// takes too much memory would only be found out by the timeout.
	cmd.Env = []string{childVariable + "=1", "GOGC=50", "GOTRACEBACK=none"}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &renderProcess{cmd, stdin, stdout}, nil
}

// errNoRenderer says what a child that renders nothing most likely means.
var errNoRenderer = errors.New("it ended before it rendered anything; main must call schemas.MaybeRenderChild first")

// errOutput says that a child rendered more than maxOutput.
var errOutput = fmt.Errorf("it renders to more than %d MiB", maxOutput>>20)

// readOutcome reads what a child answers about the units. It keeps only what
// belongs to units that ended.
func readOutcome(r io.Reader, units []unit) (outcome, error) {
	out := outcome{usedTags: map[string]bool{}}
	bounded := &io.LimitedReader{R: r, N: maxOutput}
	dec := json.NewDecoder(bounded)
	var objects []Object
	var problems []Problem
	for {
		var rec record
		if err := dec.Decode(&rec); errors.Is(err, io.EOF) && bounded.N > 0 {
			return out, nil
		} else if err != nil && bounded.N <= 0 {
			return out, errOutput
		} else if err != nil {
			return out, err
		}
		switch {
		case rec.Object != nil:
			objects = append(objects, *rec.Object)
		case rec.Problem != nil:
			problems = append(problems, *rec.Problem)
		case rec.UsedTag != "":
			out.usedTags[rec.UsedTag] = true
		case rec.Begin != nil:
			out.begun = true
			objects, problems = nil, nil
		case rec.End != nil && (*rec.End != out.done || out.done >= len(units)):
			return out, errors.New("the renderer's answer is out of order")
		case rec.End != nil:
			for i := range objects {
				objects[i].unit = units[out.done].Path
			}
			for i := range problems {
				problems[i].unit = units[out.done].Path
			}
			out.objects = append(out.objects, objects...)
			out.problems = append(out.problems, problems...)
			out.done++
		}
	}
}

// death is how a child ended before its units did. Whatever the cause, it is
// laid to the unit that was begun, and the others go on without it.
type death struct {
	output  error
	timeout bool
	exit    error
	stderr  string
}

// words says what broke and what would mend it.
func (d death) words(memory int64, timeout time.Duration) (broke, remedy string) {
	says := func(any ...string) bool {
		return slices.ContainsFunc(any, func(s string) bool { return strings.Contains(d.stderr, s) })
	}
	switch {
	case errors.Is(d.output, errOutput):
		return errOutput.Error(), "make it smaller or split it into several folders"
	case says(outOfMemory, "cannot allocate memory", "failed to allocate"):
		return fmt.Sprintf("rendering it takes more than %d MiB of memory", memory>>20), "look for a loop or a list that grows without bound"
	case says("stack exceeds", "stack overflow"):
		return "it is nested too deeply to be rendered", "look for a definition that contains itself"
	case d.timeout:
		return fmt.Sprintf("rendering it takes longer than %s", timeout), "look for a loop that never ends"
	}
	return fmt.Sprintf("rendering it broke the renderer: %v", errors.Join(d.exit, d.output)), "simplify it; where it is small and simple, report it to the project"
}

// head keeps the beginning and drops the rest of what is written to it: a Go crash
// says its cause first.
type head struct{ bytes.Buffer }

// Write never fails and keeps at most 4 KiB.
func (h *head) Write(p []byte) (int, error) {
	if room := 4<<10 - h.Len(); room > 0 {
		h.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// line is the first line.
func (h *head) line() string {
	first, _, _ := strings.Cut(h.String(), "\n")
	return first
}
