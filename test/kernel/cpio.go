package kernel

import (
	"bytes"
	"fmt"
)

// archive is a file system in the "newc" format that the kernel unpacks as its
// first one (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	buf   bytes.Buffer
	inode int
}

// The types of files in a mode, as in stat(2).
const (
	modeFile = 0o100000
	modeDir  = 0o040000
	modeChar = 0o020000
	modeLink = 0o120000
)

func (a *archive) add(name string, body []byte, permissions int) {
	a.entry(name, body, modeFile|permissions, 0, 0)
}

func (a *archive) dir(name string) { a.entry(name, nil, modeDir|0o755, 0, 0) }

// link adds a symbolic link.
func (a *archive) link(name, to string) { a.entry(name, []byte(to), modeLink|0o777, 0, 0) }

// device adds a character device by its numbers.
func (a *archive) device(name string, major, minor int) {
	a.entry(name, nil, modeChar|0o600, major, minor)
}

// close ends the archive and returns it.
func (a *archive) close() []byte {
	a.entry("TRAILER!!!", nil, 0, 0, 0)
	return a.buf.Bytes()
}

// entry writes a header of fourteen numbers in hex, the name and the body, the
// latter two padded to four bytes.
func (a *archive) entry(name string, body []byte, mode, major, minor int) {
	a.inode++
	fields := [13]int{a.inode, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name) + 1, 0}
	a.buf.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&a.buf, "%08x", f)
	}
	a.buf.WriteString(name + "\x00")
	a.pad()
	a.buf.Write(body)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}
