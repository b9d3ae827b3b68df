// Package quota bounds what namespaces have at targets that tasks of all namespaces run: programs on
// a tracepoint, a function or a place in a file, and pages of a file's text with probes; and at those of their own pods,
// which programs of the cluster share. It decides from values; it finds no target, and ends nothing.
package quota

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// Limits are the bounds. Applications of the cluster count for none of them.
type Limits struct {
	// NamespacePrograms is how many programs the applications of one namespace have at one target together, and
	// Programs how many those of all namespaces have there.
	NamespacePrograms, Programs int
	// NamespacePages is in how many pages of one file the applications of one namespace have probes together.
	NamespacePages int
}

// Default returns the bounds that hold where none are given. The kernel runs at most 64 programs at a tracepoint by perf and 38 at a
// function by a trampoline: those of namespaces leave most of them to the cluster.
func Default() Limits { return Limits{NamespacePrograms: 4, Programs: 16, NamespacePages: 64} }

// OrDefault returns the bounds with those of Default where they are zero.
func (l Limits) OrDefault() Limits {
	d := Default()
	return Limits{cmp.Or(l.NamespacePrograms, d.NamespacePrograms), cmp.Or(l.Programs, d.Programs), cmp.Or(l.NamespacePages, d.NamespacePages)}
}

// Validate fails for bounds that let no program run.
func (l Limits) Validate() error {
	for _, one := range []struct {
		flag string
		is   int
	}{{namespaceProgramsFlag, l.NamespacePrograms}, {programsFlag, l.Programs}, {namespacePagesFlag, l.NamespacePages}} {
		if one.is < 1 {
			return fmt.Errorf("bound programs of namespaces: %s is %d; give 1 or more", one.flag, one.is)
		}
	}
	return nil
}

// Flags adds the flags of the limits, with the defaults. intVar is as the one of a flag set.
func (l *Limits) Flags(intVar func(p *int, name string, value int, usage string)) {
	d := Default()
	add := func(p *int, flag string, value int, usage string) {
		intVar(p, strings.TrimPrefix(flag, "--"), value, usage)
	}
	add(&l.NamespacePrograms, namespaceProgramsFlag, d.NamespacePrograms,
		"programs that the applications of one namespace may have together at one tracepoint, function or place in a file, which tasks of others run, too")
	add(&l.Programs, programsFlag, d.Programs, "programs that the applications of all namespaces may have together there; those of the cluster do not count")
	add(&l.NamespacePages, namespacePagesFlag, d.NamespacePages,
		"pages of one file's text in which the applications of one namespace may have probes together; each costs every process that runs the file 4 KiB")
}

// The settings that the messages name.
const (
	namespaceProgramsFlag = "--namespace-target-programs"
	programsFlag          = "--target-programs"
	namespacePagesFlag    = "--namespace-text-pages"
	sharedTargets         = "sharedTargets of the policy baseline"
)

// Target is what a program of the kernel is attached to: a place in a File, of which the offset is in bytes, or
// what Name says, as "tracepoint sys_enter". Of a place in a file that is not known, Name says the function. Of a
// cgroup or network namespace of pods, of which Own is the inode, Name is the hook.
type Target struct {
	File, Name  string
	Offset, Own uint64
}

// MaxAtOwn is how many programs of one hook a namespace has at a cgroup, or in a network namespace, of its own pods. The kernel
// runs 64 of them: the others are left to the cluster, whose programs may be at the same one.
const MaxAtOwn = 48

// page is the number of the page of text that a probe at the target changes, for every process that maps the file.
func (t Target) page() uint64 { return t.Offset / pageSize }

// pageSize is that of text, in bytes.
const pageSize = 4096

// hasPage reports whether the page of the target is known.
func (t Target) hasPage() bool { return t.File != "" && t.Name == "" }

// Use is what one attachment takes.
type Use struct {
	// Targets are where its program runs, each once, and so are the Places in a File, in bytes and in order.
	Targets []Target
	File    string
	Places  []uint64
	// Binary is how messages name the file, or the target that pods have.
	Binary string
}

// All returns the targets, those at Places included.
func (u Use) All() iter.Seq[Target] {
	return func(yield func(Target) bool) {
		for _, t := range u.Targets {
			if !yield(t) {
				return
			}
		}
		for _, at := range u.Places {
			if !yield(Target{File: u.File, Offset: at}) {
				return
			}
		}
	}
}

// n is how many targets the use has.
func (u Use) n() int { return len(u.Targets) + len(u.Places) }

// text says a target of the use in words.
func (u Use) text(t Target) string {
	switch {
	case t.Own != 0:
		return t.Name + " at " + u.Binary
	case t.File == "":
		return t.Name
	case t.Name != "":
		return t.Name + " of " + u.Binary
	}
	return fmt.Sprintf("offset %#x of %s", t.Offset, u.Binary)
}

// MaxTargets is at how many targets the programs of one namespace are together, where each counts at each. A link for many
// functions has a probe at each of them, which the kernel keeps and the ledger counts. It is no setting: no link has more than half.
const MaxTargets = 2 * v1alpha1.MaxFunctions

// Ledger counts what applications use, each under its UID: what they are to have, and what runs of them beside that. A version
// that is to run may wait, or be rejected later, and that before it may stay until it is whole.
type Ledger struct {
	limits Limits
	grants map[string]intent.Grant
	uses   map[string]*uses
	at     map[Target][]holder
	pages  map[text]*pages
	// targets is how many those in at are, by namespace.
	targets map[string]int
	// leftOut is how many uses of an application had no room, by UID.
	leftOut map[string]leftOut
}

// leftOut is how many uses of an application of a namespace had no room.
type leftOut struct {
	namespace string
	n         int
}

// Counts are what a ledger has in figures.
type Counts struct {
	// Programs is how many those at the fullest target are, and Pages in how many pages of one file one namespace has
	// probes at most.
	Programs, Pages int
	// LeftOut is how many uses had no room.
	LeftOut int
}

// Counts returns them, in time that grows with all that is used.
func (l *Ledger) Counts() Counts {
	var c Counts
	for t, holders := range l.at {
		if t.Own == 0 {
			c.Programs = max(c.Programs, len(holders))
		}
	}
	for _, p := range l.pages {
		c.Pages = max(c.Pages, p.n())
	}
	for _, left := range l.leftOut {
		c.LeftOut += left.n
	}
	return c
}

// Shares returns what each namespace has, and may have, that has anything or was left without. It takes as long as Counts.
func (l *Ledger) Shares() map[string]v1alpha1.NamespaceShare {
	all := map[string]v1alpha1.NamespaceShare{}
	at := map[string]int32{}
	for t, holders := range l.at {
		if t.Own != 0 {
			continue
		}
		clear(at)
		for _, h := range holders {
			at[h.namespace]++
		}
		for namespace, n := range at {
			if share := all[namespace]; n > share.Programs {
				share.Programs = n
				all[namespace] = share
			}
		}
	}
	for of, p := range l.pages {
		share := all[of.namespace]
		share.TextPages = max(share.TextPages, int32(p.n()))
		all[of.namespace] = share
	}
	bound := func(namespace, uid string, left int) {
		share, has := all[namespace]
		if !has && left == 0 {
			return
		}
		limits := l.limitsOf(uid)
		share.Namespace, share.LeftOut = namespace, share.LeftOut+int32(left)
		share.ProgramsLimit = max(share.ProgramsLimit, int32(limits.NamespacePrograms))
		share.TextPagesLimit = max(share.TextPagesLimit, int32(limits.NamespacePages))
		all[namespace] = share
	}
	for uid, left := range l.leftOut {
		bound(left.namespace, uid, left.n)
	}
	for uid, u := range l.uses {
		bound(u.of.Namespace, uid, 0)
	}
	return all
}

// uses are those of one application: all that count, and those that run. runsAt is how many run at a target; nil until it is asked for.
// taken is how many more are to run at a target of its pods.
type uses struct {
	of            v1alpha1.Identity
	all, runs     []Use
	runsAt, taken map[Target]int
}

// running is how many run at a target.
func (u *uses) running(t Target) int {
	if u.runsAt == nil {
		u.runsAt = atEach(u.runs)
	}
	return u.runsAt[t]
}

// atEach counts the targets of uses.
func atEach(all []Use) map[Target]int {
	n := map[Target]int{}
	for _, use := range all {
		for t := range use.All() {
			n[t]++
		}
	}
	return n
}

// holder is the application of one program at a target.
type holder struct{ namespace, name string }

// text is a file, as one namespace has probes in it.
type text struct{ namespace, file string }

// pages are how many probes each page has, and how many each application has in all of them.
type pages struct {
	probes map[uint64]int
	names  map[string]int
}

// limitsOf are the limits of an application with what it is granted: a grant lowers nothing, and does not raise what all namespaces have.
func (l *Ledger) limitsOf(uid string) Limits {
	limits, granted := l.limits, l.grants[uid]
	limits.NamespacePrograms = max(limits.NamespacePrograms, granted.TargetPrograms)
	limits.NamespacePages = max(limits.NamespacePages, granted.TextPages)
	return limits
}

// New returns a Ledger of nothing. grants are what applications have beyond the limits, by UID; see version.Granted.
func New(limits Limits, grants map[string]intent.Grant) *Ledger {
	return &Ledger{limits: limits, grants: grants, uses: map[string]*uses{}, at: map[Target][]holder{}, pages: map[text]*pages{}, targets: map[string]int{},
		leftOut: map[string]leftOut{}}
}

// Run counts a use of something that runs, whether or not there is room. Those of the cluster count for nothing.
func (l *Ledger) Run(of v1alpha1.Identity, uid string, use Use) {
	if u := l.add(of, uid, use); u != nil {
		u.runs = append(u.runs, use)
	}
}

// Add counts a use that an application is to have, whether or not there is room.
func (l *Ledger) Add(of v1alpha1.Identity, uid string, use Use) { l.add(of, uid, use) }

// add counts a use, and returns those of its application; nil of the cluster's.
func (l *Ledger) add(of v1alpha1.Identity, uid string, use Use) *uses {
	if of.Namespace == "" || use.n() == 0 {
		return nil
	}
	u := l.uses[uid]
	if u == nil {
		u = &uses{of: of}
		l.uses[uid] = u
	}
	u.all = append(u.all, use)
	l.change(of, use, 1)
	return u
}

// Release takes back all that an application uses, for another choice of what it is to have. Settle ends that.
func (l *Ledger) Release(uid string) {
	delete(l.leftOut, uid)
	u := l.uses[uid]
	if u == nil {
		return
	}
	for _, use := range u.all {
		l.change(u.of, use, -1)
	}
	u.all, u.taken = nil, nil
}

// Settle counts what runs of an application, and is not what it is to have: until it has ended, others have no room in its place.
func (l *Ledger) Settle(uid string) {
	u := l.uses[uid]
	if u == nil || len(u.runs) == 0 {
		return
	}
	has := atEach(u.all)
	for t, n := range u.taken {
		has[t] -= n
	}
	for _, use := range u.runs {
		var left []Target
		for t := range use.All() {
			if has[t]--; has[t] < 0 {
				left = append(left, t)
			}
		}
		l.add(u.of, uid, Use{Targets: left, Binary: use.Binary})
	}
}

// Take adds a use if there is room for it, and fails with the bound and its holders else. What runs at a target of the pods is Added.
func (l *Ledger) Take(of v1alpha1.Identity, uid string, use Use) error {
	if of.Namespace == "" {
		return nil
	}
	if err := l.room(of, uid, use); err != nil {
		l.leftOut[uid] = leftOut{of.Namespace, l.leftOut[uid].n + 1}
		return err
	}
	u := l.add(of, uid, use)
	for _, t := range use.Targets {
		if t.Own != 0 && u.taken == nil {
			u.taken = map[Target]int{}
		}
		if t.Own != 0 {
			u.taken[t]++
		}
	}
	return nil
}

// room fails where a use does not fit. What is large and does not fit is not looked at in whole.
func (l *Ledger) room(of v1alpha1.Identity, uid string, use Use) error {
	if has := l.targets[of.Namespace]; has+use.n() > MaxTargets {
		return fmt.Errorf("%s: programs of namespace %s at functions and places: %d of %d, and %d more are asked for; choose fewer functions, or use a %s",
			cmp.Or(use.Binary, "functions"), of.Namespace, has, MaxTargets, use.n(), v1alpha1.KindClusterBpfApplication)
	}
	if err := l.fitsPages(of, uid, use); err != nil {
		return err
	}
	for t := range use.All() {
		if err := l.fits(of, uid, use, t); err != nil {
			return err
		}
	}
	return nil
}

// replaces reports whether an application runs more at a target than counts of it by now: others, who may have taken all
// places there, cannot have its next version left out.
func (l *Ledger) replaces(of v1alpha1.Identity, uid string, t Target) bool {
	u := l.uses[uid]
	if u == nil {
		return false
	}
	return atOf(l.at[t], of) < u.running(t)
}

// atOf counts what an application has among holders.
func atOf(all []holder, of v1alpha1.Identity) int {
	n := 0
	for _, h := range all {
		if h == (holder{of.Namespace, of.Name}) {
			n++
		}
	}
	return n
}

// fits reports whether a target has room for one more program.
func (l *Ledger) fits(of v1alpha1.Identity, uid string, use Use, t Target) error {
	all := l.at[t]
	own := 0
	for _, h := range all {
		if h.namespace == of.Namespace {
			own++
		}
	}
	limits := l.limitsOf(uid)
	limit, most, raise := limits.NamespacePrograms, limits.Programs,
		", do their work in one program, or have an administrator grant more ("+sharedTargets+") or raise "+namespaceProgramsFlag
	if t.Own != 0 {
		limit, most, raise = MaxAtOwn, MaxAtOwn, ", or do their work in one program"
		// A version beside the one before would take what is left to the cluster.
		if u := l.uses[uid]; u != nil {
			own += max(0, u.running(t)+u.taken[t]-atOf(all, of))
		}
	}
	if own < limit && (len(all) < most || l.replaces(of, uid, t)) {
		return nil
	}
	var names, namespaces []string
	for _, h := range all {
		namespaces = append(namespaces, h.namespace)
		if h.namespace == of.Namespace {
			names = append(names, h.name)
		}
	}
	if own >= limit {
		return fmt.Errorf("%s: programs of namespace %s there: %d of %d (%s); detach one of them%s", use.text(t), of.Namespace, own, limit, list(names), raise)
	}
	// The others are of other tenants, who are not named.
	return fmt.Errorf("%s: programs of all namespaces there: %d of %d, by namespaces: %d; choose another target, have an administrator raise %s, or use a %s",
		use.text(t), len(all), l.limits.Programs, len(once(namespaces)), programsFlag, v1alpha1.KindClusterBpfApplication)
}

// fitsPages reports whether a file may have probes in the pages of a use, too.
func (l *Ledger) fitsPages(of v1alpha1.Identity, uid string, use Use) error {
	fresh, file, last := map[uint64]bool{}, "", uint64(0)
	for t := range use.All() {
		if page := t.page(); file == t.File && page == last && fresh[page] {
			continue
		}
		if last = t.page(); t.hasPage() && l.pages[text{of.Namespace, t.File}].at(t.page()) == 0 {
			fresh[t.page()], file = true, t.File
		}
	}
	has, most := l.pages[text{of.Namespace, file}], l.limitsOf(uid).NamespacePages
	if len(fresh) == 0 || has.n()+len(fresh) <= most {
		return nil
	}
	held := ""
	if has.n() > 0 {
		held = " (" + list(slices.Collect(maps.Keys(has.names))) + ")"
	}
	return fmt.Errorf("%s: pages of its text with probes of namespace %s: %d of %d%s, and %d more are asked for; each costs every process that runs the file "+
		"%d bytes of memory; choose functions that lie nearer to each other, or fewer, or have an administrator grant more ("+sharedTargets+") or raise %s",
		use.Binary, of.Namespace, has.n(), most, held, len(fresh), pageSize, namespacePagesFlag)
}

// at returns how many probes a page has.
func (p *pages) at(page uint64) int {
	if p == nil {
		return 0
	}
	return p.probes[page]
}

// n is how many pages have probes.
func (p *pages) n() int {
	if p == nil {
		return 0
	}
	return len(p.probes)
}

// change adds a use, or takes it back.
func (l *Ledger) change(of v1alpha1.Identity, use Use, by int) {
	h := holder{of.Namespace, of.Name}
	if l.targets[of.Namespace] += by * use.n(); l.targets[of.Namespace] == 0 {
		delete(l.targets, of.Namespace)
	}
	for t := range use.All() {
		if by > 0 {
			l.at[t] = append(l.at[t], h)
		} else {
			l.remove(t, h)
		}
		if t.hasPage() {
			l.changePage(of, t, by)
		}
	}
}

// remove takes one program of an application from a target.
func (l *Ledger) remove(t Target, h holder) {
	all := l.at[t]
	i, last := slices.Index(all, h), len(all)-1
	if last == 0 {
		delete(l.at, t)
		return
	}
	all[i] = all[last]
	l.at[t] = all[:last]
}

func (l *Ledger) changePage(of v1alpha1.Identity, t Target, by int) {
	key := text{of.Namespace, t.File}
	p := l.pages[key]
	if p == nil {
		p = &pages{map[uint64]int{}, map[string]int{}}
		l.pages[key] = p
	}
	add(p.probes, t.page(), by)
	add(p.names, of.Name, by)
	if len(p.probes) == 0 {
		delete(l.pages, key)
	}
}

// add changes a number, and forgets one that is zero.
func add[K comparable](to map[K]int, key K, by int) {
	if to[key] += by; to[key] == 0 {
		delete(to, key)
	}
}

// maxListed is how many applications a message names.
const maxListed = 4

// once returns words in order, each once.
func once(words []string) []string { return slices.Compact(slices.Sorted(slices.Values(words))) }

// list names applications.
func list(names []string) string {
	all := once(names)
	if more := len(all) - maxListed; more > 0 {
		all = append(all[:maxListed], fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", ")
}
