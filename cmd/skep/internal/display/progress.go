package display

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/text"
)

// each is how often the time of a step is shown on a terminal, and slow is how long a step takes until it is worth a line elsewhere.
const (
	each = time.Second
	slow = 10 * time.Second
)

// Progress shows which step of long work is under way: on a terminal in one line that is written anew, and with the time that the step takes;
// elsewhere in a line for each step that takes ten seconds. Its methods may be called of nil.
type Progress struct {
	w        io.Writer
	terminal bool
	// tick calls a function each second until the returned one is called.
	tick func(func(time.Duration)) (stop func())

	mu sync.Mutex
	// step counts those that began, and stop ends the one under way; nil without one.
	step int
	stop func()
}

// Begin shows the progress of a command on its standard error. The caller calls Done.
func Begin(cmd *cobra.Command) *Progress {
	w := cmd.ErrOrStderr()
	return &Progress{w: w, terminal: Terminal(w), tick: eachSecond}
}

// Working is Begin for work of one step.
func Working(cmd *cobra.Command, format string, args ...any) (done func()) {
	p := Begin(cmd)
	p.Step(format, args...)
	return p.Done
}

// Step ends the step before, and begins one.
func (p *Progress) Step(format string, args ...any) {
	if p == nil {
		return
	}
	p.Done()
	line := strings.TrimSuffix(text.CutRunes(text.Line(fmt.Sprintf(format, args...)), p.room()), "…")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%s…", line)
	}
	p.step++
	this, told := p.step, false
	p.stop = p.tick(func(since time.Duration) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.stop == nil || p.step != this:
		case p.terminal:
			fmt.Fprintf(p.w, "\r\x1b[K%s… %s", line, since.Round(time.Second))
		case !told && since >= slow:
			fmt.Fprintf(p.w, "%s…\n", line)
		}
		told = told || since >= slow
	})
}

// room is how many characters a step has: a line that wraps, with its time, could not be written anew.
func (p *Progress) room() int {
	const most, time = 90, len(" 1h59m59s")
	if columns, _, _ := Size(p.w); columns > 0 {
		return max(1, min(most, columns-time-1))
	}
	return most
}

// Done ends the last step, and removes the line from a terminal.
func (p *Progress) Done() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop == nil {
		return
	}
	p.stop()
	p.stop = nil
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// eachSecond calls f after each second, with the time that went.
func eachSecond(f func(time.Duration)) (stop func()) {
	began, over := time.Now(), make(chan struct{})
	go func() {
		ticks := time.NewTicker(each)
		defer ticks.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticks.C:
				f(time.Since(began))
			}
		}
	}()
	return func() { close(over) }
}
