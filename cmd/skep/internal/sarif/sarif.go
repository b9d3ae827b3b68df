// Package sarif has as much of SARIF 2.1.0 (OASIS) as code scanners read. It knows nothing of
// what is found.
package sarif

import "slices"

// schema is the JSON schema of a Log.
const schema = "https://json.schemastore.org/sarif-2.1.0.json"

// Log is what is written.
type Log struct {
	Schema  string `json:"$schema"`
	Version string `json:"version"`
	Runs    []run  `json:"runs"`
}

type run struct {
	Tool    tool     `json:"tool"`
	Results []result `json:"results"`
}

type tool struct {
	Driver driver `json:"driver"`
}

type driver struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Rules   []rule `json:"rules"`
}

type rule struct {
	ID string `json:"id"`
}

type text struct {
	Text string `json:"text"`
}

type result struct {
	RuleID    string     `json:"ruleId"`
	Level     string     `json:"level"`
	Message   text       `json:"message"`
	Locations []location `json:"locations"`
}

type location struct {
	Physical physical  `json:"physicalLocation"`
	Logical  []logical `json:"logicalLocations,omitempty"`
}

type physical struct {
	Artifact artifact `json:"artifactLocation"`
	Region   *region  `json:"region,omitempty"`
}

type artifact struct {
	URI string `json:"uri"`
}

type region struct {
	StartLine   int `json:"startLine"`
	StartColumn int `json:"startColumn,omitempty"`
}

type logical struct {
	Name string `json:"fullyQualifiedName"`
}

// New returns the log of one run of a tool, without results.
func New(name, version string) *Log {
	return &Log{Schema: schema, Version: "2.1.0", Runs: []run{{
		Tool: tool{Driver: driver{Name: name, Version: version, Rules: []rule{}}}, Results: []result{},
	}}}
}

// Finding is one result.
type Finding struct {
	// Level is error, warning or note.
	Level string
	// Rule is the id of what it breaks.
	Rule string
	Text string
	// URI is the file. Line and Column begin with 1; 0 is not known.
	URI          string
	Line, Column int
	// Name is the fully qualified name of what it is about, or empty.
	Name string
}

// Add adds a finding, and its rule where it is the first of it.
func (l *Log) Add(f Finding) {
	r := &l.Runs[0]
	if !slices.Contains(r.Tool.Driver.Rules, rule{f.Rule}) {
		r.Tool.Driver.Rules = append(r.Tool.Driver.Rules, rule{f.Rule})
	}
	at := location{Physical: physical{Artifact: artifact{f.URI}}}
	if f.Line > 0 {
		at.Physical.Region = &region{StartLine: f.Line, StartColumn: f.Column}
	}
	if f.Name != "" {
		at.Logical = []logical{{f.Name}}
	}
	r.Results = append(r.Results, result{RuleID: f.Rule, Level: f.Level, Message: text{f.Text}, Locations: []location{at}})
}
