// Package functions finds functions of the running kernel by name.
//
// It reads the kernel's own lists: what ftrace can trace, else all symbols. It keeps what
// was chosen until a module is loaded or unloaded. It attaches nothing.
package functions

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// MissingError says that the kernel has no function of a name.
type MissingError struct {
	// Name is what was asked for, and Near lists names that are like it, as text.Nearest does.
	Name, Near string
	// Untraceable reports that the kernel has the function, and cannot trace it.
	Untraceable bool
}

// Error implements error.
func (e *MissingError) Error() string {
	if e.Untraceable {
		return fmt.Sprintf("the kernel has a function %s and cannot trace it: it is marked notrace, or has several of that name; name a caller of it", e.Name)
	}
	return fmt.Sprintf("the kernel has no function %s: it is inlined, of a module that is not loaded, or misspelled; look it up in /proc/kallsyms%s",
		e.Name, e.Near)
}

// LimitError says that more functions are chosen than may be.
type LimitError struct {
	Chosen, Limit int
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%d functions of this kernel are chosen, and the limit is %d; narrow functions.names, or raise functions.limit", e.Chosen, e.Limit)
}

// ErrLater says that this round has looked for long enough. What is chosen is known in a
// later round.
var ErrLater = errors.New("functions of the kernel are looked up for others first")

// roundGrace is how long the look-ups of one round take before others have to wait for the
// next. One takes up to a second on a kernel with every module.
const roundGrace = 200 * time.Millisecond

// Choice is what a definition chooses of the running kernel.
type Choice struct {
	// Names of the functions, sorted, each once.
	Names []string
	// ID is another one where the definition says something else, or chooses other
	// functions, or where a module of theirs was loaded again.
	ID string
	// modules are those of the functions that are not the kernel's own.
	modules map[string]string
}

// Module returns the module that has one of the functions, and what tells it from the same
// one after it was loaded again, which ends every kprobe; empty for the kernel's own.
func (c Choice) Module(name string) string { return c.modules[name] }

// answer is a choice, or why there is none.
type answer struct {
	Choice
	err error
}

// Kernel finds functions of the running kernel. All methods may be called from any goroutine. What
// was found is known until a module comes or goes. A round lasts from one Sweep to the
// next, and looks for a bounded time.
type Kernel struct {
	// root is where procfs and sysfs are; empty but in tests.
	root string
	// mu guards what follows.
	mu sync.Mutex
	// modules are those that were loaded when chosen and explained were filled, and inodes
	// tell them from the same ones after they were loaded again.
	modules string
	inodes  map[string]uint64
	// chosen is by what was asked, and sought is what was asked in this round. explained
	// is by prefix and name, nil where there is nothing to explain. keys are those of chosen, by ID.
	chosen    map[string]answer
	keys      map[string]string
	sought    map[string]bool
	explained map[string]*MissingError
	// lists are what was read in this round, and spent is how long that took.
	lists   *lists
	checked bool
	spent   time.Duration
}

// lists are what the kernel tells of its functions.
type lists struct {
	// traceable can be traced by name, and names are theirs.
	traceable []function
	names     map[string]bool
	// modules are those of the functions that are not the kernel's own.
	modules map[string]string
}

// New returns a Kernel that knows nothing yet.
func New() *Kernel {
	return &Kernel{chosen: map[string]answer{}, keys: map[string]string{}, sought: map[string]bool{}, explained: map[string]*MissingError{}}
}

// Sweep begins a round. It forgets what was not chosen in the last one that chose any.
func (k *Kernel) Sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.sought) > 0 {
		maps.DeleteFunc(k.chosen, func(key string, one answer) bool {
			if !k.sought[key] {
				delete(k.keys, one.ID)
			}
			return !k.sought[key]
		})
		clear(k.sought)
	}
	k.lists, k.checked, k.spent = nil, false, 0
}

// Names returns the functions of a choice that is remembered, and remembers it further.
func (k *Kernel) Names(id string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, known := k.keys[id]
	if !known {
		return nil
	}
	k.sought[key] = true
	return k.chosen[key].Names
}

// Choose returns the functions that a definition chooses. Where it names them all, they
// are returned though the kernel may not have them. It fails with ErrLater, with *LimitError, or with *MissingError
// where a glob or a module has none.
func (k *Kernel) Choose(f *v1alpha1.Functions) (Choice, error) {
	if f == nil || len(f.Names) == 0 {
		return Choice{}, errors.New("functions: no name is given; list functions.names")
	}
	sorted := *f
	sorted.Names, sorted.Exclude = slices.Sorted(slices.Values(f.Names)), slices.Sorted(slices.Values(f.Exclude))
	key, err := json.Marshal(sorted)
	if err != nil {
		return Choice{}, fmt.Errorf("choose functions: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.checkModules(); err != nil {
		return Choice{}, err
	}
	k.sought[string(key)] = true
	known, ok := k.chosen[string(key)]
	if !ok {
		names, unseen := f.Names, f.Module == "" && len(f.Exclude) == 0 && !slices.ContainsFunc(f.Names, IsGlob)
		if k.spent > roundGrace && (!unseen || k.lists == nil) {
			return Choice{}, ErrLater
		}
		if !unseen {
			names, err = k.match(f)
		}
		known = k.newAnswer(f, key, names, err)
		k.chosen[string(key)] = known
		if known.err == nil {
			k.keys[known.ID] = string(key)
		}
	}
	return known.Choice, known.err
}

// newAnswer is what was chosen, unless that is too much.
func (k *Kernel) newAnswer(f *v1alpha1.Functions, key []byte, names []string, err error) answer {
	if err != nil {
		return answer{err: err}
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	limit := v1alpha1.DefaultFunctions
	if f.Limit != nil {
		limit = int(*f.Limit)
	}
	if len(names) > limit {
		return answer{err: &LimitError{Chosen: len(names), Limit: limit}}
	}
	id, modules := sha256.New(), k.modulesOf(names)
	_, _ = id.Write(key)
	for _, name := range names {
		_, _ = fmt.Fprintln(id, name, modules[name])
	}
	return answer{Choice: Choice{Names: names, ID: hex.EncodeToString(id.Sum(nil)[:8]), modules: modules}}
}

// modulesOf tells the modules of functions that can be traced. Where the kernel does not
// list these, it is not known.
func (k *Kernel) modulesOf(names []string) map[string]string {
	defer k.spend(time.Now())
	modules := map[string]string{}
	all, err := k.list()
	if err != nil {
		return modules
	}
	for _, name := range names {
		if module := all.modules[name]; module != "" {
			modules[name] = fmt.Sprintf("%s:%d", module, k.inodes[module])
		}
	}
	return modules
}

// checkModules forgets what was found with other modules. It looks once in a round. The
// folder of a module in sysfs has another inode after the module was loaded again.
func (k *Kernel) checkModules() error {
	if k.checked {
		return nil
	}
	body, err := os.ReadFile(k.root + "/proc/modules")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list modules: %w", err)
	}
	var modules strings.Builder
	inodes := map[string]uint64{}
	for line := range strings.Lines(string(body)) {
		name, _, _ := strings.Cut(line, " ")
		var st unix.Stat_t
		if err := unix.Stat(k.root+"/sys/module/"+name, &st); err == nil {
			inodes[name] = st.Ino
		}
		fmt.Fprintln(&modules, name, inodes[name])
	}
	if k.modules != modules.String() {
		k.modules, k.inodes = modules.String(), inodes
		clear(k.chosen)
		clear(k.keys)
		clear(k.explained)
	}
	k.checked = true
	return nil
}

// spend adds to what the round spent since a time.
func (k *Kernel) spend(began time.Time) { k.spent += time.Since(began) }

// IsGlob reports whether a name is a pattern.
func IsGlob(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// match returns the functions that the patterns choose. Each name and pattern has to
// choose one.
func (k *Kernel) match(f *v1alpha1.Functions) ([]string, error) {
	for _, pattern := range slices.Concat(f.Names, f.Exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return nil, fmt.Errorf("functions: %q is not a pattern; write a name or a glob such as tcp_*", pattern)
		}
	}
	defer k.spend(time.Now())
	all, err := k.list()
	if err != nil {
		return nil, err
	}
	var chosen []string
	used := map[string]bool{}
	for _, one := range all.traceable {
		if f.Module != "" && one.module != f.Module || matches(f.Exclude, one.name, nil) {
			continue
		}
		if matches(f.Names, one.name, used) {
			chosen = append(chosen, one.name)
		}
	}
	for _, pattern := range f.Names {
		if !used[pattern] && !matches(f.Exclude, pattern, nil) {
			return nil, missing("", pattern, all.traceable)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("functions.exclude takes away every function that functions.names chooses; exclude fewer")
	}
	return chosen, nil
}

// matches reports whether any pattern takes the name, and notes which do.
func matches(patterns []string, name string, used map[string]bool) bool {
	found := false
	for _, p := range patterns {
		if ok, err := path.Match(p, name); err == nil && ok {
			found = true
			if used == nil {
				break
			}
			used[p] = true
		}
	}
	return found
}

// maxExplained is how many explanations are kept.
const maxExplained = 1000

// Explain returns a *MissingError for the first of the names that the kernel has not, or
// cannot trace. It returns nil where the kernel has them all or cannot be asked, and where
// the round has looked for long enough. The kernel's functions begin with the prefix, which
// is told nowhere.
func (k *Kernel) Explain(prefix string, names ...string) error {
	if err := k.Check(prefix, names...); !errors.Is(err, ErrLater) {
		return err
	}
	return nil
}

// Check is Explain, but fails with ErrLater where the round has looked for long enough.
func (k *Kernel) Check(prefix string, names ...string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.checkModules(); err != nil {
		// It is not known.
		return nil
	}
	for _, name := range names {
		known, ok := k.explained[prefix+name]
		if !ok {
			if k.spent > roundGrace {
				return ErrLater
			}
			known = k.explain(prefix, name)
			if len(k.explained) >= maxExplained {
				clear(k.explained)
			}
			k.explained[prefix+name] = known
		}
		if known != nil {
			return known
		}
	}
	return nil
}

// explain returns what is to be said of one name, or nil.
func (k *Kernel) explain(prefix, name string) *MissingError {
	defer k.spend(time.Now())
	all, err := k.list()
	if err != nil || all.names[prefix+name] {
		return nil
	}
	symbols, err := k.symbols()
	if err == nil && slices.ContainsFunc(symbols, func(s function) bool { return s.name == prefix+name }) {
		return &MissingError{Name: name, Untraceable: true}
	}
	return missing(prefix, name, all.traceable)
}

// missing says which functions are like the name: what the compiler made of it, such as
// tcp_ack.isra.0, or what differs in few characters. Functions without the prefix are none.
func missing(prefix, name string, all []function) *MissingError {
	near := text.NewNearest(strings.Trim(name, "*?"))
	for _, one := range all {
		if rest, ok := strings.CutPrefix(one.name, prefix); ok {
			near.Add([]byte(rest))
		}
	}
	return &MissingError{Name: name, Near: near.String()}
}

// function is one of the kernel's.
type function struct {
	// module is empty for the kernel itself.
	name, module string
}

// list returns the functions that can be traced by name: those of ftrace or, where the
// kernel does not tell these, all. One whose name another has, too, is none. It reads once
// in a round.
func (k *Kernel) list() (*lists, error) {
	if k.lists != nil {
		return k.lists, nil
	}
	all, err := k.read("/sys/kernel/tracing/available_filter_functions", parseTraceable)
	if err != nil {
		if all, err = k.symbols(); err != nil {
			return nil, err
		}
	}
	// False for a name that several have.
	names := make(map[string]bool, len(all))
	for _, one := range all {
		_, again := names[one.name]
		names[one.name] = !again
	}
	all = slices.DeleteFunc(all, func(one function) bool { return !names[one.name] })
	modules := map[string]string{}
	for _, one := range all {
		if one.module != "" {
			modules[one.name] = one.module
		}
	}
	k.lists = &lists{traceable: all, names: names, modules: modules}
	return k.lists, nil
}

// symbols lists all functions.
func (k *Kernel) symbols() ([]function, error) {
	return k.read("/proc/kallsyms", parseSymbol)
}

// read reads one of the kernel's lists, line by line.
func (k *Kernel) read(name string, parse func(string) (function, bool)) ([]function, error) {
	file, err := os.Open(k.root + name)
	if err != nil {
		return nil, fmt.Errorf("list functions of the kernel: %w", err)
	}
	defer func() { _ = file.Close() }()
	var all []function
	lines := bufio.NewScanner(io.LimitReader(file, maxBytes))
	for lines.Scan() {
		if one, ok := parse(lines.Text()); ok {
			all = append(all, one)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list functions of the kernel: %w", err)
	}
	return all, nil
}

// maxBytes bounds what is read of a list; kernels with every module have 20 MiB.
const maxBytes = 256 << 20

// parseTraceable reads "name [module]". Names of no function begin with two
// underscores and ftrace_invalid.
func parseTraceable(line string) (function, bool) {
	name, rest, _ := strings.Cut(line, " ")
	return function{strings.Clone(name), moduleOf(rest)}, !strings.HasPrefix(name, "__ftrace_invalid_address__")
}

// parseSymbol reads "address kind name	[module]", as of proc(5). Programs of BPF are
// symbols, too, and no functions of the kernel.
func parseSymbol(line string) (function, bool) {
	fields := strings.Fields(line)
	if len(fields) < 3 || !slices.Contains([]string{"t", "T", "w", "W"}, fields[1]) {
		return function{}, false
	}
	one := function{name: strings.Clone(fields[2])}
	if len(fields) > 3 {
		one.module = moduleOf(fields[3])
	}
	return one, one.module != "bpf" && !strings.HasPrefix(one.module, "__builtin__")
}

func moduleOf(field string) string {
	return strings.Clone(strings.Trim(strings.TrimSpace(field), "[]"))
}
