package policies

import (
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/skep-dev/skep/confined"
)

// maxAnswers bounds what a child answers to one task, in bytes.
const maxAnswers = 16 << 20

// startTimeout is how long a child may take to start.
const startTimeout = time.Minute

// worker is a child as its parent sees it. It does one task at a time.
type worker struct {
	process *confined.Process
	kill    context.CancelFunc
	tasks   *gob.Encoder
	answers *json.Decoder
	room    *io.LimitedReader
	// known are the policies that the child has compiled, by their keys.
	known map[string]bool
	// overdue tells that the child was ended because an answer took too long.
	overdue atomic.Bool
	used    time.Time
}

// endedError says how a child ended before it answered all.
type endedError struct {
	confined.Death

	// overdue tells that an answer took too long, begun that the task was in
	// memory.
	overdue, begun bool
}

// Error names the cause.
func (e *endedError) Error() string {
	if e.OutOfThreads() {
		return fmt.Sprintf("the worker ended: %s", confined.ErrThreads)
	}
	return fmt.Sprintf("the worker ended: %v: %s", e.Err, e.Cause())
}

// exhausted reports whether the child ended by a limit, which is the fault of
// what it worked on.
func (e *endedError) exhausted() bool {
	return e.begun && (e.overdue || e.OutOfMemory() || e.OutOfTime() || e.StackOverflow())
}

// errNoWorker says what a child that answers nothing most likely means.
var errNoWorker = errors.New("it ended before it answered; main must call policies.MaybeWorkerChild first")

// startWorker starts a child.
func startWorker(first start) (*worker, error) {
	ctx, kill := context.WithCancel(context.Background())
	p, err := confined.Start(ctx, role)
	if err != nil {
		kill()
		return nil, fmt.Errorf("start a worker for policies: %w", err)
	}
	room := &io.LimitedReader{R: p.Stdout}
	w := &worker{process: p, kill: kill, tasks: gob.NewEncoder(p.Stdin), answers: json.NewDecoder(room), room: room, known: map[string]bool{}}
	if err := w.ask(task{Start: &first}, startTimeout, nil); err != nil {
		return nil, fmt.Errorf("start a worker for policies: %w: %w", errNoWorker, err)
	}
	return w, nil
}

// end ends the child.
func (w *worker) end() confined.Death {
	w.kill()
	_ = w.process.Stdin.Close()
	return w.process.Wait()
}

// ask hands a task to the child, and each answer but the last to take. The first
// answer may take so long, the next as long as take says, or as the one before where
// that is 0. Where it is an error the child is gone: an *endedError, unless what it
// said is wrong.
func (w *worker) ask(t task, each time.Duration, take func(answer) (next time.Duration, err error)) error {
	w.room.N = maxAnswers
	timer := time.AfterFunc(each, func() {
		w.overdue.Store(true)
		w.kill()
	})
	defer timer.Stop()
	begun := false
	err := w.tasks.Encode(t)
	for err == nil {
		var a answer
		if err = w.answers.Decode(&a); err != nil {
			break
		}
		if a.Done != nil && timer.Stop() {
			if a.Done.Cleared {
				clear(w.known)
			}
			return nil
		}
		if a.Fault != "" {
			w.end()
			return fmt.Errorf("ask the worker for policies: %s", a.Fault)
		}
		begun = begun || a.Begun
		if a.Done == nil {
			next, err := take(a)
			if err != nil {
				w.end()
				return err
			}
			each = cmp.Or(next, each)
		}
		timer.Reset(each)
	}
	if w.room.N <= 0 {
		w.end()
		return fmt.Errorf("ask the worker for policies: it answers more than %d MiB", maxAnswers>>20)
	}
	overdue := w.overdue.Load()
	if !overdue {
		// What the child said of its end is read when it ended by itself.
		stop := time.AfterFunc(each, w.kill)
		defer stop.Stop()
		_ = w.process.Stdin.Close()
		return &endedError{Death: w.process.Wait(), begun: begun}
	}
	return &endedError{Death: w.end(), overdue: overdue, begun: begun}
}
