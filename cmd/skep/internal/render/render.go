// Package render has the flags by which commands say what they render of CUE. It reads them alone: what
// they choose is rendered by package schemas, and printed or compared by the commands.
package render

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/argocd"
	"github.com/skep-dev/skep/schemas"
)

// Flags are the package, the expressions and the tags.
type Flags struct {
	pkg, tagsEnv      string
	tags, expressions []string
}

// Register adds the flags to a command.
func (f *Flags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.pkg, "package", "p", "", "CUE package to render, of several in the folder; _ is the one without a name (default: all)")
	flags.StringArrayVarP(&f.expressions, "expression", "e", nil, "CUE expression to render instead of the whole package, such as apps.edge; may be repeated")
	flags.StringArrayVarP(&f.tags, "tag", "t", nil, "value for a CUE @tag: key=value")
	flags.StringVar(&f.tagsEnv, "tags-from-env", "", "environment variable with more tags, as parameters of an Argo CD plugin: ARGOCD_APP_PARAMETERS")
}

// Set has a source be rendered as the flags say.
func (f *Flags) Set(from *schemas.Options) error {
	more, err := tagsFromEnv(f.tagsEnv)
	from.Package, from.Expressions, from.Tags = f.pkg, f.expressions, slices.Concat(f.tags, more)
	return err
}

// tagsFromEnv reads tags, each key=value, from an environment variable that holds parameters of
// Argo CD; one that is not set or empty has none.
func tagsFromEnv(name string) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	tags, err := argocd.Tags(os.Getenv(name))
	if err != nil {
		return nil, fmt.Errorf("read parameters of Argo CD from %s: %w", name, err)
	}
	return tags, nil
}
