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
	return fmt.Sprintf("the kernel has no function %s: it is inlined, of a module that is not loaded, or misspelled; look it up in /proc/kallsyms%s", e.Name, e.Near)
}

// LimitError says that more functions are chosen than may be.
type LimitError struct {
	Chosen, Limit int
}

// Error implements error.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%d functions of this kernel are chosen, and the limit is %d; narrow functions.names, or raise functions.limit", e.Chosen, e.Limit)
}

// Choice is what a definition chooses of the running kernel.
type Choice struct {
	// Names of the functions, sorted, each once.
	Names []string
	// ID is another one for other names.
	ID string
}

// Kernel finds functions of the running kernel. The caller serializes all calls.
type Kernel struct {
	// root is where procfs and sysfs are; empty but in tests.
	root string
	// modules are those that were loaded when chosen was filled. chosen is by what was
	// asked, and sought is what was asked since Sweep.
	modules string
	chosen  map[string]Choice
	sought  map[string]bool
}

// New returns a Kernel that knows nothing yet.
func New() *Kernel { return &Kernel{chosen: map[string]Choice{}, sought: map[string]bool{}} }

// Sweep forgets what was not chosen since the last Sweep.
func (k *Kernel) Sweep() {
	maps.DeleteFunc(k.chosen, func(key string, _ Choice) bool { return !k.sought[key] })
	clear(k.sought)
}

// Names returns the functions of a choice that is remembered.
func (k *Kernel) Names(id string) []string {
	for _, c := range k.chosen {
		if c.ID == id {
			return c.Names
		}
	}
	return nil
}

// Choose returns the functions that a definition chooses. Where it names them all, they
// are returned unseen. It fails with *LimitError, or *MissingError where a glob or a
// module has none.
func (k *Kernel) Choose(f *v1alpha1.Functions) (Choice, error) {
	if f == nil || len(f.Names) == 0 {
		return Choice{}, errors.New("functions: no name is given; list functions.names")
	}
	key, err := json.Marshal(f)
	if err != nil {
		return Choice{}, fmt.Errorf("choose functions: %w", err)
	}
	if err := k.forget(); err != nil {
		return Choice{}, err
	}
	k.sought[string(key)] = true
	if known, ok := k.chosen[string(key)]; ok {
		return known, nil
	}
	names := f.Names
	if f.Module != "" || len(f.Exclude) > 0 || slices.ContainsFunc(f.Names, isGlob) {
		if names, err = k.match(f); err != nil {
			return Choice{}, err
		}
	}
	c, err := choice(f, names)
	if err == nil {
		k.chosen[string(key)] = c
	}
	return c, err
}

// forget drops what was chosen with other modules.
func (k *Kernel) forget() error {
	body, err := os.ReadFile(k.root + "/proc/modules")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list modules: %w", err)
	}
	var modules strings.Builder
	for line := range strings.Lines(string(body)) {
		name, _, _ := strings.Cut(line, " ")
		modules.WriteString(name + " ")
	}
	if k.modules != modules.String() {
		k.modules = modules.String()
		clear(k.chosen)
	}
	return nil
}

// isGlob reports whether a name is a pattern.
func isGlob(name string) bool { return strings.ContainsAny(name, `*?[\`) }

// choice is what was chosen, unless that is too much.
func choice(f *v1alpha1.Functions, names []string) (Choice, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	limit := v1alpha1.DefaultFunctions
	if f.Limit != nil {
		limit = int(*f.Limit)
	}
	if len(names) > limit {
		return Choice{}, &LimitError{Chosen: len(names), Limit: limit}
	}
	sum := sha256.Sum256([]byte(strings.Join(names, "\n")))
	return Choice{Names: names, ID: hex.EncodeToString(sum[:8])}, nil
}

// match returns the functions that the patterns choose. Each name and pattern has to
// choose one.
func (k *Kernel) match(f *v1alpha1.Functions) ([]string, error) {
	for _, pattern := range slices.Concat(f.Names, f.Exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return nil, fmt.Errorf("functions: %q is not a pattern; write a name or a glob such as tcp_*", pattern)
		}
	}
	all, err := k.traceable()
	if err != nil {
		return nil, err
	}
	var chosen []string
	used := map[string]bool{}
	for _, one := range all {
		if f.Module != "" && one.module != f.Module || matches(f.Exclude, one.name, nil) {
			continue
		}
		if matches(f.Names, one.name, used) {
			chosen = append(chosen, one.name)
		}
	}
	for _, pattern := range f.Names {
		if !used[pattern] && !matches(f.Exclude, pattern, nil) {
			return nil, missing(pattern, all)
		}
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

// Explain returns a *MissingError for the first of the names that the kernel has not, or
// cannot trace, and nil where it has them all or cannot be asked. The kernel's functions
// begin with the prefix, which is told nowhere.
func (k *Kernel) Explain(prefix string, names ...string) error {
	all, err := k.traceable()
	all = cutPrefix(all, prefix)
	have := map[string]bool{}
	for _, one := range all {
		have[one.name] = true
	}
	i := slices.IndexFunc(names, func(name string) bool { return !have[name] })
	if err != nil || i < 0 {
		return nil //nolint:nilerr // nobody can tell
	}
	symbols, err := k.symbols()
	if err == nil && slices.ContainsFunc(symbols, func(s function) bool { return s.name == prefix+names[i] }) {
		return &MissingError{Name: names[i], Untraceable: true}
	}
	return missing(names[i], all)
}

// cutPrefix leaves the functions that begin with the prefix, without it.
func cutPrefix(all []function, prefix string) []function {
	var cut []function
	for _, one := range all {
		if name, ok := strings.CutPrefix(one.name, prefix); ok {
			cut = append(cut, function{name, one.module})
		}
	}
	return cut
}

// missing says which functions are like the name: what the compiler made of it, such as
// tcp_ack.isra.0, or what differs in few characters.
func missing(name string, all []function) *MissingError {
	near := text.NewNearest(strings.Trim(name, "*?"))
	for _, one := range all {
		near.Add([]byte(one.name))
	}
	return &MissingError{Name: name, Near: near.String()}
}

// function is one of the kernel's.
type function struct {
	// module is empty for the kernel itself.
	name, module string
}

// traceable lists the functions that can be traced by name: those of ftrace or, where
// the kernel does not tell these, all. One whose name another has, too, is none.
func (k *Kernel) traceable() ([]function, error) {
	all, err := k.read("/sys/kernel/tracing/available_filter_functions", parseTraceable)
	if err != nil {
		if all, err = k.symbols(); err != nil {
			return nil, err
		}
	}
	times := map[string]int{}
	for _, one := range all {
		times[one.name]++
	}
	return slices.DeleteFunc(all, func(one function) bool { return times[one.name] > 1 }), nil
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
