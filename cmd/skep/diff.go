package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/diff"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/cmd/skep/internal/render"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
)

// diffFlags are those of skep diff.
type diffFlags struct {
	gateFlags
	what        render.Flags
	revision    string
	fromCluster bool
	kube        kubeconfig.Flags
	manager     string
	selector    string
}

func newDiff() *cobra.Command {
	var (
		f      diffFlags
		output string
	)
	cmd := &cobra.Command{
		Use:   "diff PATH",
		Short: "Show which objects a change of definitions adds, changes and removes",
		Long: "Compare the definitions at PATH (a file or a folder, or - for standard input) with a commit or with a\n" +
			"cluster. Nothing is stored, and only Skep's kinds are read: no Secret is shown.\n\n" +
			"Without --from-cluster, compare with the commit where HEAD and --from meet, as git diff REV... does; by\n" +
			"default that is HEAD, and shows what is not committed. With --policy or --signers, evaluate what is\n" +
			"added or changed as skep vet does.\n\n" +
			"With --from-cluster, ask the API server for a dry run of each object in the name of the caller, so\n" +
			"that its defaults are no changes, and Skep's webhook answers what the cluster's policies say. This needs\n" +
			"the rights to apply the objects. It is applied as it was before: as the field manager that applied it on\n" +
			"the server's side, or as kubectl apply does on the client's. Removed is what PATH does not have and the\n" +
			"same Flux Kustomization or Argo CD Application has applied, so PATH is to be all of that; or else what\n" +
			"--selector chooses.\n\n" +
			"Exit code 0: nothing differs; 1: something does; 2: something is denied or invalid, or could not be\n" +
			"determined.",
		Example: "  skep diff definitions\n" +
			"  skep diff --from origin/main -o markdown definitions\n" +
			"  kustomize build | skep diff --from-cluster -",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			report, err := f.report(cmd, args[0])
			if err != nil {
				return err
			}
			if err := report.Print(cmd.OutOrStdout(), output); err != nil {
				return err
			}
			if err := report.Error(); err != nil {
				return err
			}
			if len(report.Changes) > 0 {
				return exit.ErrDiffers
			}
			return nil
		},
	}
	f.what.Register(cmd)
	cmd.Flags().StringVar(&f.revision, "from", "HEAD", "branch, tag or commit to compare with: where HEAD and it meet")
	cmd.Flags().BoolVar(&f.fromCluster, "from-cluster", false, "compare with the cluster")
	cmd.Flags().StringVar(&f.manager, "field-manager", "", "with --from-cluster: apply as this manager (default: the one that applied the object last)")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "with --from-cluster: labels of what PATH owns in the cluster; "+
		"what it does not have of that is removed")
	display.OutputFlag(cmd, &output, diff.Formats()...)
	f.kube.Register(cmd)
	f.register(cmd)
	for _, with := range []string{"from", "policy", "replaces", "signers", "cache", "insecure-registry"} {
		cmd.MarkFlagsMutuallyExclusive("from-cluster", with)
	}
	return cmd
}

// check rejects flags that say nothing of a comparison with a commit: who gives one means a cluster.
func (f *diffFlags) check(cmd *cobra.Command) error {
	for _, name := range []string{"context", "field-manager", "kubeconfig", "namespace", "selector"} {
		if cmd.Flags().Changed(name) && !f.fromCluster {
			return fmt.Errorf("diff: --%s is for a comparison with a cluster; write --from-cluster too", name)
		}
	}
	return nil
}

// report compares a path with what the flags say.
func (f *diffFlags) report(cmd *cobra.Command, path string) (diff.Report, error) {
	from, err := sourceOf(cmd, path)
	if err != nil {
		return diff.Report{}, err
	}
	if err := f.what.Set(&from); err != nil {
		return diff.Report{}, err
	}
	objects, problems, err := schemas.Render(cmd.Context(), from)
	if err != nil {
		return diff.Report{}, err
	}
	// What cannot be read would seem to be removed.
	if len(problems) > 0 {
		return diff.Report{}, problemsError(problems)
	}
	defer display.Working(cmd, "comparing %s", path)()
	if f.fromCluster {
		return f.withCluster(cmd, objects)
	}
	return f.withCommit(cmd, from, objects)
}

// withCluster compares objects with those of a cluster.
func (f *diffFlags) withCluster(cmd *cobra.Command, objects []schemas.Object) (diff.Report, error) {
	config, namespace, err := f.kube.Load()
	if err != nil {
		return diff.Report{}, err
	}
	c := diff.Cluster{Config: config, Namespace: namespace, FieldManager: f.manager, Selector: f.selector}
	report, cautions, err := c.Compare(cmd.Context(), objects)
	warn(cmd, cautions)
	return report, err
}

// withCommit compares objects with what the source rendered to at a commit.
func (f *diffFlags) withCommit(cmd *cobra.Command, from schemas.Options, objects []schemas.Object) (diff.Report, error) {
	ctx := cmd.Context()
	checkout, err := checkoutOf(from)
	if err != nil {
		return diff.Report{}, fmt.Errorf("diff: %w; compare with a cluster by --from-cluster", err)
	}
	base, err := checkout.MergeBase(f.revision)
	if err != nil {
		return diff.Report{}, fmt.Errorf("diff: %w", err)
	}
	var before []schemas.Object
	err = atCommit(ctx, checkout, base, from, func(there schemas.Options) error {
		var problems []schemas.Problem
		before, problems, err = schemas.Render(ctx, there)
		for _, p := range problems {
			warn(cmd, []string{"of commit " + base.Hash + ": " + p.Error()})
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return diff.Report{}, fmt.Errorf("diff: render commit %s: %w", base.Hash, err)
	}
	report, err := diff.Between(before, objects, "commit "+base.Hash)
	if err == nil && (len(f.Policies) > 0 || len(f.Signers) > 0) {
		err = f.evaluate(cmd, from, &report)
	}
	return report, err
}

// evaluate has the gate answer what is added or changed.
func (f *diffFlags) evaluate(cmd *cobra.Command, from schemas.Options, report *diff.Report) error {
	engine := policies.NewEngine(policies.EngineOptions{})
	defer engine.Close()
	evaluator, err := f.evaluator(cmd, engine)
	if err != nil {
		return err
	}
	defs, err := schemas.Load(cmd.Context(), from)
	if err != nil {
		return err
	}
	for i := range report.Changes {
		for _, d := range defs.Applications {
			if c := &report.Changes[i]; c.Action != diff.Removed && d.Application.Identity() == c.Identity {
				answerOf(cmd.Context(), evaluator, d, c)
			}
		}
	}
	return cmd.Context().Err()
}

// answerOf sets what the gate answers.
func answerOf(ctx context.Context, evaluator *gate.Evaluator, d schemas.Definition, c *diff.Change) {
	r := vetOne(ctx, evaluator, d)
	for _, why := range r.Reasons {
		c.Reasons = append(c.Reasons, gate.Sentence(why.Reason))
	}
	for _, why := range r.Warnings {
		c.Warnings = append(c.Warnings, gate.Sentence(why.Reason))
	}
	switch {
	case r.unknown():
		c.Answer, c.Reasons = diff.Unknown, []string{r.Error}
	case r.invalid():
		c.Answer = diff.Invalid
	case !r.Allowed:
		c.Answer = diff.Denied
	default:
		c.Answer = diff.Allowed
	}
}
