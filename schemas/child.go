package schemas

import (
	"cmp"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skep-dev/skep/confined"
)

// role is what package schemas starts children as.
const role = "skep-render"

// maxOutput bounds what one child may render, in bytes of JSON.
const maxOutput = 16 << 20

// maxDeaths is how many units may break their child before the rest is given
// up.
const maxDeaths = 8

// job is what the parent tells the child.
type job struct {
	Files       map[string][]byte
	Units       []unit
	Tags        []string
	Package     string
	Expressions []string
	MemoryBytes int64
	// Places is how many fields have their places told.
	Places int
	// ListTags has the tags told, and nothing rendered.
	ListTags bool
	// CPU bounds the time of processors.
	CPU time.Duration
}

// record is one line of what the child answers. Exactly one field is set.
type record struct {
	// Begin and End bracket what belongs to the unit with that index.
	Begin *int `json:"begin,omitempty"`
	End   *int `json:"end,omitempty"`
	// UsedTag is the key of a tag the unit has a place for.
	UsedTag string   `json:"usedTag,omitempty"`
	Tag     *Tag     `json:"tag,omitempty"`
	Object  *Object  `json:"object,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

// outcome is what a child made of its units.
type outcome struct {
	objects  []Object
	problems []Problem
	tags     []Tag
	usedTags map[string]bool
	// done counts the units that ended, from the first.
	done int
	// begun tells that the child got as far as a unit.
	begun bool
	// broke says why the unit after those broke the child; empty where all ended.
	broke, fix string
}

// MaybeRenderChild turns this process into a renderer where package schemas
// started it as one; then it never returns. Every binary that calls Load or
// Render calls it first thing in main, and so does the TestMain of their tests.
func MaybeRenderChild() { confined.Serve(role, serve) }

// serve reads a job and renders within its limit of memory.
func serve(c *confined.Child) error {
	var j job
	if err := gob.NewDecoder(c.In).Decode(&j); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if err := c.Limit(j.MemoryBytes); err != nil {
		return err
	}
	confined.Watch(j.MemoryBytes, j.CPU)
	r := newRenderer(j.Files, j.Tags, c.Out)
	r.places, r.pkg, r.expressions = j.Places, j.Package, j.Expressions
	r.listTags, r.tagsLeft = j.ListTags, maxTags
	return r.run(j.Units)
}

// renderAll renders the units in children, one after another: a unit that
// breaks its child is reported and the next child goes on after it.
func renderAll(ctx context.Context, t *tree, units []unit, o Options) (outcome, error) {
	all := outcome{usedTags: map[string]bool{}, problems: t.problems}
	places := 0
	if o.Places {
		places = maxPlaces
	}
	for deaths := 0; len(units) > 0; deaths++ {
		if deaths == maxDeaths {
			for _, u := range units {
				all.problems = append(all.problems, Problem{
					Source:  Position{File: u.Path},
					unit:    u.Path,
					Message: fmt.Sprintf("not rendered, since %d others before it broke the renderer", maxDeaths),
					Fix:     "fix those first",
				})
			}
			return all, nil
		}
		out, err := renderIn(ctx, job{t.files, units, o.Tags, o.Package, o.Expressions, o.MemoryBytes, places, o.listTags, o.Timeout}, o.patience)
		if err != nil {
			return outcome{}, err
		}
		all.objects = append(all.objects, out.objects...)
		all.problems = append(all.problems, out.problems...)
		all.tags = append(all.tags, out.tags...)
		for tag := range out.usedTags {
			all.usedTags[tag] = true
		}
		if out.broke == "" {
			break
		}
		broken := units[out.done].Path
		all.problems = append(all.problems, Problem{Source: Position{File: broken}, Message: out.broke, Fix: out.fix, unit: broken})
		units = units[out.done+1:]
	}
	return all, nil
}

// renderIn runs one child. What the caller or the machine did is an error; what
// the units did is part of the outcome. A child that has not used up its time of processors when
// patience is over waits for other processes: that is the machine's doing.
func renderIn(ctx context.Context, j job, patience time.Duration) (outcome, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	p, err := confined.Start(limited, role)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return outcome{}, fmt.Errorf("render: %w within %s", errBusy, patience)
	}
	if err != nil {
		return outcome{}, fmt.Errorf("start the renderer: %w", cmp.Or(nested(err), err))
	}
	go func() {
		// A child that died early shows in its exit, not here.
		_ = gob.NewEncoder(p.Stdin).Encode(j)
		_ = p.Stdin.Close()
	}()
	out, decodeErr := readOutcome(p.Stdout, j.Units)
	if decodeErr != nil {
		cancel()
	}
	overdue := errors.Is(limited.Err(), context.DeadlineExceeded)
	end := death{Death: p.Wait(), output: decodeErr}
	switch {
	case ctx.Err() != nil:
		return outcome{}, fmt.Errorf("render: %w", ctx.Err())
	case out.done >= len(j.Units):
		return out, nil
	case overdue && !end.OutOfTime():
		return outcome{}, fmt.Errorf("render: %w within %s", errBusy, patience)
	case !out.begun && !end.OutOfTime():
		return outcome{}, fmt.Errorf("start the renderer: %w: %s", errors.Join(errNoRenderer, end.Err, decodeErr), end.Cause())
	}
	out.broke, out.fix = end.words(j.MemoryBytes, j.CPU)
	return out, nil
}

// nested says of a renderer that renders what it lacks; nil of anything else.
func nested(err error) error {
	if !errors.Is(err, confined.ErrNested) {
		return nil
	}
	return fmt.Errorf("%w: %w", err, errNoRenderer)
}

// errNoRenderer says what a child that renders nothing most likely means.
var errNoRenderer = errors.New("it ended before it rendered anything; main must call schemas.MaybeRenderChild first")

// errBusy says that a child got too little time of processors to end.
var errBusy = errors.New("the machine is too busy to render the definitions")

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
	var tags []Tag
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
		case rec.Tag != nil:
			tags = append(tags, *rec.Tag)
		case rec.UsedTag != "":
			out.usedTags[rec.UsedTag] = true
		case rec.Begin != nil:
			out.begun = true
			objects, problems, tags = nil, nil, nil
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
			out.tags = append(out.tags, tags...)
			out.problems = append(out.problems, problems...)
			out.done++
		}
	}
}

// death is how a child ended before its units did. Whatever the cause, it is
// laid to the unit that was begun, and the others go on without it.
type death struct {
	confined.Death

	output error
}

// words says what broke and what would fix it.
func (d death) words(memory int64, cpu time.Duration) (broke, fix string) {
	switch {
	case errors.Is(d.output, errOutput):
		return errOutput.Error(), "make it smaller or split it into several folders"
	case d.OutOfMemory():
		return fmt.Sprintf("rendering it takes more than %d MiB of memory", memory>>20), "look for a loop or a list that grows without bound"
	case d.OutOfThreads():
		return "the renderer lacked threads", confined.ErrThreads.Error()
	case d.StackOverflow():
		return "it is nested too deeply to be rendered", "look for a definition that contains itself"
	case d.OutOfTime():
		return fmt.Sprintf("rendering it takes longer than %s of processor time", cpu), "look for a loop that never ends"
	}
	return fmt.Sprintf("rendering it broke the renderer: %v", errors.Join(d.Err, d.output)), "simplify it; where it is small and simple, report it to the project"
}
