package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/nodemode/source"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// epochVariable fixes the time of what is built (https://reproducible-builds.org/specs/source-date-epoch/).
const epochVariable = "SOURCE_DATE_EPOCH"

// renderLong describes skep render.
const renderLong = "Print the definitions that a CUE package or file renders to.\n\n" +
	"With --package or --expression, the folder PATH alone is rendered: no folder below, no YAML and no JSON. A\n" +
	"CueArtifact with the same package, expressions and tags renders the same.\n\n" +
	"With --push, put what would be printed into a registry as an OCI artifact of Flux's media types, which\n" +
	"Flux's OCIRepository and Argo CD's OCI source read. Nothing is pushed if one definition is invalid. Source and\n" +
	"revision are those of PATH's git repository; a commit is named only if it renders to the same. The same\n" +
	"commit gives the same digest: the artifact's time is the commit's, or $SOURCE_DATE_EPOCH. --sign signs as\n" +
	"skep sign does, before the tag names the artifact; the key's password is taken from $COSIGN_PASSWORD."

// pushRendered pushes what the definitions of a source render to, if all of them are good.
func pushRendered(cmd *cobra.Command, push *images.PushFlags, from schemas.Options) error {
	ctx := cmd.Context()
	manifests, err := rendered(ctx, from)
	if err != nil {
		return err
	}
	if len(manifests) == 0 {
		return errors.New("push: no definition found, so nothing is pushed; name the folder of the definitions")
	}
	origin, err := originOf(ctx, push, from, manifests)
	if err != nil {
		return err
	}
	progress := display.Begin(cmd)
	p, err := push.Push(ctx, manifests, origin, progress)
	progress.Done()
	if err != nil {
		return err
	}
	format := ""
	if given := cmd.Flags().Lookup("output"); given.Changed {
		format = given.Value.String()
	}
	return p.Print(cmd.OutOrStdout(), format)
}

// rendered is what skep render prints of a source in which nothing is wrong.
func rendered(ctx context.Context, from schemas.Options) ([]byte, error) {
	objects, problems, err := schemas.Render(ctx, from)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, problemsError(problems)
	}
	var out bytes.Buffer
	if err := printObjects(&out, "yaml", objects); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// problemsError joins problems, a line each, so that none looks like several.
func problemsError(problems []schemas.Problem) error {
	all := make([]error, 0, len(problems))
	for _, p := range problems {
		all = append(all, errors.New(text.Indented(p.Error())))
	}
	return errors.Join(all...)
}

// originOf says where manifests come from: as the user gave it, and else by the git repository
// that the source lies in.
func originOf(ctx context.Context, push *images.PushFlags, from schemas.Options, manifests []byte) (image.Origin, error) {
	origin := image.Origin{Source: push.Source, Revision: push.Revision, Created: time.Unix(0, 0).UTC()}
	checkout, err := checkoutOf(from)
	switch {
	case err == nil:
		if err := fromCheckout(ctx, &origin, checkout, from, manifests); err != nil {
			return origin, err
		}
	case !errors.Is(err, source.ErrNoCheckout):
		return origin, err
	case origin.Source == "" || origin.Revision == "":
		return origin, fmt.Errorf("push: %w; give --source and --revision", err)
	}
	if epoch := os.Getenv(epochVariable); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return origin, fmt.Errorf("push: read $%s: %q is no number of seconds since 1970", epochVariable, epoch)
		}
		origin.Created = time.Unix(seconds, 0).UTC()
	}
	return origin, nil
}

// checkoutOf finds the git repository of a source; source.ErrNoCheckout for standard input.
func checkoutOf(from schemas.Options) (*source.Checkout, error) {
	if from.Stream != nil {
		return nil, fmt.Errorf("standard input: %w", source.ErrNoCheckout)
	}
	return source.OpenCheckout(filepath.Join(from.Root, filepath.FromSlash(from.Path)))
}

// fromCheckout fills in what the user did not give. A commit is named only if it renders to
// the same: an artifact whose revision does not hold what is in it would mislead whoever
// audits it.
func fromCheckout(ctx context.Context, origin *image.Origin, checkout *source.Checkout, from schemas.Options, manifests []byte) error {
	at, err := checkout.Head()
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	if origin.Source == "" {
		if origin.Source, err = checkout.Remote(); err != nil || origin.Source == "" {
			return errors.Join(err, errors.New("push: the git repository has no remote origin; give the address by --source"))
		}
	}
	remedy := "give the revision by --revision"
	if origin.Revision == "" {
		origin.Revision = at.Revision()
	} else {
		named, found := checkout.Named(origin.Revision)
		if !found {
			origin.Created = at.Time.UTC()
			return nil
		}
		at, remedy = named, "give a --revision that names no other commit"
	}
	origin.Created = at.Time.UTC()
	var committed []byte
	err = atCommit(ctx, checkout, at, from, func(there schemas.Options) error {
		committed, err = rendered(ctx, there)
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("push: render commit %s: %w", at.Hash, err)
	}
	if !bytes.Equal(committed, manifests) {
		return fmt.Errorf("push: commit %s renders to something else than the working tree; commit the changes, or %s", at.Hash, remedy)
	}
	return nil
}

// atCommit runs what reads a source as it was at a commit. The error is os.ErrNotExist where
// the path was not there.
func atCommit(ctx context.Context, checkout *source.Checkout, at source.Commit, from schemas.Options, run func(schemas.Options) error) error {
	dir, err := os.MkdirTemp("", "skep-commit-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path, err := checkout.Export(ctx, at, dir)
	if err != nil {
		return err
	}
	if from.Root, from.Path, err = schemas.Locate(path); err != nil {
		return err
	}
	return run(from)
}
