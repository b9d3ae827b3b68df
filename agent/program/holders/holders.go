// Package holders finds who keeps BPF objects in the kernel: processes with descriptors of
// them, and pins.
//
// It only looks, and what it finds is best effort: objects come and go meanwhile, and a process
// that may not be looked into has none.
package holders

// Kind is one of the three kinds of objects.
type Kind int

// The kinds.
const (
	OfProgram Kind = iota
	OfLink
	OfMap
)

// Object names one object of the kernel by its id.
type Object struct {
	Kind Kind
	ID   uint32
}

// Program is the object of a program.
func Program(id uint32) Object { return Object{OfProgram, id} }

// Link is the object of a link.
func Link(id uint32) Object { return Object{OfLink, id} }

// Map is the object of a map.
func Map(id uint32) Object { return Object{OfMap, id} }

// Process is a running process.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
}
