package policies

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// role is what package policies starts children as.
const role = "skep-rego"

// program is all of a policy that is Rego: what a child compiles. It decides the
// outcome of compiling, and of evaluating an input.
type program struct {
	// Policy is the name by which reasons and errors name it, File that of its
	// source.
	Policy, File string
	// Exactly one of Profile and Rego is set.
	Profile, Rego string
	// Parameters are spec.parameters as a JSON object.
	Parameters []byte
}

// programOf is the Rego of a policy.
func programOf(p Policy) (program, error) {
	parameters, err := json.Marshal(table(p.Spec.Parameters))
	if err != nil {
		return program{}, fmt.Errorf("spec.parameters: %w", err)
	}
	return program{Policy: p.String(), File: p.file(), Profile: p.Spec.Profile, Rego: p.Spec.Rego, Parameters: parameters}, nil
}

// key names a program by its content.
func (p program) key() string {
	sum := sha256.New()
	for _, part := range []string{p.Policy, p.File, p.Profile, p.Rego, string(p.Parameters)} {
		fmt.Fprintf(sum, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// bounds are the limits that a task is worked on within.
type bounds struct {
	// MemoryBytes is how much more heap it may take than the child has without
	// it; CPU is how much time of CPUs, where it is not 0.
	MemoryBytes int64
	CPU         time.Duration
}

// task is what the parent asks of a child. Exactly one of Start, Prove, Evaluate
// and Test is set.
type task struct {
	// Start is the first task. It bounds the memory of the child for good.
	Start *start
	// Bounds hold for the task alone.
	Bounds   bounds
	Prove    *program
	Evaluate *evaluation
	Test     *testRun
}

// start is what a child is told before anything else.
type start struct {
	// MemoryBytes is the most that the bounds of a task will say, KeptBytes how
	// much memory the child may keep in compiled policies.
	MemoryBytes, KeptBytes int64
}

// evaluation asks policies, one after another, about one document.
type evaluation struct {
	Document []byte
	Policies []question
	// Unknown names the facets of the document that nobody could tell; where there
	// are any, each policy is asked for its denials that hold all the same.
	Unknown []string
	// Timeout is how much time of CPUs each policy may take, and Clock how much of the clock.
	Timeout, Clock time.Duration
	// Turn is how long the policies may take together. No other is asked after that;
	// one is asked in any case.
	Turn time.Duration
}

// question names one policy that is asked.
type question struct {
	Key string
	// Program is its Rego, where the child does not know it yet.
	Program *program
}

// testRun runs the tests of one policy.
type testRun struct {
	Program program
	// Files are the tests by the names of their files.
	Files map[string]string
	// Trace has the tests that fail traced.
	Trace bool
}

// answer is one line of what a child answers. Exactly one field is set.
type answer struct {
	// Begun says that the task is in memory and its document is parsed.
	Begun bool `json:"begun,omitempty"`
	// Loaded says that the program of a question is compiled.
	Loaded bool `json:"loaded,omitempty"`
	// Proof answers Prove, one Verdict each question of Evaluate, one Result each
	// test of Test.
	Proof   *proof   `json:"proof,omitempty"`
	Verdict *verdict `json:"verdict,omitempty"`
	// Took is the time of CPUs that a verdict took, beside it.
	Took   time.Duration `json:"took,omitempty"`
	Result *TestResult   `json:"result,omitempty"`
	// Broken is why no test runs.
	Broken []*CompileError `json:"broken,omitempty"`
	// Fault says that the child could not do the task, which is no policy's fault.
	Fault string `json:"fault,omitempty"`
	// Done is the last answer to a task.
	Done *done `json:"done,omitempty"`
}

// done ends the answers to a task.
type done struct {
	// Cleared says that the child forgot every policy it knew. The questions that it
	// did not answer yet are to be asked again.
	Cleared bool `json:"cleared,omitempty"`
}

// proof is what compiling a program showed.
type proof struct {
	// Errors are what is wrong with it; empty means that it compiles.
	Errors []*CompileError `json:"errors,omitempty"`
	// Denies tells that it has a deny.
	Denies bool `json:"denies,omitempty"`
	// TimeDependent, Authored and AllEvidence say what it may read; see
	// compiled.
	TimeDependent bool `json:"timeDependent,omitempty"`
	Authored      bool `json:"authored,omitempty"`
	AllEvidence   bool `json:"allEvidence,omitempty"`
}

// verdict is what one policy says.
type verdict struct {
	Denied   []Reason `json:"denied,omitempty"`
	Warnings []Reason `json:"warnings,omitempty"`
	// Failed tells that the policy denied by failing, Late that it did so because
	// it exceeded a limit, which may be otherwise the next time, and Busy that the
	// limit was the clock's, which is no fault of its.
	Failed bool `json:"failed,omitempty"`
	Late   bool `json:"late,omitempty"`
	Busy   bool `json:"busy,omitempty"`
}

// fails is the verdict of a policy that could not evaluate: it denies.
func fails(policy, what, fix string) verdict {
	return verdict{Failed: true, Denied: []Reason{{
		Rule:    policy + "/" + ruleError,
		Message: fmt.Sprintf("policy %s %s, so it allows nothing it evaluates", policy, what),
		Fix:     fix, Failed: true,
	}}}
}

// late is the verdict of a policy that did not finish: it took all its time of a processor,
// or had too little of one.
func late(policy string, spent bool) verdict {
	v := fails(policy, "was not given a processor for long enough: this machine is busy", "try again; what runs is kept, and evaluated again by itself")
	if spent {
		v = fails(policy, "did not finish in time", "its author is to make it cheaper, or to narrow its match")
	}
	v.Late, v.Busy = true, !spent
	return v
}
