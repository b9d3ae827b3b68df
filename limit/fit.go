package limit

import "sort"

// Fit keeps of items what is together no larger than limit. Each name keeps as much as
// every other may: what is under that level loses nothing, whoever has most gives way.
// What is left then takes one item more of each name, in their order. of returns an item's name and its size, which is not negative. Of one name's items the
// first are kept. The order stays.
func Fit[T any](items []T, limit int, of func(T) (name string, size int)) (kept, lost []T) {
	within := func(level int) (together int) {
		for _, size := range upTo(items, level, of) {
			together += size
		}
		return together
	}
	level := sort.Search(max(limit, 0)+1, func(level int) bool { return within(level) > limit }) - 1
	keep, rest, had := upTo(items, level, of), limit, map[string]bool{}
	for _, size := range keep {
		rest -= size
	}
	for i, item := range items {
		_, ok := keep[i]
		if name, size := of(item); !ok && !had[name] {
			// Of one name's items the first are kept.
			had[name] = true
			if ok = size <= rest; ok {
				rest -= size
			}
		}
		if ok {
			kept = append(kept, item)
		} else {
			lost = append(lost, item)
		}
	}
	return kept, lost
}

// upTo returns by index the sizes of the items that are kept where each name has so much.
func upTo[T any](items []T, level int, of func(T) (string, int)) map[int]int {
	kept, taken := map[int]int{}, map[string]int{}
	for i, item := range items {
		name, size := of(item)
		// What is beyond the level ends the name's share.
		if taken[name] += size; taken[name] <= level {
			kept[i] = size
		}
	}
	return kept
}
