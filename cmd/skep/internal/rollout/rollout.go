// Package rollout has the commands that follow and steer a rollout in a cluster. They write
// annotations alone; the controller does the rest.
package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/text"
)

// New returns skep rollout.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Follow, resume and undo the rollout of a new version in a cluster",
		Long: "Follow, resume and undo the rollout of a new version.\n\n" +
			"A new version is rolled out to one node first, or as spec.rollout says. Where it fails on a node the rollout stops, and the\n" +
			"other nodes keep the previous version. An application is named as kubectl does: cbpfapp/NAME for a\n" +
			"ClusterBpfApplication, bpfapp/NAME for a BpfApplication of the namespace.",
	}
	cmd.AddCommand(newRolloutStatus(), newRolloutResume(), newRolloutUndo())
	return cmd
}

// rolled is what the commands need to know of an application.
type rolled struct {
	metav1.ObjectMeta `json:"metadata"`

	Status v1alpha1.BpfApplicationStatus `json:"status"`

	named target
	api   dynamic.ResourceInterface
}

// target names an application as people write it.
type target struct{ resource, name string }

// String is the name as kubectl prints it.
func (t target) String() string { return t.resource + "." + v1alpha1.Group + "/" + t.name }

// The resources of applications.
const (
	namespacedResource = "bpfapplication"
	clusterResource    = "clusterbpfapplication"
)

// parseTarget reads TYPE/NAME, where TYPE is what kubectl takes.
func parseTarget(arg string) (target, error) {
	kind, name, found := strings.Cut(arg, "/")
	if !found || name == "" {
		return target{}, fmt.Errorf("%q names no application; write cbpfapp/NAME, or bpfapp/NAME with -n NAMESPACE", arg)
	}
	switch strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(kind), "."+v1alpha1.Group), "s") {
	case namespacedResource, "bpfapp":
		return target{namespacedResource, name}, nil
	case clusterResource, "cbpfapp":
		return target{clusterResource, name}, nil
	}
	return target{}, fmt.Errorf("%q is no application's type; use bpfapp or cbpfapp", kind)
}

// targets completes applications as parseTarget reads them: those of the namespace, and of the cluster.
func targets(k *kubeconfig.Flags) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, a := range k.Applications(cmd.Context(), true) {
			kind := "bpfapp/"
			if a.Namespace == "" {
				kind = "cbpfapp/"
			}
			names = append(names, kind+a.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// find gets an application from the cluster.
func find(ctx context.Context, k *kubeconfig.Flags, arg string) (*rolled, error) {
	named, err := parseTarget(arg)
	if err != nil {
		return nil, err
	}
	config, namespace, err := k.Load()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach cluster: %w", err)
	}
	all := client.Resource(v1alpha1.GroupVersion().WithResource(named.resource + "s"))
	app := &rolled{named: named, api: all}
	if named.resource == namespacedResource {
		app.api = all.Namespace(namespace)
	}
	return app, app.get(ctx)
}

// get reads the application anew.
func (r *rolled) get(ctx context.Context) error {
	found, err := r.api.Get(ctx, r.named.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return exit.Absent("get %s: %w", r.named, err)
	}
	if err != nil {
		return fmt.Errorf("get %s: %w", r.named, err)
	}
	fresh := rolled{named: r.named, api: r.api}
	body, err := found.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(body, &fresh)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", r.named, err)
	}
	*r = fresh
	return nil
}

// annotate sets annotations; nil takes one away.
func (r *rolled) annotate(ctx context.Context, values map[string]*string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}})
	if err == nil {
		_, err = r.api.Patch(ctx, r.named.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "skep"})
	}
	if err != nil {
		return fmt.Errorf("annotate %s: %w", r.named, err)
	}
	return nil
}

// IsTarget reports whether an argument names an application of a cluster, as TYPE/NAME.
func IsTarget(arg string) bool {
	_, err := parseTarget(arg)
	return err == nil
}

// Reconcile has the controller look at an application of a cluster again, as flux reconcile
// does.
func Reconcile(ctx context.Context, w io.Writer, k *kubeconfig.Flags, arg string) error {
	app, err := find(ctx, k, arg)
	if err != nil {
		return err
	}
	requested := time.Now().Format(time.RFC3339Nano)
	if err := app.annotate(ctx, map[string]*string{gate.AnnotationRequestedAt: &requested}); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: the controller looks again; it is done once status.lastHandledReconcileAt is %s\n", app.named, requested)
	return err
}

// state is how a rollout does, in a line, and whether it is over.
func (r *rolled) state() (line string, over bool, err error) {
	ready := apimeta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil || r.Status.ObservedGeneration != r.Generation:
		return "the definition has not been looked at yet", false, nil
	case r.Annotations[v1alpha1.AnnotationUndo] == strconv.FormatInt(r.Generation, 10) && r.Status.Rollout == nil:
		return "it is about to be undone", false, nil
	case ready.Status == metav1.ConditionTrue && r.Status.Rollout != nil && r.Status.Rollout.Step == 0:
		// It was undone, or is held back, and has no steps.
		return "", true, fmt.Errorf("%s: %s; %s", r.named, text.Indented(r.Status.Rollout.Message), text.Indented(ready.Message))
	case ready.Status == metav1.ConditionTrue && r.Status.Rollout != nil:
		return "", true, fmt.Errorf("%s: the rollout waits at step %d of %d: %s", r.named, r.Status.Rollout.Step, r.Status.Rollout.Steps,
			text.Indented(ready.Message))
	case ready.Status == metav1.ConditionTrue:
		return ready.Message, true, nil
	case apimeta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionStalled):
		return "", true, fmt.Errorf("%s: %s", r.named, text.Indented(ready.Message))
	}
	return ready.Message, false, nil
}

func newRolloutStatus() *cobra.Command {
	var (
		k       kubeconfig.Flags
		watch   bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "status TYPE/NAME",
		Short: "Show how far the newest version has come, until it is everywhere or stopped",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			app, err := find(ctx, &k, args[0])
			if err != nil {
				return err
			}
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			return app.follow(ctx, cmd.OutOrStdout(), watch)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "wait until the rollout is over")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "how long to wait; 0 means without end")
	k.Register(cmd)
	cmd.ValidArgsFunction = targets(&k)
	return cmd
}

// follow prints what is new of a rollout, a line each. It is an error if the
// rollout ends in anything but the version being everywhere.
func (r *rolled) follow(ctx context.Context, w io.Writer, watch bool) error {
	said := ""
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		if said != "" {
			if err := r.get(ctx); err != nil {
				return false, err
			}
		}
		line, over, err := r.state()
		if err == nil && line != said {
			said = line
			_, err = fmt.Fprintf(w, "%s: %s\n", r.named, text.Indented(line))
		}
		return over || !watch, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: it is not over: %s", r.named, text.Indented(said))
	}
	return err
}

func newRolloutResume() *cobra.Command {
	var k kubeconfig.Flags
	cmd := &cobra.Command{
		Use:   "resume TYPE/NAME",
		Short: "Begin the next step: past a pause, past nodes that fail, or after an undo",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			app, err := find(cmd.Context(), &k, args[0])
			if err != nil {
				return err
			}
			rollout := app.Status.Rollout
			if rollout == nil {
				return fmt.Errorf("%s: there is nothing to resume: the newest version is on its way to every node", app.named)
			}
			// An undo that could not be done holds the rollout, too.
			values, done := map[string]*string{v1alpha1.AnnotationUndo: nil}, "the definition's own version is rolled out again"
			if rollout.State != v1alpha1.RolloutRolledBack {
				values[v1alpha1.AnnotationResume], done = new(strconv.FormatInt(app.Status.Serial, 10)), "the next step begins"
			}
			if err := app.annotate(cmd.Context(), values); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", app.named, done)
			return err
		},
	}
	k.Register(cmd)
	cmd.ValidArgsFunction = targets(&k)
	return cmd
}

func newRolloutUndo() *cobra.Command {
	var k kubeconfig.Flags
	cmd := &cobra.Command{
		Use:   "undo TYPE/NAME",
		Short: "Bring the previous version back to every node, until the definition changes",
		Long: "Bring the previous version back to every node.\n\n" +
			"The definition and git stay as they are: the previous version runs until the spec changes, or until\n" +
			"skep rollout resume.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			app, err := find(cmd.Context(), &k, args[0])
			if err != nil {
				return err
			}
			switch rollout := app.Status.Rollout; {
			case rollout != nil && rollout.State == v1alpha1.RolloutRolledBack:
				return fmt.Errorf("%s: it is rolled back already", app.named)
			case app.Status.PreviousDigest == "":
				return fmt.Errorf("%s: there is no version before to go back to", app.named)
			}
			generation := strconv.FormatInt(app.Generation, 10)
			if err := app.annotate(cmd.Context(), map[string]*string{v1alpha1.AnnotationUndo: &generation}); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: the version before comes back to every node: image %s\n", app.named,
				text.Line(display.Short(app.Status.PreviousDigest)))
			return err
		},
	}
	k.Register(cmd)
	cmd.ValidArgsFunction = targets(&k)
	return cmd
}
