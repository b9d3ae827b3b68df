package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/version"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/cmd/skep/internal/inspect"
	"github.com/skep-dev/skep/cmd/skep/internal/migrate"
	"github.com/skep-dev/skep/cmd/skep/internal/rollout"
	"github.com/skep-dev/skep/cmd/skep/internal/sysdump"
	"github.com/skep-dev/skep/cmd/skep/internal/ui"
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
	addGroup(root, "Author:", images.NewImage(), images.NewKey(), images.NewSign(), images.NewVerify(),
		newSchema(), newRender(), newTags(), newVet(), newDiff(), newPolicy(), migrate.New())
	addGroup(root, "Operate:", newRun(), inspect.NewReconcile(), inspect.NewConfirm(), rollout.New(), newUnload())
	addGroup(root, "Inspect:", inspect.NewStatus(), inspect.NewExplain(), inspect.NewHistory(), inspect.NewChain(), inspect.NewTop(),
		inspect.NewInventory(), newMap(), ui.New(), sysdump.New())
	addGroup(root, "Other commands:", newVersion(), newMan())
	root.SetHelpCommandGroupID("Other commands:")
	root.SetCompletionCommandGroupID("Other commands:")
	nameArguments(root)
	root.SetFlagErrorFunc(flagError)
	rejectUnknown(root)
	return root
}

// addGroup adds commands under a title of the help.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
		root.AddCommand(c)
	}
}

// flagError says where the flags of a command are listed. Before a command that does not
// exist, no flag is known either: that it does not exist is what is wrong.
func flagError(cmd *cobra.Command, err error) error {
	if given := cmd.Flags().Args(); cmd.HasSubCommands() && len(given) > 0 {
		return unknownCommand(cmd, given[0])
	}
	return fmt.Errorf("%w\n%s", err, seeHelp(cmd))
}

// rejectUnknown has every command that only has commands below it deny others.
func rejectUnknown(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		rejectUnknown(c)
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
		given := "it takes another number of arguments"
		if len(args) == 0 {
			given = "an argument is missing"
		}
		return fmt.Errorf("%s: %s; write: %s %s", c.Name(), given, c.Parent().CommandPath(), c.Use)
	}
}
