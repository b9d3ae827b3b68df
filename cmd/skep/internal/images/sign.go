package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/signing"
	"github.com/skep-dev/skep/signing/collect"
	"github.com/skep-dev/skep/signing/sign"
	"github.com/skep-dev/skep/text"
)

// passwordVariable is where cosign looks for the password of a key, too.
const passwordVariable = "COSIGN_PASSWORD"

// NewKey returns skep key.
func NewKey() *cobra.Command {
	cmd := &cobra.Command{Use: "key", Short: "Make signing keys"}
	cmd.AddCommand(newKeyGenerate())
	return cmd
}

func newKeyGenerate() *cobra.Command {
	var prefix, signer string
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make a key pair in cosign's format, and the BpfSigner that trusts it",
		Long: "Make PREFIX.key (encrypted with $" + passwordVariable + ", which may be empty), PREFIX.pub and PREFIX.signer.yaml.\n" +
			"The private half stays with the signer; admins put the signer file where skep looks for signers.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := nothingAt(prefix); err != nil {
				return err
			}
			private, public, err := sign.GenerateKey([]byte(os.Getenv(passwordVariable)))
			if err != nil {
				return err
			}
			if signer == "" {
				signer = filepath.Base(prefix)
			}
			doc, err := display.YAML(Signer(signer, string(public)))
			if err != nil {
				return err
			}
			for _, f := range []struct {
				name string
				data []byte
				mode os.FileMode
			}{{prefix + keyEnding, private, 0o600}, {prefix + publicEnding, public, 0o644}, {prefix + signerEnding, doc, 0o644}} {
				if err := writeNew(f.name, f.data, f.mode); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), f.name)
			}
			if os.Getenv(passwordVariable) == "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s.key has no password; to have one, remove the files of this key, set $%s and generate it again\n",
					prefix, passwordVariable)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&prefix, "output-key-prefix", "skep", "path and first part of the file names")
	cmd.Flags().StringVar(&signer, "signer", "", "name of the BpfSigner (default: the last part of the prefix)")
	return cmd
}

// Signer returns the BpfSigner that trusts a public key.
func Signer(name, public string) *v1alpha1.BpfSigner {
	s := &v1alpha1.BpfSigner{}
	s.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindBpfSigner}
	s.Name = name
	s.Spec.Key = &v1alpha1.KeySigner{PublicKey: public}
	return s
}

// The endings of the files of a key.
const (
	keyEnding    = ".key"
	publicEnding = ".pub"
	signerEnding = ".signer.yaml"
)

// nothingAt rejects a prefix with which a file of a key exists.
func nothingAt(prefix string) error {
	for _, ending := range []string{keyEnding, publicEnding, signerEnding} {
		if _, err := os.Lstat(prefix + ending); err == nil {
			return keyExists(prefix + ending)
		}
	}
	return nil
}

// keyExists says how to go on where a file of a key exists.
func keyExists(name string) error {
	return fmt.Errorf("write key: %s exists and is not overwritten: to make another key beside it, give another --output-key-prefix; "+
		"to replace it, remove its files first (%s, %s, %s)", name, keyEnding, publicEnding, signerEnding)
}

// writeNew never overwrites: a key that is gone cannot be had again.
func writeNew(name string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if errors.Is(err, os.ErrExist) {
		return keyExists(name)
	}
	if err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	if _, err := f.Write(data); err != nil {
		_ = f.Close()
		return fmt.Errorf("write key: %w", err)
	}
	return f.Close()
}

// signingFlags say with which key a command signs, and in which format.
type signingFlags struct {
	key    string
	bundle bool
}

func (f *signingFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.key, "key", "", "private key file")
	cmd.Flags().BoolVar(&f.bundle, "bundle", false, "write a sigstore bundle as an OCI 1.1 referrer instead of cosign's tag")
}

// private reads the key, with the password of the environment.
func (f *signingFlags) private() (*sign.PrivateKey, error) {
	data, err := os.ReadFile(f.key)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	return sign.ParsePrivateKey(data, []byte(os.Getenv(passwordVariable)))
}

// NewSign returns skep sign.
func NewSign() *cobra.Command {
	var (
		how         signingFlags
		annotations map[string]string
		reg         RegistryFlags
	)
	cmd := &cobra.Command{
		Use:   "sign --key KEY REF|oci:DIR",
		Short: "Sign an image with a key, so that cosign can verify it too",
		Long: "Sign the digest an image reference stands for now, and store the signature beside it as cosign\n" +
			"does. The key's password is taken from $" + passwordVariable + ".",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			private, err := how.private()
			if err != nil {
				return err
			}
			client, err := reg.Client()
			if err != nil {
				return err
			}
			return reg.Within(cmd.Context(), "signing "+args[0], func(ctx context.Context) error {
				r, err := client.Resolve(ctx, args[0])
				if err != nil {
					return err
				}
				if err := sign.Image(ctx, client, r, private, sign.Options{Annotations: annotations, Bundle: how.bundle}); err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), digestReference(r))
				return err
			})
		},
	}
	how.register(cmd)
	cmd.Flags().StringToStringVarP(&annotations, "annotations", "a", nil, "key=value pairs to sign along")
	_ = cmd.MarkFlagRequired("key")
	reg.Register(cmd)
	return cmd
}

// NewVerify returns skep verify.
func NewVerify() *cobra.Command {
	var (
		signers []string
		output  string
		reg     RegistryFlags
	)
	cmd := &cobra.Command{
		Use:   "verify --signers FILE REF|oci:DIR",
		Short: "Show which known signers signed an image",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			engine := policies.NewEngine(policies.EngineOptions{})
			defer engine.Close()
			active, err := settings.Load(cmd.Context(), engine, settings.Options{Signers: signers})
			if err != nil {
				return err
			}
			client, err := reg.Client()
			if err != nil {
				return err
			}
			var evidence signing.Evidence
			err = reg.Within(cmd.Context(), "verifying "+args[0], func(ctx context.Context) error {
				r, err := client.Resolve(ctx, args[0])
				if err != nil {
					return err
				}
				done := display.Working(cmd, "collecting signatures of %s", args[0])
				found, err := collect.All(ctx, client, r, active.Trust.Repositories()...)
				done()
				if err == nil {
					evidence, err = active.Trust.Verify(ctx, found, time.Now())
				}
				return err
			})
			if err != nil {
				return err
			}
			if output == "json" {
				err = display.JSON(cmd.OutOrStdout(), evidence)
			} else {
				printEvidence(cmd, evidence)
			}
			switch {
			case err != nil || len(evidence.Signatures) > 0:
				return err
			case evidence.Truncated != "":
				return fmt.Errorf("verify %s: not all signatures are read, and none of those that are counts: %s: remove what is not needed beside the image",
					args[0], evidence.Truncated)
			}
			return exit.ErrDenied
		},
	}
	cmd.Flags().StringSliceVar(&signers, "signers", nil, "file or folder of BpfSigner objects")
	_ = cmd.MarkFlagRequired("signers")
	display.OutputFlag(cmd, &output, "text", "json")
	reg.Register(cmd)
	return cmd
}

// madeBy is who made a signature, from what, and when, as far as it says.
func madeBy(kind, subject string, claims signing.Claims, at time.Time) string {
	words := []string{kind, subject}
	if claims.SourceRepositoryURI != "" {
		words = append(words, "from", strings.Trim(claims.SourceRepositoryURI+"@"+claims.SourceRepositoryRef, "@"))
	}
	if !at.IsZero() {
		words = append(words, "at", at.Format(time.RFC3339))
	}
	return text.Line(strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " "))
}

func printEvidence(cmd *cobra.Command, e signing.Evidence) {
	w := cmd.OutOrStdout()
	if len(e.Signatures) == 0 {
		fmt.Fprintf(w, "%s no known signer signed %s\n", display.Paint(w, display.Red, "DENIED"), text.Line(e.Digest))
	}
	for _, s := range e.Signatures {
		verb := "signed"
		if s.PredicateType != "" {
			verb = "attested"
		}
		fmt.Fprintf(w, "%s %s (%s)\n", display.Paint(w, display.Green, "VERIFIED"), text.Line(s.Signer+" "+verb+" "+e.Digest),
			madeBy(s.Kind, s.Subject, s.Claims, s.Time))
	}
	for _, a := range e.Attestations {
		fmt.Fprintf(w, "ATTESTED %s (%s)\n", text.Line(a.Signer+" says "+a.PredicateType), madeBy(a.Kind, a.Subject, a.Claims, a.Time))
	}
	if names := e.Attesters(); len(e.Signatures) == 0 && len(names) > 0 {
		fmt.Fprintf(w, "%s\n",
			display.Paint(w, display.Faint, "attestations alone do not count: set countAttestations on BpfSigner "+text.Line(display.List(names))+" to have them count"))
	}
	for _, r := range e.Rejected {
		fmt.Fprintf(w, "%s %s\n", display.Paint(w, display.Faint, "did not count:"), text.Line(cmp.Or(r.Signer, "-")+" "+r.Reason))
	}
}
