package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/schemas"
)

func newTags() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "tags PATH",
		Short: "List the tags that a CUE package takes, which skep render -t gives values to",
		Long: "List the fields with a @tag attribute: the name of each, the type and the default of its value, and the names of\n" +
			"values that can be given alone (short). Nothing is evaluated.\n\n" +
			"With -o argocd it prints them as parameters that a Config Management Plugin of Argo CD announces.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := sourceOf(cmd, args[0])
			if err != nil {
				return err
			}
			tags, problems, err := schemas.Tags(cmd.Context(), from)
			if err != nil {
				return err
			}
			return errors.Join(problemsError(problems), printTags(cmd, output, tags))
		},
	}
	display.OutputFlag(cmd, &output, "table", "json", "yaml", "argocd")
	return cmd
}

// printTags prints tags in one of the formats of skep tags.
func printTags(cmd *cobra.Command, format string, tags []schemas.Tag) error {
	out := cmd.OutOrStdout()
	switch format {
	case "argocd":
		announced := make([]announcement, 0, len(tags))
		for _, t := range tags {
			announced = append(announced, announce(t))
		}
		return display.JSON(out, announced)
	case "json", "yaml":
		return display.Data(out, format, map[string]any{"tags": slices.Concat([]schemas.Tag{}, tags)})
	}
	rows := make([][]string, 0, len(tags))
	for _, t := range tags {
		rows = append(rows, []string{t.Name, t.Type, cmp.Or(t.Default, "-"), cmp.Or(display.List(t.Shorthands), "-"), t.Source.String(), cmp.Or(t.Doc, "-")})
	}
	return display.Table(out, []string{"TAG", "TYPE", "DEFAULT", "SHORT", "SOURCE", "DESCRIPTION"}, rows)
}

// announcement is a parameter that a Config Management Plugin of Argo CD announces
// (argo-cd, docs/operator-manual/config-management-plugins.md).
type announcement struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Tooltip string `json:"tooltip,omitempty"`
	// ItemType is string, number or boolean.
	ItemType string `json:"itemType"`
	// String is the default.
	String string `json:"string,omitempty"`
}

// announce says of a tag what Argo CD shows of a parameter.
func announce(t schemas.Tag) announcement {
	a := announcement{Name: t.Name, Title: t.Name, Tooltip: t.Doc, ItemType: "string", String: t.Default}
	switch t.Type {
	case "int", "number":
		a.ItemType = "number"
	case "bool":
		a.ItemType = "boolean"
	}
	return a
}

// parameter is one that a user of Argo CD sets on an Application, as the plugin finds it in
// ARGOCD_APP_PARAMETERS. A tag takes a string and nothing else.
type parameter struct {
	Name   string            `json:"name"`
	String *string           `json:"string"`
	Array  []string          `json:"array"`
	Map    map[string]string `json:"map"`
}

// tagsFromEnv reads tags, each key=value, from an environment variable that holds parameters of
// Argo CD; one that is not set or empty has none.
func tagsFromEnv(name string) ([]string, error) {
	value := os.Getenv(name)
	if name == "" || value == "" {
		return nil, nil
	}
	var parameters []parameter
	if err := json.Unmarshal([]byte(value), &parameters); err != nil {
		return nil, fmt.Errorf("read parameters of Argo CD from %s: %w", name, err)
	}
	tags := make([]string, 0, len(parameters))
	for _, p := range parameters {
		if p.String == nil || p.Array != nil || p.Map != nil {
			return nil, fmt.Errorf("read parameters of Argo CD from %s: parameter %q has no string; a tag of CUE takes one: write {name: %s, string: …}", name, p.Name, p.Name)
		}
		tags = append(tags, p.Name+"="+*p.String)
	}
	return tags, nil
}
