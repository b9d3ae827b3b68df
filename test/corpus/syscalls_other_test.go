//go:build !amd64

package corpus_test

var olderSyscalls []uintptr
