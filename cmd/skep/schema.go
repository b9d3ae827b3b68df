package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/cmd/skep/internal/render"
	"github.com/skep-dev/skep/hook"
	"github.com/skep-dev/skep/schemas"
)

func newSchema() *cobra.Command {
	cmd := &cobra.Command{Use: "schema", Short: "Write the CUE schema of definitions and the JSON Schema, and list the hooks"}
	cmd.AddCommand(newSchemaVendor(), newSchemaJSON(), newSchemaHooks())
	return cmd
}

func newSchemaVendor() *cobra.Command {
	var dependencies bool
	cmd := &cobra.Command{
		Use:   "vendor DIR",
		Short: "Write the schema to DIR/cue.mod/pkg, so that cue vet works without a network",
		Long: "Write the schema to DIR/cue.mod/pkg, so that cue vet works without a network.\n\n" +
			"With --deps, write the modules that DIR/cue.mod/module.cue needs there too: rendering fetches nothing. They\n" +
			"come from where cue takes them: CUE_REGISTRY, with the credentials of cue login or docker login. Each is\n" +
			"printed with the digest by which it was fetched. Commit cue.mod/pkg.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil { //nolint:gosec // It holds no secrets, and whoever shares the repository reads it.
				return err
			}
			written, err := schemas.Vendor(args[0])
			for _, file := range written {
				fmt.Fprintln(cmd.OutOrStdout(), file)
			}
			if err != nil || !dependencies {
				return err
			}
			defer display.Working(cmd, "fetching modules")()
			modules, err := schemas.VendorDependencies(cmd.Context(), args[0], os.Environ())
			for _, m := range modules {
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s %s\n", m.Folder, m.Module, m.Digest)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&dependencies, "deps", false, "write the modules that DIR/cue.mod/module.cue needs too")
	return cmd
}

func newSchemaJSON() *cobra.Command {
	return &cobra.Command{
		Use:   "json",
		Short: "Print the JSON Schema of definitions, policies and signers, for editors of YAML",
		Long: "Print the JSON Schema (draft 7) of definitions, policies and signers, for editors of YAML. An editor with\n" +
			"yaml-language-server reads it where the first line of a file names it:\n\n" +
			"  # yaml-language-server: $schema=skep.schema.json",
		Example: "  skep schema json > skep.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(schemas.JSONSchema())
			return err
		},
	}
}

func newSchemaHooks() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "hooks",
		Short: "List the hooks a program can attach to",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "json" {
				return display.JSON(cmd.OutOrStdout(), hook.All())
			}
			var rows [][]string
			for _, h := range hook.All() {
				rows = append(rows, []string{h.Name, string(h.Shape), h.MinKernel, string(h.Sharing), string(h.Risk), yes(h.Namespaceable), yes(h.Attachable)})
			}
			return display.Table(cmd.OutOrStdout(), []string{"HOOK", "TARGET", "KERNEL", "SHARING", "RISK", "NAMESPACED", "ATTACHABLE"}, rows)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json")
	return cmd
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "-"
}

func newRender() *cobra.Command {
	var (
		output string
		what   render.Flags
		push   images.PushFlags
	)
	cmd := &cobra.Command{
		Use:   "render PATH",
		Short: "Print the definitions of a CUE package or file, or push them for Flux and Argo CD",
		Long:  renderLong,
		Example: "  skep render -t env=prod definitions\n" +
			"  skep render --push oci://registry.example.com/bpf/definitions:main --sign --key cosign.key definitions",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := push.Check(); err != nil {
				return err
			}
			from, err := sourceOf(cmd, args[0])
			if err != nil {
				return err
			}
			if err := what.Set(&from); err != nil {
				return err
			}
			if push.Wanted() {
				return pushRendered(cmd, &push, from)
			}
			objects, problems, err := schemas.Render(cmd.Context(), from)
			if err != nil {
				return err
			}
			if err := printObjects(cmd.OutOrStdout(), output, objects); err != nil {
				return err
			}
			return problemsError(problems)
		},
	}
	what.Register(cmd)
	push.Register(cmd)
	display.OutputFlag(cmd, &output, "yaml", "json")
	return cmd
}

// printObjects writes a stream of YAML documents, or one JSON List as kubectl
// takes it.
func printObjects(w io.Writer, format string, objects []schemas.Object) error {
	items := make([]json.RawMessage, 0, len(objects))
	for _, o := range objects {
		items = append(items, o.JSON)
	}
	if format == "json" {
		return display.JSON(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	}
	for _, item := range items {
		if _, err := fmt.Fprintln(w, "---"); err != nil {
			return err
		}
		if err := display.Data(w, format, item); err != nil {
			return err
		}
	}
	return nil
}
