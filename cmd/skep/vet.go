package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/text"
)

// gateFlags are what a command needs to evaluate definitions.
type gateFlags struct {
	settings.Options
	reg images.RegistryFlags
}

func (f *gateFlags) register(cmd *cobra.Command) {
	settingsFlags(cmd, &f.Policies, &f.Replaces, &f.Signers)
	f.reg.Register(cmd)
}

// settingsFlags are those that say which policies decide and whose signatures count.
func settingsFlags(cmd *cobra.Command, policyFolders, replaces, signers *[]string) {
	cmd.Flags().StringSliceVar(policyFolders, "policy", nil, "folder of policies, or a profile: baseline, restricted; baseline applies in any case, "+
		"unless one replaces it")
	cmd.Flags().StringSliceVar(replaces, "replaces", nil, "built-in policy that the .rego files and profiles of --policy replace: "+
		"baseline (objects have spec.replaces)")
	// A folder is completed, too, by the shell.
	_ = cmd.RegisterFlagCompletionFunc("policy", cobra.FixedCompletions(policies.Profiles(),
		cobra.ShellCompDirectiveDefault))
	_ = cmd.RegisterFlagCompletionFunc("replaces", cobra.FixedCompletions([]string{policies.ProfileBaseline}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringSliceVar(signers, "signers", nil, "file or folder of BpfSigner objects")
}

// evaluate puts a gate together, of use until engine is closed, and warns of what the author of
// signers and policies may not have meant.
func (f *gateFlags) evaluator(cmd *cobra.Command, engine *policies.Engine) (*gate.Evaluator, error) {
	active, err := settings.Load(cmd.Context(), engine, f.Options)
	if err != nil {
		return nil, err
	}
	warn(cmd, active.Cautions)
	client, err := f.reg.Client()
	if err != nil {
		return nil, err
	}
	return gate.New(gate.Options{
		Images:   client,
		Trust:    active.Trust,
		Policies: active.Policies,
		Timeout:  f.reg.Timeout(),
	})
}

// vetResult is one definition in the output of vet. Its keys are part of the
// command line's contract.
type vetResult struct {
	Application string         `json:"application"`
	Kind        string         `json:"kind,omitempty"`
	Allowed     bool           `json:"allowed"`
	Digest      string         `json:"digest"`
	Signers     []string       `json:"signers"`
	Reasons     []placedReason `json:"reasons"`
	Warnings    []placedReason `json:"warnings"`
	Audited     []placedReason `json:"audited"`
	// Rejected says of each signature that did not count why it did not.
	Rejected []signing.Rejection `json:"rejected,omitempty"`
	// Error is why there is no verdict: the definition is invalid, and Reasons say so by
	// the rule "schema" or by one of "shape/…", or it could not be determined, and there are
	// none.
	Error string `json:"error,omitempty"`
	// Source is where the definition stands.
	Source schemas.Position `json:"source"`
	// root is the folder that Source.File is relative to; empty for standard input.
	root string
}

// placedReason is a reason and where the field stands that it names, or else what the
// field is in.
type placedReason struct {
	policies.Reason

	Source schemas.Position `json:"source"`
}

// placed finds the places of reasons in a definition.
func placed(d schemas.Definition, reasons []policies.Reason) []placedReason {
	all := make([]placedReason, 0, len(reasons))
	for _, r := range reasons {
		all = append(all, placedReason{r, d.At(r.Path)})
	}
	return all
}

func newVet() *cobra.Command {
	var (
		output string
		files  []string
		flags  gateFlags
	)
	cmd := &cobra.Command{
		Use:   "vet PATH...",
		Short: "Evaluate definitions as a node would, and load nothing",
		Long: "Run the whole gate over CUE and YAML definitions: schema, signatures, bytecode, policies.\n" +
			"PATH is a file or a folder, or - for a stream of YAML documents on standard input.\n\n" +
			"Exit code 0: all are allowed; 1: one is denied; 2: one is invalid, or could not be determined\n" +
			"(a registry out of reach). An object of another kind of Skep's, such as a CueArtifact, is named in a line\n" +
			"and not evaluated: a cluster's API server checks it (skep diff --from-cluster).",
		Example: "  skep vet --signers signers.yaml definitions\n" +
			"  kustomize build | skep vet -",
		Args: func(cmd *cobra.Command, args []string) error {
			return cobra.MinimumNArgs(1)(cmd, append(args, files...))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			engine := policies.NewEngine(policies.EngineOptions{})
			defer engine.Close()
			evaluator, err := flags.evaluator(cmd, engine)
			if err != nil {
				return err
			}
			results, passedOver, progress := []vetResult{}, 0, display.Begin(cmd)
			for _, path := range append(args, files...) {
				from, err := sourceOf(cmd, path)
				if err != nil {
					return err
				}
				progress.Step("reading %s", path)
				some, defs, err := vetSource(cmd.Context(), evaluator, from, progress)
				progress.Done()
				if err != nil {
					return err
				}
				warn(cmd, defs.Misplaced())
				passedOver += len(defs.Unjudged)
				results = append(results, some...)
			}
			if len(results) == 0 && passedOver == 0 {
				return errors.New("vet: no definition found; write a BpfApplication or ClusterBpfApplication of skep.dev/v1alpha1")
			}
			if err := printVet(cmd.OutOrStdout(), output, results); err != nil {
				return err
			}
			return vetError(results)
		},
	}
	cmd.Flags().StringArrayVarP(&files, "filename", "f", nil, "file or folder, or - for standard input, as PATH; may be given several times")
	display.OutputFlag(cmd, &output, "text", "json", "sarif")
	flags.register(cmd)
	return cmd
}

// warn says cautions on stderr, a line each.
func warn(cmd *cobra.Command, cautions []string) {
	for _, caution := range cautions {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning %s\n", text.Indented(caution))
	}
}

// invalid reports whether the definition, or the file, is wrong in itself: by the schema, or
// by what the gate finds once the object says which hook is meant.
func (r vetResult) invalid() bool { return r.Error != "" && len(r.Reasons) > 0 }

// unknown reports whether the gate could not come to a verdict.
func (r vetResult) unknown() bool { return r.Error != "" && len(r.Reasons) == 0 }

// vetSource evaluates what one source holds. A definition that cannot be read is a
// result of its own.
func vetSource(
	ctx context.Context, evaluator *gate.Evaluator, from schemas.Options, progress *display.Progress,
) (results []vetResult, defs schemas.Definitions, err error) {
	from.Places = true
	defs, err = schemas.Load(ctx, from)
	if err != nil {
		return nil, defs, err
	}
	for _, p := range defs.Problems {
		r := vetResult{Application: p.Source.File, Source: p.Source, Error: p.Error(), Signers: []string{}, Warnings: []placedReason{}, Audited: []placedReason{}}
		if p.Definition != nil {
			r.Application, r.Kind = p.Definition.String(), p.Definition.Kind
		}
		r.Reasons = []placedReason{{policies.Reason{Rule: "schema", Path: p.Path, Message: p.Message, Fix: p.Fix}, p.Source}}
		results = append(results, r)
	}
	for i, d := range defs.Applications {
		progress.Step("evaluating %s (%d of %d)", d.Application.Identity(), i+1, len(defs.Applications))
		results = append(results, vetOne(ctx, evaluator, d))
		if ctx.Err() != nil {
			return nil, defs, fmt.Errorf("vet: %w", ctx.Err())
		}
	}
	for i := range results {
		results[i].root = from.Root
	}
	return results, defs, nil
}

func vetOne(ctx context.Context, evaluator *gate.Evaluator, d schemas.Definition) vetResult {
	id := d.Application.Identity()
	r := vetResult{
		Application: id.String(), Kind: id.Kind, Source: d.Source, Signers: []string{}, Reasons: []placedReason{}, Warnings: []placedReason{},
		Audited: []placedReason{},
	}
	verdict, err := evaluator.Evaluate(ctx, gate.Request{Application: d.Application})
	if err != nil {
		r.Error = err.Error()
		return r
	}
	decision, evidence := verdict.Decision(), verdict.Evidence()
	r.Allowed, r.Digest, r.Error = verdict.Allowed(), verdict.Image().Digest, verdict.Invalid()
	r.Signers = append(r.Signers, evidence.Signers()...)
	if len(evidence.Signatures) == 0 {
		r.Rejected = evidence.Rejected
	}
	r.Reasons, r.Warnings, r.Audited = placed(d, decision.Denied), placed(d, decision.Warnings), placed(d, decision.Audited)
	return r
}

// vetError is the worst of the results, as an exit code.
func vetError(results []vetResult) error {
	var none []string
	if invalid := applications(results, vetResult.invalid); len(invalid) > 0 {
		none = append(none, display.List(invalid)+": invalid")
	}
	if unknown := applications(results, vetResult.unknown); len(unknown) > 0 {
		none = append(none, display.List(unknown)+": could not be determined")
	}
	if len(none) > 0 {
		return fmt.Errorf("vet %s; the reasons are above", text.Line(strings.Join(none, "; ")))
	}
	if slices.ContainsFunc(results, func(r vetResult) bool { return !r.Allowed }) {
		return exit.ErrDenied
	}
	return nil
}

// applications are those whose results are so, each once.
func applications(results []vetResult, so func(vetResult) bool) []string {
	var all []string
	for _, r := range results {
		if so(r) && !slices.Contains(all, r.Application) {
			all = append(all, r.Application)
		}
	}
	return all
}

func printVet(w io.Writer, format string, results []vetResult) error {
	switch format {
	case "json":
		return display.JSON(w, map[string]any{"results": results})
	case "sarif":
		return display.JSON(w, sarifOf(results))
	}
	for _, r := range results {
		printVetResult(w, r)
	}
	return nil
}

func printVetResult(w io.Writer, r vetResult) {
	answer, kind := display.Paint(w, display.Green, "ALLOWED"), "denied"
	switch {
	case r.invalid():
		answer, kind = display.Paint(w, display.Red, "INVALID"), "invalid"
	case r.unknown():
		answer = display.Paint(w, display.Red, "UNKNOWN")
	case !r.Allowed:
		answer = display.Paint(w, display.Red, "DENIED")
	}
	fmt.Fprintf(w, "%s %s %s\n", answer, text.Line(cmp.Or(r.Kind, "file")+" "+r.Application), display.Paint(w, display.Faint, text.Line(r.Source.String())))
	if r.Digest != "" {
		fmt.Fprintf(w, "  image   %s\n  signers %s\n", text.Line(r.Digest), text.Line(cmp.Or(display.List(r.Signers), "none")))
	}
	for _, why := range r.Reasons {
		r.printReason(w, display.Paint(w, display.Red, kind), why)
	}
	if r.unknown() {
		fmt.Fprintf(w, "  could not be evaluated\n          %s\n          fix: %s\n",
			text.Indented(r.Error), "fix what it names, such as a registry out of reach, and vet again")
	}
	for _, why := range r.Rejected {
		fmt.Fprintf(w, "  %s %s\n", display.Paint(w, display.Faint, "signature did not count:"), text.Indented(strings.TrimPrefix(why.Signer+": ", ": ")+why.Reason))
	}
	for _, why := range r.Warnings {
		r.printReason(w, "warning", why)
	}
	for _, why := range r.Audited {
		r.printReason(w, "audit", why)
	}
}

// printReason prints a reason, and its place where that is not the definition's own.
func (r vetResult) printReason(w io.Writer, kind string, why placedReason) {
	place := why.Source.String()
	if why.Source == r.Source {
		place = ""
	}
	display.Reason(w, kind, why.Reason, place)
}
