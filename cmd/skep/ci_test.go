package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"sigs.k8s.io/yaml"
)

// pipelines is the folder of pipelines to copy, ciPage the page that describes them.
const (
	pipelines = "../../examples/ci"
	ciPage    = "../../docs/ci.md"
)

// scripts are the shell scripts of a pipeline, by the name of their step or job: run of GitHub, and
// script of GitLab, whose lines are one script.
func scripts(source []byte) (map[string]string, error) {
	var doc any
	if err := yaml.Unmarshal(source, &doc); err != nil {
		return nil, err
	}
	found := map[string]string{}
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if id, ok := v["id"].(string); ok {
				name = id
			}
			for key, inner := range v {
				script, isText := inner.(string)
				lines, isList := inner.([]any)
				switch {
				case key == "run" && isText:
					found[name] = script
				case (key == "script" || key == "before_script") && isList:
					for _, line := range lines {
						found[name] += fmt.Sprintln(line)
					}
				default:
					walk(key, inner)
				}
			}
		case []any:
			for _, inner := range v {
				walk(name, inner)
			}
		}
	}
	walk("", doc)
	return found, nil
}

// aCommand begins a line on which skep is called, and toTheEnd what of the line is no argument.
var (
	aCommand = regexp.MustCompile(`^\s*(?:\$ )?skep ((?:\S|\s)*)$`)
	toTheEnd = regexp.MustCompile(`\s(?:[|>]|\d>|&&|#).*$`)
	anWord   = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
)

// callsOf are the arguments of every call of skep in a text.
func callsOf(text string) (calls [][]string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		if call := aCommand.FindStringSubmatch(strings.TrimSuffix(line, "\n")); call != nil {
			words := anWord.FindAllString(toTheEnd.ReplaceAllString(call[1], ""), -1)
			for i := range words {
				words[i] = strings.Trim(words[i], `"'`)
			}
			calls = append(calls, words)
		}
	}
	return calls
}

// wrongIn says what is wrong with a call: no such command or flag, or too few or too many arguments.
func wrongIn(call []string) error {
	root := newRoot(streams{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}})
	cmd, rest, err := root.Find(call)
	if err != nil {
		return err
	}
	if cmd == root || cmd.HasSubCommands() {
		return cmd.RunE(cmd, append(rest, "nothing"))
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return errors.Join(cmd.ValidateArgs(cmd.Flags().Args()), cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
}

// TestPipelinesCallWhatThereIs reads the pipelines to copy and the page about them.
func TestPipelinesCallWhatThereIs(t *testing.T) {
	calls := map[string][][]string{}
	err := filepath.WalkDir(pipelines, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) == ".yml" {
			all, err := scripts(source)
			if err != nil {
				return err
			}
			for _, script := range all {
				calls[path] = append(calls[path], callsOf(script)...)
				if strings.Contains(script, "${{") {
					t.Errorf("%s: a script has an expression in it, which whoever opens a pull request may have written; give it by env", path)
				}
			}
		} else {
			calls[path] = callsOf(string(source))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(ciPage)
	if err != nil {
		t.Fatal(err)
	}
	calls[ciPage] = callsOf(string(page))
	for _, path := range []string{pipelines + "/github/action.yml", pipelines + "/gitlab/skep.gitlab-ci.yml", ciPage} {
		if len(calls[path]) < 3 {
			t.Errorf("%s: found only the calls %q", path, calls[path])
		}
	}
	for path, all := range calls {
		for _, call := range all {
			if err := wrongIn(call); err != nil {
				t.Errorf("%s: skep %s: %v", path, strings.Join(call, " "), err)
			}
		}
	}
}

// TestOnlyThePushHasTheKey reads which jobs of the pipelines are given secrets, and after which they run.
func TestOnlyThePushHasTheKey(t *testing.T) {
	var workflow struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			Needs, If, Environment string
			Permissions            map[string]string
			Steps                  []struct{ With map[string]any }
		}
	}
	readPipeline(t, "github/workflow.yml", &workflow)
	for name, job := range workflow.Jobs {
		given := strings.Contains(fmt.Sprint(job.Steps), "secrets.") || job.Permissions["packages"] != ""
		if given != (name == "push") {
			t.Errorf("the job %s has secrets or writes packages: %t", name, given)
		}
	}
	push := workflow.Jobs["push"]
	if push.Needs != "check" || push.Environment == "" || !strings.Contains(push.If, "default_branch") || len(workflow.Permissions) > 0 {
		t.Errorf("the job push is %+v, and every job may %v", push, workflow.Permissions)
	}
	var gitlab map[string]struct {
		Needs         []string
		ResourceGroup string `json:"resource_group"`
		Script        []string
	}
	readPipeline(t, "gitlab/skep.gitlab-ci.yml", &gitlab)
	for name, job := range gitlab {
		if strings.Contains(fmt.Sprint(job.Script), "COSIGN") != (name == "skep-push") {
			t.Errorf("the job %s has the script %q", name, job.Script)
		}
	}
	if job := gitlab["skep-push"]; !slices.Contains(job.Needs, "skep-vet") || job.ResourceGroup == "" {
		t.Errorf("the job skep-push is %+v", job)
	}
}

// readPipeline decodes a pipeline to copy, which names no branch of Skep.
func readPipeline(t *testing.T, name string, into any) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(pipelines, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(source, into); err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`(?m)skep-dev/skep/\S*(@|/)main\b|(?i:version): main`).Find(source); found != nil {
		t.Errorf("%s: %s is a branch, whose content changes", name, found)
	}
}

func TestAWrongCallIsSeen(t *testing.T) {
	for call, wrong := range map[string]bool{
		`skep render --push "$PUSH" --sign --key k "$DEFINITIONS" > out`: false,
		"skep vet \\\n  --signers s definitions | tee x":                 false,
		"skep policy test policies":                                      false,
		"skep frender definitions":                                       true,
		"skep render --pusk x definitions":                               true,
		"skep render":                                                    true,
		"skep policy tset policies":                                      true,
		"skep diff a b":                                                  true,
	} {
		calls := callsOf(call)
		if len(calls) != 1 {
			t.Errorf("%q has the calls %q", call, calls)
		} else if err := wrongIn(calls[0]); (err != nil) != wrong {
			t.Errorf("%q: %v", call, err)
		}
	}
	if calls := callsOf("the skep of a host\nrun `skep vet`\n"); len(calls) != 0 {
		t.Errorf("prose has the calls %q", calls)
	}
}

// pipelineStep writes the script of a step or job of a pipeline to a file: pipeline FILE STEP TO.
func pipelineStep(ts *testscript.TestScript, _ bool, args []string) {
	source, err := os.ReadFile(filepath.Join(pipelines, args[0]))
	ts.Check(err)
	all, err := scripts(source)
	ts.Check(err)
	script, ok := all[args[1]]
	if !ok {
		ts.Fatalf("%s has no step %s", args[0], args[1])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte("set -eo pipefail\n"+script), 0o600))
}
