// Package logging makes the logger of a command from its flags, and has libraries log by it. New
// alone sets no default of other packages.
package logging

import (
	"fmt"
	"io"
	"log/slog"
)

// Default has packages log and slog, by which libraries and net/http log, write by a logger: each line is of its format.
func Default(log *slog.Logger) { slog.SetDefault(log) }

// New returns a logger that writes one line per event to w. The format is text or json;
// verbose adds what is for debugging.
func New(w io.Writer, format string, verbose bool) (*slog.Logger, error) {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbose {
		o.Level = slog.LevelDebug
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("unknown log format %q; use text, json", format)
}
