package main

import (
	"net/url"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/cmd/skep/internal/sarif"
	"github.com/skep-dev/skep/schemas"
)

// artifact is a file of a source whose folder is root, relative to the current folder,
// since code scanners resolve it against the checkout they run in; what lies outside has
// an absolute address.
func artifact(root, file string) string {
	if root == "" {
		return (&url.URL{Path: file}).String()
	}
	file = filepath.Join(root, filepath.FromSlash(file))
	if here, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(here, file); err == nil && filepath.IsLocal(rel) {
			return (&url.URL{Path: filepath.ToSlash(rel)}).String()
		}
	}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(file)}).String()
}

// sarifOf turns results into a log: a denial is an error, what is invalid an error of the
// rule "schema", a warning a warning, what a policy in Audit mode would deny a note, and
// what could not be determined an error of the rule "unknown".
func sarifOf(results []vetResult) *sarif.Log {
	log := sarif.New("skep", version.This().Version)
	add := func(r vetResult, level, rule, path, text string, from schemas.Position) {
		f := sarif.Finding{Level: level, Rule: rule, Text: text, URI: artifact(r.root, from.File), Line: from.Line, Column: from.Column}
		if path != "" {
			f.Name = r.Application + "/" + path
		}
		log.Add(f)
	}
	for _, r := range results {
		for _, what := range []struct {
			level   string
			reasons []placedReason
		}{{"error", r.Reasons}, {"warning", r.Warnings}, {"note", r.Audited}} {
			for _, why := range what.reasons {
				text := r.Application + ": " + why.Message
				if why.Fix != "" {
					text += " Fix: " + why.Fix
				}
				add(r, what.level, why.Rule, why.Path, text, why.Source)
			}
		}
		if r.unknown() {
			add(r, "error", "unknown", "", r.Application+": "+r.Error, r.Source)
		}
	}
	return log
}
