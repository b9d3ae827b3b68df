package hook

// Event is something that a perf_event program samples.
type Event struct {
	// Name is perf(1)'s.
	Name string
	// Type and Config are the kernel's numbers of it (include/uapi/linux/perf_event.h).
	Type   uint32
	Config uint64
}

// The types of events in include/uapi/linux/perf_event.h.
const (
	hardware = 0
	software = 1
)

// Events are the counters of the processor and those of the kernel that have a name of
// their own. A period of cpu-clock and task-clock is in nanoseconds.
func Events() []Event {
	return []Event{
		{"cpu-clock", software, 0}, {"task-clock", software, 1}, {"page-faults", software, 2}, {"context-switches", software, 3},
		{"cpu-migrations", software, 4}, {"minor-faults", software, 5}, {"major-faults", software, 6}, {"alignment-faults", software, 7},
		{"emulation-faults", software, 8}, {"cgroup-switches", software, 11},
		{"cpu-cycles", hardware, 0}, {"instructions", hardware, 1}, {"cache-references", hardware, 2}, {"cache-misses", hardware, 3},
		{"branch-instructions", hardware, 4}, {"branch-misses", hardware, 5}, {"bus-cycles", hardware, 6},
		{"stalled-cycles-frontend", hardware, 7}, {"stalled-cycles-backend", hardware, 8}, {"ref-cycles", hardware, 9},
	}
}

// LookupEvent finds an event by its name.
func LookupEvent(name string) (Event, bool) {
	for _, e := range Events() {
		if e.Name == name {
			return e, true
		}
	}
	return Event{}, false
}

// IsClock reports whether the event counts nanoseconds.
func (e Event) IsClock() bool { return e.Type == software && e.Config <= 1 }

// IsHardware reports whether the processor counts the event, and not the kernel.
func (e Event) IsHardware() bool { return e.Type == hardware }
