package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/signing/sign"
)

// ociScheme begins the address of an artifact in a registry, as Flux and Argo CD write it.
const ociScheme = "oci://"

// manifestsFile is the only file of an artifact.
const manifestsFile = "manifests.yaml"

// PushFlags say where rendered manifests are pushed, where they come from, and who signs them.
type PushFlags struct {
	// Source and Revision are where the manifests come from, as far as the user gave it.
	Source, Revision string

	to   string
	sign bool
	how  signingFlags
	reg  RegistryFlags
}

// Register adds the flags to a command.
func (f *PushFlags) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.to, "push", "", "push an artifact for Flux and Argo CD instead of printing: oci://REGISTRY/REPOSITORY:TAG, or oci:DIR[:TAG]")
	flags.StringVar(&f.Source, "source", "", "with --push: address of the source (default: the git remote origin)")
	flags.StringVar(&f.Revision, "revision", "", "with --push: revision of the source, such as main@sha1:HASH (default: the commit that is checked out)")
	flags.BoolVar(&f.sign, "sign", false, "with --push: sign the artifact with --key, before the tag names it")
	f.how.register(cmd)
	f.reg.Register(cmd)
}

// Wanted reports whether a push was asked for.
func (f *PushFlags) Wanted() bool { return f.to != "" }

// Check finds what is wrong with the flags, before anything is done.
func (f *PushFlags) Check() error {
	switch {
	case f.to == "" && (f.sign || f.how != signingFlags{} || f.Source != "" || f.Revision != ""):
		return errors.New("--source, --revision, --sign, --key and --bundle are for --push; write --push oci://REGISTRY/REPOSITORY:TAG too")
	case f.sign && f.how.key == "":
		return errors.New("--sign needs a key; write --key FILE, and put its password into $" + passwordVariable)
	case !f.sign && f.how != signingFlags{}:
		return errors.New("--key and --bundle are for --sign; write --sign too")
	case f.to != "" && !strings.HasPrefix(f.to, image.LayoutPrefix):
		return fmt.Errorf("push to %s: write it as oci://REGISTRY/REPOSITORY:TAG, or as oci:DIR[:TAG] for a layout on disk", f.to)
	}
	return nil
}

// Pushed is an artifact that was pushed. Its keys are those of flux push artifact, and more.
type Pushed struct {
	// URL names the artifact by its digest, as Flux and Argo CD take it.
	URL        string `json:"url"`
	Repository string `json:"repository"`
	Tag        string `json:"tag,omitempty"`
	Digest     string `json:"digest"`
	image.Origin

	Signed bool `json:"signed"`
	// reference is what skep verify and cosign take.
	reference string
}

// Push packs manifests, signs the artifact if that was asked for, and then has the tag name
// it: whoever follows the tag never finds the artifact without its signature. It asks the
// registry no longer than limit.
func (f *PushFlags) Push(ctx context.Context, manifests []byte, from image.Origin, progress *display.Progress) (Pushed, error) {
	built, err := image.BuildManifests(manifestsFile, manifests, from)
	if err != nil {
		return Pushed{}, err
	}
	var private *sign.PrivateKey
	if f.sign {
		if private, err = f.how.private(); err != nil {
			return Pushed{}, err
		}
	}
	client, err := f.reg.Client()
	if err != nil {
		return Pushed{}, err
	}
	reference := strings.TrimPrefix(f.to, ociScheme)
	var r image.Resolved
	err = f.reg.Within(ctx, "pushing to "+f.to, func(ctx context.Context) error {
		if private != nil {
			progress.Step("pushing to %s and signing", f.to)
			if err := f.signFirst(ctx, client, reference, built, private); err != nil {
				return err
			}
		}
		progress.Step("pushing to %s", f.to)
		r, err = client.Push(ctx, reference, built)
		return err
	})
	if err != nil {
		return Pushed{}, fmt.Errorf("push to %s: %w", f.to, err)
	}
	return f.pushed(r, from), nil
}

// signFirst pushes the artifact under its digest alone, and signs it.
func (f *PushFlags) signFirst(ctx context.Context, client *registry.Client, reference string, built *image.Built, key *sign.PrivateKey) error {
	r, err := client.Parse(reference)
	if err != nil {
		return err
	}
	r.Digest = built.Digest()
	if r, err = client.Push(ctx, digestReference(r), built); err != nil {
		return err
	}
	return sign.Image(ctx, client, r, key, sign.Options{Bundle: f.how.bundle})
}

func (f *PushFlags) pushed(r image.Resolved, from image.Origin) Pushed {
	p := Pushed{Repository: r.Repository, Tag: r.Tag, Digest: r.Digest, Origin: from, Signed: f.sign, reference: digestReference(r)}
	p.URL = p.reference
	if r.Registry != "" {
		p.Repository, p.URL = r.Registry+"/"+r.Repository, ociScheme+p.reference
	}
	return p
}

// Print writes what was pushed: as JSON or YAML, or else what to verify and to name by digest.
func (p Pushed) Print(w io.Writer, format string) error {
	if format == "" {
		_, err := fmt.Fprintln(w, p.reference)
		return err
	}
	return display.Data(w, format, p)
}
