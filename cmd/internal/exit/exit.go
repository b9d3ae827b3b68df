// Package exit knows how a command ends: by which signal, with which exit code and with which
// last line. It prints nothing, and ends no process.
package exit

import (
	"errors"
	"fmt"
	"syscall"
)

// The exit codes are part of the command line's contract. A command that a signal ended
// has 128 and the signal's number, as in a shell.
const (
	ok = 0
	// Denied is the code of a denial, of a difference, and of a question about what does not exist.
	Denied    = 1
	unknown   = 2
	signalled = 128
)

// ErrDenied ends a command whose answer, already printed, is no.
var ErrDenied = errors.New("denied")

// ErrDiffers ends a command that compares, and has printed what differs.
var ErrDiffers = errors.New("differs")

// absentError ends a command that was asked about something that does not exist.
type absentError struct{ error }

// Unwrap returns the cause.
func (e *absentError) Unwrap() error { return e.error }

// Absent says that what a command was asked about does not exist.
func Absent(format string, args ...any) error { return &absentError{fmt.Errorf(format, args...)} }

// Stopped ends a command that runs until it is stopped, and says what it leaves.
type Stopped struct{ Leaves string }

// Error implements error.
func (e *Stopped) Error() string { return e.Leaves }

// Of returns the exit code and the last line of a command that ended with err, and with the
// signal by if it is not 0. After an interrupt the line says so, whatever was broken off.
func Of(err error, by syscall.Signal) (code int, line string) {
	var stopped *Stopped
	var missing *absentError
	switch isStopped := errors.As(err, &stopped); {
	case by == syscall.SIGINT && isStopped:
		return signalled + int(by), "interrupted; " + stopped.Leaves
	case by == syscall.SIGINT:
		return signalled + int(by), "interrupted"
	case isStopped:
		return ok, "stopped; " + stopped.Leaves
	case by != 0 && err != nil:
		return signalled + int(by), by.String()
	case err == nil:
		return ok, ""
	case errors.Is(err, ErrDenied), errors.Is(err, ErrDiffers):
		return Denied, ""
	case errors.As(err, &missing):
		return Denied, err.Error()
	}
	return unknown, err.Error()
}
