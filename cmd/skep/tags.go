package main

import (
	"cmp"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/argocd"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/schemas"
)

func newTags() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "tags PATH",
		Short: "List the tags of a CUE package, which skep render -t sets",
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
		return display.JSON(out, argocd.Announce(tags))
	case "json", "yaml":
		return display.Data(out, format, map[string]any{"tags": slices.Concat([]schemas.Tag{}, tags)})
	}
	rows := make([][]string, 0, len(tags))
	for _, t := range tags {
		rows = append(rows, []string{t.Name, t.Type, cmp.Or(t.Default, "-"), cmp.Or(display.List(t.Shorthands), "-"), t.Source.String(), cmp.Or(t.Doc, "-")})
	}
	return display.Table(out, []string{"TAG", "TYPE", "DEFAULT", "SHORT", "SOURCE", "DESCRIPTION"}, rows)
}
