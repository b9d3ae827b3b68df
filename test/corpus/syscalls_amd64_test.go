package corpus_test

import "golang.org/x/sys/unix"

// olderSyscalls are those that newer processors do without.
var olderSyscalls = []uintptr{unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT}
