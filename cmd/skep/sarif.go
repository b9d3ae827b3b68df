package main

import (
	"net/url"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/schemas"
)

// sarifLog is as much of SARIF 2.1.0 (OASIS) as code scanners read.
type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool    sarifTool     `json:"tool"`
	Results []sarifResult `json:"results"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name    string      `json:"name"`
	Version string      `json:"version"`
	Rules   []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID string `json:"id"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID    string          `json:"ruleId"`
	Level     string          `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations"`
}

type sarifLocation struct {
	Physical sarifPhysical  `json:"physicalLocation"`
	Logical  []sarifLogical `json:"logicalLocations,omitempty"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   *sarifRegion  `json:"region,omitempty"`
}

type sarifArtifact struct {
	URI string `json:"uri"`
}

type sarifRegion struct {
	StartLine   int `json:"startLine"`
	StartColumn int `json:"startColumn,omitempty"`
}

type sarifLogical struct {
	Name string `json:"fullyQualifiedName"`
}

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

// sarif turns results into a log: a denial is an error, what is invalid an error of the
// rule "schema", a warning a warning, what a policy in Audit mode would deny a note, and
// what could not be determined an error of the rule "unknown".
func sarif(results []vetResult) sarifLog {
	run := sarifRun{Tool: sarifTool{Driver: sarifDriver{Name: "skep", Version: version.This().Version, Rules: []sarifRule{}}}, Results: []sarifResult{}}
	seen := map[string]bool{}
	add := func(r vetResult, level, rule, path, text string, from schemas.Position) {
		if !seen[rule] {
			seen[rule] = true
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: rule})
		}
		at := sarifLocation{Physical: sarifPhysical{Artifact: sarifArtifact{URI: artifact(r.root, from.File)}}}
		if from.Line > 0 {
			at.Physical.Region = &sarifRegion{StartLine: from.Line, StartColumn: from.Column}
		}
		if path != "" {
			at.Logical = []sarifLogical{{Name: r.Application + "/" + path}}
		}
		run.Results = append(run.Results, sarifResult{RuleID: rule, Level: level, Message: sarifText{Text: text}, Locations: []sarifLocation{at}})
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
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}
