package arch_test

import (
	"fmt"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

const (
	// library and elfReader are where errors come from whose words are for those who write Go.
	library   = "github.com/cilium/ebpf"
	elfReader = "debug/elf"
	// plainly is the package that says them for users.
	plainly = module + "/bytecode/plain"
)

// harmless are functions that give no text of the error that they are given.
func harmless() []string {
	return []string{
		"errors.Is", "errors.As",
		// The verifier's own words.
		module + "/agent/program/loader.LogOf",
	}
}

// flow follows the errors of the library through the packages of the module.
type flow struct {
	// tainted are the values that have the library's words, and which call of it they are from.
	tainted map[ssa.Value]*ssa.Call
	pending []ssa.Value
	// callers are the calls of each function, and taken the functions that are values as well.
	callers  map[*ssa.Function][]ssa.CallInstruction
	closures map[*ssa.Function][]*ssa.MakeClosure
	taken    map[*ssa.Function]bool
	// found are the calls of the library, and how their errors leave.
	found map[*ssa.Call]string
	// types are the library's.
	types []types.Type
	// behind notes whether types of the library implement an interface.
	behind map[types.Type]bool
}

// unplain returns the places where an error of the library leaves a package as the library says it.
// Within a package it may go from function to function.
func unplain(list []*packages.Package) []string {
	program, built := ssautil.Packages(list, ssa.InstantiateGenerics)
	program.Build()
	f := &flow{tainted: map[ssa.Value]*ssa.Call{}, callers: map[*ssa.Function][]ssa.CallInstruction{}, closures: map[*ssa.Function][]*ssa.MakeClosure{},
		taken: map[*ssa.Function]bool{}, found: map[*ssa.Call]string{}, types: typesOf(program), behind: map[types.Type]bool{}}
	var sources []*ssa.Call
	for fn := range ssautil.AllFunctions(program) {
		if fn.Package() == nil || !slices.Contains(built, fn.Package()) {
			continue
		}
		for _, b := range fn.Blocks {
			for _, in := range b.Instrs {
				f.index(in)
				if call, ok := in.(*ssa.Call); ok && f.isSource(call) {
					sources = append(sources, call)
				}
			}
		}
	}
	for _, call := range sources {
		f.results(call, call, isError)
	}
	for len(f.pending) > 0 {
		v := f.pending[0]
		f.pending = f.pending[1:]
		for _, in := range *v.Referrers() {
			f.follow(v, in, f.tainted[v])
		}
	}
	var places []string
	for call, how := range f.found {
		name, _ := callee(call.Common())
		places = append(places, fmt.Sprintf("%s: an error of %s as it is: %s", program.Fset.Position(call.Pos()), name, how))
	}
	slices.Sort(places)
	return places
}

// index notes calls, and functions that are used as values.
func (f *flow) index(in ssa.Instruction) {
	var called ssa.Value
	if call, ok := in.(ssa.CallInstruction); ok {
		called = call.Common().Value
		if fn := call.Common().StaticCallee(); fn != nil {
			f.callers[fn] = append(f.callers[fn], call)
		}
	}
	if c, ok := in.(*ssa.MakeClosure); ok {
		f.closures[c.Fn.(*ssa.Function)] = append(f.closures[c.Fn.(*ssa.Function)], c)
	}
	for _, operand := range in.Operands(nil) {
		if fn, ok := (*operand).(*ssa.Function); ok && *operand != called {
			f.taken[fn] = true
		}
	}
}

// callee is the full name of what a call calls, and its package.
func callee(call *ssa.CallCommon) (name, path string) {
	object := call.Method
	if fn := call.StaticCallee(); fn != nil && object == nil {
		if origin := fn.Origin(); origin != nil {
			fn = origin
		}
		object, _ = fn.Object().(*types.Func)
	}
	if object == nil || object.Pkg() == nil {
		return "", ""
	}
	return object.FullName(), object.Pkg().Path()
}

// isSource reports whether a call is one of the libraries', or of an interface of the module behind which one may be. What
// it says of closing is the errno.
func (f *flow) isSource(call *ssa.Call) bool {
	name, path := callee(call.Common())
	isOurs := call.Common().IsInvoke() && within(path, module) && f.mayBe(call.Common().Value.Type())
	return (within(path, library) || path == elfReader || isOurs) && !strings.HasSuffix(name, ".Close")
}

// mayBe reports whether a value of an interface may be of a type of the library.
func (f *flow) mayBe(of types.Type) bool {
	is, known := f.behind[of]
	if !known {
		wanted, _ := of.Underlying().(*types.Interface)
		is = wanted != nil && slices.ContainsFunc(f.types, func(t types.Type) bool { return types.Implements(t, wanted) })
		f.behind[of] = is
	}
	return is
}

// typesOf are the exported types of the library, and pointers to them.
func typesOf(program *ssa.Program) (all []types.Type) {
	for _, p := range program.AllPackages() {
		if !within(p.Pkg.Path(), library) {
			continue
		}
		for _, name := range p.Pkg.Scope().Names() {
			if t, ok := p.Pkg.Scope().Lookup(name).(*types.TypeName); ok && t.Exported() {
				all = append(all, t.Type(), types.NewPointer(t.Type()))
			}
		}
	}
	return all
}

// isError reports whether a type is one of errors.
func isError(t types.Type) bool {
	return types.Implements(t, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// speaks reports whether a type can have the text of an error.
func speaks(t types.Type) bool {
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Kind() == types.String || isError(t)
}

func (f *flow) taint(v ssa.Value, from *ssa.Call) {
	if f.tainted[v] == nil && v.Referrers() != nil {
		f.tainted[v] = from
		f.pending = append(f.pending, v)
	}
}

// results taints what a call returns of types that can have the text, and reports whether it returns
// anything.
func (f *flow) results(call, from *ssa.Call, can func(types.Type) bool) bool {
	tuple, ok := call.Type().(*types.Tuple)
	if !ok {
		if can(call.Type()) {
			f.taint(call, from)
		}
		return true
	}
	for _, in := range *call.Referrers() {
		if e, ok := in.(*ssa.Extract); ok && can(e.Type()) {
			f.taint(e, from)
		}
	}
	return tuple.Len() > 0
}

// follow looks at one use of an error.
func (f *flow) follow(v ssa.Value, in ssa.Instruction, from *ssa.Call) {
	switch in := in.(type) {
	case *ssa.Phi, *ssa.ChangeInterface, *ssa.MakeInterface, *ssa.TypeAssert, *ssa.ChangeType, *ssa.Slice:
		f.taint(in.(ssa.Value), from)
	case *ssa.UnOp:
		f.taint(in, from)
	case *ssa.BinOp:
		if in.Op == token.ADD {
			f.taint(in, from)
		}
	case *ssa.IndexAddr:
		f.taint(in, from)
	case *ssa.Store:
		if in.Val == v {
			f.store(in, from)
		}
	case *ssa.MakeClosure:
		for i, binding := range in.Bindings {
			if binding == v {
				f.taint(in.Fn.(*ssa.Function).FreeVars[i], from)
			}
		}
	case *ssa.Return:
		f.leave(v, in, from)
	case ssa.CallInstruction:
		f.handOver(v, in, from)
	case *ssa.Send, *ssa.MapUpdate:
		f.found[from] = "it is kept"
	}
}

// store follows an error into a variable.
func (f *flow) store(in *ssa.Store, from *ssa.Call) {
	at := in.Addr
	for {
		switch a := at.(type) {
		case *ssa.FieldAddr:
			at = a.X
			continue
		case *ssa.IndexAddr:
			at = a.X
			continue
		case *ssa.Alloc:
			f.taint(a, from)
		case *ssa.FreeVar:
			f.taint(a, from)
			for _, c := range f.closures[a.Parent()] {
				f.taint(c.Bindings[slices.Index(a.Parent().FreeVars, a)], from)
			}
		default:
			f.found[from] = "it is kept"
		}
		return
	}
}

// isWithin reports whether a function is called by its package alone, with its name.
func (f *flow) isWithin(fn *ssa.Function) bool {
	return !token.IsExported(fn.Name()) && !f.taken[fn] && len(f.callers[fn]) > 0 && len(fn.Blocks) > 0
}

// leave follows an error out of a function.
func (f *flow) leave(v ssa.Value, in *ssa.Return, from *ssa.Call) {
	fn := in.Parent()
	if !f.isWithin(fn) {
		f.found[from] = fn.Name() + " returns it"
		return
	}
	for _, caller := range f.callers[fn] {
		call, ok := caller.(*ssa.Call)
		if !ok {
			continue
		}
		if len(in.Results) == 1 {
			f.taint(call, from)
			continue
		}
		for _, use := range *call.Referrers() {
			if e, ok := use.(*ssa.Extract); ok && in.Results[e.Index] == v {
				f.taint(e, from)
			}
		}
	}
}

// handOver follows an error into a call. What comes of it has its words, if the function is of another
// package.
func (f *flow) handOver(v ssa.Value, in ssa.CallInstruction, from *ssa.Call) {
	name, path := callee(in.Common())
	if path == plainly || within(path, library) || slices.Contains(harmless(), name) {
		return
	}
	if fn := in.Common().StaticCallee(); fn != nil && f.isWithin(fn) {
		for i, arg := range in.Common().Args {
			if arg == v {
				f.taint(fn.Params[i], from)
			}
		}
		return
	}
	call, ok := in.(*ssa.Call)
	switch builtin, is := in.Common().Value.(*ssa.Builtin); {
	case is && builtin.Name() == "append":
		f.taint(call, from)
	case is, ok && !strings.HasPrefix(name, "fmt.Fprint") && f.results(call, from, speaks):
	default:
		f.found[from] = "it is handed to " + name
	}
}

// callTheLibrary are the packages that users see errors of. An example imports nothing of the module,
// nor does the module of readers: those who link it know the library.
func callTheLibrary(g graph) []string {
	var users []string
	for _, name := range g.packages() {
		calls := slices.ContainsFunc(g[module+"/"+name].imports, func(path string) bool { return within(path, library) || path == elfReader })
		if calls && !within(name, "test") && !within(name, "examples") && !within(name, readersModule) {
			users = append(users, module+"/"+name)
		}
	}
	return users
}

func TestErrorsOfTheLibraryAreSaidPlainly(t *testing.T) {
	for _, place := range unplain(typed(t, nil, callTheLibrary(load(t))...)) {
		t.Errorf("%s; use plain.Error or plain.Of", strings.TrimPrefix(place, root(t)+"/"))
	}
}

func TestErrorsThatAreNotSaidPlainlyAreSeen(t *testing.T) {
	const source = `package arch

import (
	"debug/elf"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/skep-dev/skep/bytecode/plain"
)

type kept struct{ err error }

type held interface{ Freeze() error }

// Wrapped, Behind, Text, Later, Kept, Told, Joined, File and Value are faults.
func Behind(h held) error { return fmt.Errorf("freeze: %w", h.Freeze()) }
func Wrapped(m *ebpf.Map) error { return fmt.Errorf("freeze: %w", m.Freeze()) }
func Text(m *ebpf.Map) string { return "freeze: " + m.Freeze().Error() }
func Later(m *ebpf.Map) error { return inner(m) }
func Kept(m *ebpf.Map, k *kept) { k.err = m.Freeze() }
func Told(m *ebpf.Map, tell func(error)) { tell(m.Freeze()) }
func Joined(m *ebpf.Map) error {
	var all []error
	all = append(all, m.Freeze())
	return errors.Join(all...)
}
func File(path string) (*elf.File, error) { return elf.Open(path) }
func Value(m *ebpf.Map) func() error { return func() error { return m.Freeze() } }

func inner(m *ebpf.Map) error {
	if err := m.Freeze(); err != nil {
		return fmt.Errorf("inner: %w", err)
	}
	return nil
}

// The others are fine.
func Plain(m *ebpf.Map) error { return fmt.Errorf("freeze: %w", plain.Error(m.Freeze())) }
func Both(spec *ebpf.MapSpec) (*ebpf.Map, error) { return plain.Of(ebpf.NewMap(spec)) }
func Asked(m *ebpf.Map) bool { return errors.Is(m.Freeze(), ebpf.ErrNotSupported) }
func Outer(m *ebpf.Map) error { return say(m.Freeze()) }
func say(err error) error { return fmt.Errorf("say: %w", plain.Error(err)) }
`
	path := root(t) + "/test/arch/overlay.go"
	got := unplain(typed(t, map[string][]byte{path: []byte(source)}, module+"/test/arch"))
	if len(got) != 9 {
		t.Errorf("saw %d, want nine:\n%s", len(got), strings.Join(got, "\n"))
	}
}
