package gate

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// fitEqual denies a second attachment of a program to what it is attached to already: tasks of everybody run it
// twice there, and the Pods get nothing by that. What globs with different exclusions choose is known on a node alone.
func fitEqual(r *denials, at string, p v1alpha1.Program) {
	first := map[string]int{}
	for k, a := range p.Attach {
		h, _ := hook.Lookup(a.Hook)
		if !h.Guardable() {
			continue
		}
		for _, name := range placesOf(a) {
			place := key(h, a, name)
			if before := first[place]; before > 0 {
				r.add("inspect/scope", fmt.Sprintf("%s.attach[%d]", at, k), "remove one of the two: once is enough",
					"program %s is attached to %s %s by attach[%d] already, for the same Pods", p.Name, h.Name, name, before-1)
				break
			}
			first[place] = k + 1
		}
	}
}

// key names a place of a hook for a choice of Pods. One link for many functions is in the place of many links.
func key(h hook.Hook, a v1alpha1.Attachment, name string) string {
	var module string
	var offset uint64
	if a.Functions != nil {
		module, offset = a.Functions.Module, a.Functions.Offset
	}
	body, err := json.Marshal([]any{strings.TrimSuffix(h.Name, ".multi"), name, module, offset, a.Pods})
	if err != nil {
		return h.Name
	}
	return string(body)
}

// placesOf are the places that an attachment names. A glob is one together with what is taken away from it.
func placesOf(a v1alpha1.Attachment) []string {
	b := a.Binary
	switch {
	case a.Functions != nil:
		return choices(a.Functions.Names, a.Functions.Exclude, "")
	case b == nil:
		return []string{a.Tracepoint}
	case b.Symbols != nil:
		return choices(b.Symbols.Names, b.Symbols.Exclude, b.Path+":")
	case b.USDT != nil:
		return []string{b.Path + ":" + b.USDT.Provider + ":" + b.USDT.Name}
	}
	return []string{fmt.Sprintf("%s:%s%s", b.Path, b.Symbol, offsetOf(b.Offset))}
}

func offsetOf(offset uint64) string {
	if offset == 0 {
		return ""
	}
	return fmt.Sprintf("+%#x", offset)
}

// choices are the names and globs of a choice, each behind a prefix.
func choices(names, exclude []string, prefix string) []string {
	all := make([]string, 0, len(names))
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		if strings.ContainsAny(name, `*?[\`) && len(exclude) > 0 {
			name += " without " + strings.Join(slices.Sorted(slices.Values(exclude)), ", ")
		}
		all = append(all, prefix+name)
	}
	return all
}
