package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/text"
)

// streams are where a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// newRoot puts the commands together, one file each.
func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "skep",
		Short: "Admit, verify and run eBPF programs, from git to kernel",
		Long: "Skep validates a program definition, checks who signed its bytecode image, reads the bytecode\n" +
			"itself, lets the admins' policies decide on all of that, and keeps what is allowed loaded.",
		Version:       version.This().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate("skep {{.Version}}\n")
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.AddCommand(
		newImage(), newKey(), newSign(registryTimeout), newVerify(registryTimeout),
		newSchema(), newRender(), newVet(), newPolicy(),
		newRun(), newStatus(), newChain(), newExplain(), newInventory(), newConfirm(), newUnload(),
		newRollout(),
		newVersion(),
	)
	nameArguments(root)
	root.SetFlagErrorFunc(flagError)
	refuseUnknown(root)
	return root
}

// flagError says where the flags of a command are listed. Before a command that does not
// exist, no flag is known either: that it does not exist is what is wrong.
func flagError(cmd *cobra.Command, err error) error {
	if given := cmd.Flags().Args(); cmd.HasSubCommands() && len(given) > 0 {
		return unknownCommand(cmd, given[0])
	}
	return fmt.Errorf("%w\n%s", err, seeHelp(cmd))
}

// refuseUnknown has every command that only has commands below it refuse others.
func refuseUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		refuseUnknown(c)
	}
	if !cmd.HasSubCommands() {
		return
	}
	cmd.Args, cmd.DisableFlagsInUseLine = cobra.ArbitraryArgs, true
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		return unknownCommand(c, args[0])
	}
}

// unknownCommand says of a command that does not exist which ones are like it.
func unknownCommand(parent *cobra.Command, name string) error {
	like := ""
	parent.SuggestionsMinimumDistance = 2
	if known := parent.SuggestionsFor(name); len(known) > 0 {
		like = "; did you mean " + strings.Join(known, " or ") + "?"
	}
	return fmt.Errorf("unknown command %q for %q%s\n%s", name, parent.CommandPath(), like, seeHelp(parent))
}

// seeHelp says where a command's usage is told.
func seeHelp(cmd *cobra.Command) string {
	return fmt.Sprintf("See '%s --help' for usage.", cmd.CommandPath())
}

// nameArguments has every command say, where its arguments are too few or too
// many, which ones it takes.
func nameArguments(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		nameArguments(c)
	}
	check := cmd.Args
	if check == nil || cmd.Parent() == nil {
		return
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if check(c, args) == nil {
			return nil
		}
		given := "the arguments are not those it takes"
		if len(args) == 0 {
			given = "an argument is missing"
		}
		return fmt.Errorf("%s: %s; write: %s %s", c.Name(), given, c.Parent().CommandPath(), c.Use)
	}
}

// outputFlag adds -o with the formats a command has.
func outputFlag(cmd *cobra.Command, to *string, formats ...string) {
	cmd.Flags().StringVarP(to, "output", "o", formats[0], "format: "+strings.Join(formats, ", "))
	run := cmd.RunE
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if slices.Contains(formats, *to) {
			return run(c, args)
		}
		return fmt.Errorf("unknown output %q; use %s", *to, strings.Join(formats, ", "))
	}
}

// printJSON writes v indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printData writes v as JSON or YAML.
func printData(w io.Writer, format string, v any) error {
	if format == "json" {
		return printJSON(w, v)
	}
	doc, err := yamlOf(v)
	if err == nil {
		_, err = w.Write(doc)
	}
	return err
}

// yamlOf is v as one YAML document.
func yamlOf(v any) ([]byte, error) {
	out, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	return out, nil
}

// table writes rows in columns under a header. A cell that holds a list is shortened by
// fitting on a terminal, and nowhere else; no other cell is cut: another command may need
// the name, the digest or the path in it.
func table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		if _, err := fmt.Fprintln(tw, text.Printable(strings.Join(row, "\t"))); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// fitting is as many of a list's members as fit n runes, one at least, each whole, and how
// many more there are.
func fitting(items []string, n int) string {
	for shown := len(items); shown > 1; shown-- {
		s := joined(items[:shown])
		if more := len(items) - shown; more > 0 {
			s += fmt.Sprintf(", +%d", more)
		}
		if len([]rune(s)) <= n {
			return s
		}
	}
	if len(items) > 1 {
		return fmt.Sprintf("%s, +%d", items[0], len(items)-1)
	}
	return joined(items)
}

// short is a digest as people compare it: twelve digits.
func short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		return digest
	}
	return text.CutRunes(hex, 13)[:min(12, len(hex))]
}

// or returns what is shown where there is nothing.
func or(s, nothing string) string {
	if s == "" {
		return nothing
	}
	return s
}

// terminal reports whether w is one a person looks at.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// working tells a person at a terminal what takes its time, and takes the line
// away when it is done. In a pipe it says nothing.
func working(cmd *cobra.Command, format string, args ...any) (done func()) {
	w := cmd.ErrOrStderr()
	if !terminal(w) {
		return func() {}
	}
	fmt.Fprintf(w, "%s…", text.CutRunes(fmt.Sprintf(format, args...), 98))
	return func() { fmt.Fprint(w, "\r\x1b[K") }
}

// paint colours s for a terminal, unless NO_COLOR is set (no-color.org).
func paint(w io.Writer, code, s string) string {
	if os.Getenv("NO_COLOR") != "" || !terminal(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// The colours of the two answers.
const (
	green = "32"
	red   = "31"
	faint = "2"
)
