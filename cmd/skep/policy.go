package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

func newPolicy() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Test policies, and show their input"}
	cmd.AddCommand(newPolicyTest(), newPolicyInput(), newPolicySchema())
	return cmd
}

func newPolicyTest() *cobra.Command {
	var (
		output  string
		verbose bool
	)
	cmd := &cobra.Command{
		Use:   "test DIR",
		Short: "Run the _test.rego files of a folder of policies in the sandbox they will run in",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := os.Stat(args[0])
			if err != nil {
				return fmt.Errorf("test policies: %w", err)
			}
			if !info.IsDir() {
				return fmt.Errorf("test policies: %s is a file; name the folder it is in", args[0])
			}
			engine := policies.NewEngine(policies.EngineOptions{})
			defer engine.Close()
			test := engine.Test
			if verbose {
				test = engine.Trace
			}
			report, err := test(cmd.Context(), os.DirFS(args[0]))
			if err != nil {
				// The settings know the places of what is wrong in objects.
				if _, placed := settings.Load(cmd.Context(), engine, settings.Options{Policies: args}); placed != nil {
					return placed
				}
				return fmt.Errorf("test policies in %s: %w", args[0], err)
			}
			if len(report.Results) == 0 {
				return fmt.Errorf("test policies in %s: there is no test; those of NAME.rego stand in NAME_test.rego and begin with test_", args[0])
			}
			if output == "json" {
				err = display.JSON(cmd.OutOrStdout(), report)
			} else {
				printReport(cmd, report)
			}
			if err == nil && !report.Passed() {
				return exit.ErrDenied
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print how OPA evaluated each failed test")
	display.OutputFlag(cmd, &output, "text", "json")
	return cmd
}

func printReport(cmd *cobra.Command, report policies.Report) {
	w := cmd.OutOrStdout()
	counts := map[policies.Outcome]int{}
	for _, r := range report.Results {
		counts[r.Outcome]++
		colour := display.Green
		if r.Outcome == policies.Failed || r.Outcome == policies.Errored {
			colour = display.Red
		}
		what := fmt.Sprintf("%s/%s (%s:%d)", r.Policy, r.Name, r.File, r.Line)
		fmt.Fprintf(w, "%s %s\n", display.Paint(w, colour, text.Line(string(r.Outcome))), text.Line(what))
		if r.Message != "" {
			fmt.Fprintf(w, "  %s\n", text.Indented(r.Message))
		}
		if r.Output != "" {
			fmt.Fprintf(w, "  %s\n", text.Indented(r.Output))
		}
		if r.Trace != "" {
			fmt.Fprintf(w, "  trace:\n    %s\n", strings.ReplaceAll(text.Printable(strings.TrimSuffix(r.Trace, "\n")), "\n", "\n    "))
		}
	}
	for _, name := range report.Untested {
		fmt.Fprintf(w, "%s %s has no test\n", display.Paint(w, display.Faint, "untested"), text.Line(name))
	}
	fmt.Fprintf(w, "%d passed, %d failed, %d skipped\n", counts[policies.Passed], counts[policies.Failed]+counts[policies.Errored], counts[policies.Skipped])
}

func newPolicyInput() *cobra.Command {
	var flags gateFlags
	cmd := &cobra.Command{
		Use:   "input PATH",
		Short: "Print the exact document that Rego sees for a definition",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return printInputs(cmd, &flags, args[0]) },
	}
	flags.register(cmd)
	return cmd
}

// printInputs prints the document for each application that a path defines.
func printInputs(cmd *cobra.Command, flags *gateFlags, path string) error {
	engine := policies.NewEngine(policies.EngineOptions{})
	defer engine.Close()
	evaluator, err := flags.evaluator(cmd, engine)
	if err != nil {
		return err
	}
	from, err := sourceOf(cmd, path)
	if err != nil {
		return err
	}
	defs, err := schemas.Load(cmd.Context(), from)
	if err != nil {
		return err
	}
	for _, p := range defs.Problems {
		return p
	}
	if len(defs.Applications) == 0 {
		return fmt.Errorf("print input: %s defines no application", path)
	}
	for _, d := range defs.Applications {
		var input policies.Input
		err := flags.reg.Within(cmd.Context(), "reading "+d.Application.Body().Bytecode.Image, func(ctx context.Context) (err error) {
			input, err = evaluator.Input(ctx, gate.Request{Application: d.Application})
			return err
		})
		if err != nil {
			return err
		}
		doc, err := input.Document()
		if err != nil {
			return err
		}
		if err := display.JSON(cmd.OutOrStdout(), json.RawMessage(doc)); err != nil {
			return err
		}
	}
	return nil
}

func newPolicySchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema DIR",
		Short: "Write input.schema.json, capabilities.json and library/ for opa check and editors",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			files := map[string][]byte{"input.schema.json": policies.InputSchema(), "capabilities.json": policies.Capabilities()}
			for file, source := range policies.Library() {
				files[file] = []byte(source)
			}
			var errs []error
			for name, data := range files {
				file := filepath.Join(args[0], filepath.FromSlash(name))
				//nolint:gosec // They hold no secrets, and whoever shares the repository reads them.
				errs = append(errs, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, data, 0o644))
			}
			return errors.Join(errs...)
		},
	}
}
