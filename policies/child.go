package policies

import (
	"bufio"
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/skep-dev/skep/confined"
)

const (
	// maxStack bounds the stack of a child, which is no part of its heap.
	maxStack = 32 << 20
)

// MaybeWorkerChild turns this process into a worker where package policies
// started it as one; then it never returns. Every binary that uses an Engine calls
// it first thing in main, and so does the TestMain of their tests.
func MaybeWorkerChild() { confined.Serve(role, serve) }

// child is the worker as it sees itself.
type child struct {
	box *sandbox
	// out writes answers, and told passes them on: before anything is begun that may end
	// this process, so that the parent knows how far it was.
	out   *json.Encoder
	told  *bufio.Writer
	known map[string]*executable
	// kept is what the heap holds between tasks, empty what it held before the
	// first, and keeps how much more it may keep.
	kept, empty, keeps int64
	// bounds are those of the task that is worked on; unbound lifts them.
	bounds  bounds
	unbound func()
}

// serve does one task after another, until there is none any more.
func serve(c *confined.Child) error {
	debug.SetMaxStack(maxStack)
	debug.SetGCPercent(100)
	// It does one thing at a time, and beside it are others: that its threads wake each
	// other up costs more than the collector gains by it.
	runtime.GOMAXPROCS(1)
	in := gob.NewDecoder(c.In)
	var first task
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read the first task: %w", err)
	}
	if first.Start == nil {
		return errors.New("read the first task: it does not start the worker")
	}
	box, err := newSandbox()
	if err != nil {
		return err
	}
	told := bufio.NewWriter(c.Out)
	w := &child{box: box, out: json.NewEncoder(told), told: told, known: map[string]*executable{}, keeps: first.Start.KeptBytes}
	w.out.SetEscapeHTML(false)
	w.empty = live()
	w.kept = w.empty
	if err := c.Limit(w.kept + w.keeps + first.Start.MemoryBytes); err != nil {
		return err
	}
	if err := w.tell(answer{Done: &done{}}); err != nil {
		return err
	}
	for {
		var t task
		if err := in.Decode(&t); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read task: %w", err)
		}
		if err := w.work(t); err != nil {
			return err
		}
	}
}

// live is what the heap holds, without garbage.
func live() int64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(min(sample[0].Value.Uint64(), 1<<62))
}

// work does one task within its bounds.
func (w *child) work(t task) error {
	w.bounds = t.Bounds
	w.bound()
	defer func() { w.unbound() }()
	if err := w.do(t); err != nil {
		return w.tell(answer{Fault: err.Error()})
	}
	cleared := w.full()
	if cleared {
		w.known, w.kept = map[string]*executable{}, w.empty
	}
	return w.tell(answer{Done: &done{Cleared: cleared}})
}

// tell writes an answer, and tells the parent.
func (w *child) tell(a answer) error {
	if err := errors.Join(w.out.Encode(a), w.told.Flush()); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// full reports whether the compiled policies take more of the heap than is kept.
func (w *child) full() bool { return w.kept > w.empty+w.keeps }

// bound ends this process where it takes more than the bounds beside what it keeps.
// What is loaded beyond what may be kept is taken from the bounds.
func (w *child) bound() {
	if w.unbound != nil {
		w.unbound()
	}
	w.unbound = confined.Watch(heapBytes(min(w.kept, w.empty+w.keeps), w.bounds.MemoryBytes), w.bounds.CPU)
}

// do does what a task asks.
func (w *child) do(t task) error {
	switch {
	case t.Prove != nil:
		if err := w.tell(answer{Begun: true}); err != nil {
			return err
		}
		_, shown, err := w.box.compile(context.Background(), *t.Prove)
		if err != nil {
			return err
		}
		return w.out.Encode(answer{Proof: &shown})
	case t.Test != nil:
		if err := w.tell(answer{Begun: true}); err != nil {
			return err
		}
		var failed error
		broken, err := testPolicy(context.Background(), *t.Test, func(r TestResult) {
			failed = errors.Join(failed, w.tell(answer{Result: &r}))
		})
		if len(broken) > 0 {
			failed = w.out.Encode(answer{Broken: broken})
		}
		return errors.Join(err, failed)
	case t.Evaluate != nil:
		return w.evaluate(*t.Evaluate)
	}
	return errors.New("the task asks for nothing")
}

// evaluate answers questions about a document, and stops before the next where the
// turn is over, or the policies are too many to keep.
func (w *child) evaluate(e evaluation) error {
	value, err := ast.ValueFromReader(bytes.NewReader(e.Document))
	if err != nil {
		return fmt.Errorf("read the document: %w", err)
	}
	input, ok := value.(ast.Object)
	if !ok {
		return errors.New("read the document: it is no object")
	}
	if err := w.out.Encode(answer{Begun: true}); err != nil {
		return err
	}
	for began, i := time.Now(), 0; i < len(e.Policies); i++ {
		q := e.Policies[i]
		if w.full() || i > 0 && time.Since(began) > e.Turn {
			return nil
		}
		if err := w.told.Flush(); err != nil {
			return fmt.Errorf("write answer: %w", err)
		}
		policy, err := w.policyOf(q)
		if err != nil {
			return err
		}
		before := confined.CPUTime()
		v := w.ask(policy, input, e)
		if err := w.out.Encode(answer{Verdict: &v, Took: confined.CPUTime() - before}); err != nil {
			return err
		}
	}
	return nil
}

// ask asks a policy within its time. A single step of it that takes longer ends this process.
func (w *child) ask(policy *executable, input ast.Object, e evaluation) verdict {
	w.bounds.CPU = e.Timeout + grace
	w.bound()
	// What is compiled next has its own time.
	defer func() { w.bounds.CPU = 0; w.bound() }()
	ctx, end := confined.Spend(context.Background(), e.Timeout)
	defer end()
	ctx, cancel := context.WithTimeout(ctx, e.Clock)
	defer cancel()
	if len(e.Unknown) > 0 {
		return policy.foregone(ctx, input, e.Unknown)
	}
	return policy.evaluate(ctx, input)
}

// policyOf returns the policy that a question is for, and loads it first where the question has it.
func (w *child) policyOf(q question) (*executable, error) {
	if q.Program != nil {
		if err := w.load(q); err != nil {
			return nil, err
		}
	}
	policy := w.known[q.Key]
	if policy == nil {
		return nil, fmt.Errorf("policy %s is not known", q.Key)
	}
	return policy, nil
}

// load compiles a program that compiled before.
func (w *child) load(q question) error {
	if w.known[q.Key] == nil {
		before := live()
		policy, shown, err := w.box.compile(context.Background(), *q.Program)
		if err != nil {
			return err
		}
		if len(shown.Errors) > 0 {
			return fmt.Errorf("load policy %s: %w", q.Program.Policy, shown.Errors[0])
		}
		w.known[q.Key] = policy
		w.kept += max(live()-before, 0)
		w.bound()
	}
	return w.tell(answer{Loaded: true})
}
