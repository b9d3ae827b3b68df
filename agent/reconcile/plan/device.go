package plan

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Device is a network device. An index alone names none: each network namespace counts its own.
type Device struct {
	// NetnsID is the inode of the device's network namespace, 0 for the agent's own.
	NetnsID uint64
	// Index is the device's number in its namespace.
	Index int
}

// String writes the device as ParseDevice reads it: by its index, behind the inode of a
// network namespace that is not the agent's own.
func (d Device) String() string {
	if d.NetnsID == 0 {
		return strconv.Itoa(d.Index)
	}
	return fmt.Sprintf("%d-%d", d.NetnsID, d.Index)
}

// ParseDevice reads what String wrote. It is not ok for any other text.
func ParseDevice(text string) (d Device, ok bool) {
	index := text
	if before, after, found := strings.Cut(text, "-"); found {
		index = after
		d.NetnsID, _ = strconv.ParseUint(before, 10, 64)
	}
	d.Index, _ = strconv.Atoi(index)
	return d, d.Index > 0 && d.String() == text
}

// Compare orders devices by namespace, the agent's own first, and index. It returns what
// cmp.Compare does.
func (d Device) Compare(other Device) int {
	return cmp.Or(cmp.Compare(d.NetnsID, other.NetnsID), cmp.Compare(d.Index, other.Index))
}

// Label names an interface for people, and in what a node remembers: by its name and, outside
// the agent's own network namespace, by whose that namespace is. No name of an interface has a
// space, so the labels of two namespaces differ.
func Label(name string, netnsID uint64, in string) string {
	switch {
	case netnsID == 0:
		return name
	case in == "":
		return fmt.Sprintf("%s in net:[%d]", name, netnsID)
	}
	return name + " in " + in
}
