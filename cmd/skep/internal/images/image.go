// Package images has the commands that pack, move, sign and verify bytecode images, and how
// rendered manifests are pushed. What they do is done by packages image, bytecode and signing.
package images

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/bytecode"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/text"
)

// NewImage returns skep image.
func NewImage() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Pack, move and inspect bytecode images"}
	cmd.AddCommand(newImageBuild(), newImageCopy("push", "Copy an image to a registry"), newImageCopy("pull", "Copy an image to an OCI layout on disk"),
		newImageInspect())
	return cmd
}

func newImageBuild() *cobra.Command {
	var (
		files    []string
		artifact bool
		reg      RegistryFlags
	)
	cmd := &cobra.Command{
		Use:   "build -f OBJ.o REF|oci:DIR[:TAG]",
		Short: "Pack an eBPF object as an OCI image and push it",
		Long: "Pack an eBPF object in bpfman's bytecode image format, with the labels io.ebpf.programs and\n" +
			"io.ebpf.maps taken from the object itself, and write it to a registry or an OCI layout.\n" +
			"With several -f PLATFORM=OBJ.o, such as linux/arm64=obj.o, an index is made.",
		Example: "  skep image build -f counter.o registry.example.com/bpf/counter:v1\n  skep image build -f counter.o oci:./counter",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := reg.Client()
			if err != nil {
				return err
			}
			built, err := pack(files, artifact)
			if err != nil {
				return err
			}
			done := display.Working(cmd, "pushing %s", args[0])
			var r image.Resolved
			err = reg.Within(cmd.Context(), "pushing to "+args[0], func(ctx context.Context) (err error) {
				r, err = client.Push(ctx, args[0], built)
				return err
			})
			done()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digestReference(r))
			return err
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "object file, or PLATFORM=FILE")
	cmd.Flags().BoolVar(&artifact, "artifact", false, "make an OCI artifact instead of a bpfman bytecode image")
	_ = cmd.MarkFlagRequired("file")
	reg.Register(cmd)
	return cmd
}

// digestReference is what to sign and to name by digest.
func digestReference(r image.Resolved) string {
	if r.Registry == "" {
		return image.LayoutPrefix + r.Repository + "@" + r.Digest
	}
	return r.Registry + "/" + r.Repository + "@" + r.Digest
}

// pack builds an image of one file, or an index of several.
func pack(files []string, artifact bool) (*image.Built, error) {
	objects, labels := map[string][]byte{}, map[string]map[string]string{}
	for _, f := range files {
		platform, file, ok := strings.Cut(f, "=")
		if !ok {
			platform, file = "", f
		}
		object, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		facts, err := readFacts(file, object)
		if err != nil {
			return nil, err
		}
		if len(facts.Programs) == 0 {
			return nil, fmt.Errorf("pack %s: the object has no programs, so nothing could be run from the image; put functions into sections, such as SEC(\"xdp\")",
				file)
		}
		if _, twice := objects[platform]; twice {
			return nil, fmt.Errorf("pack %s: platform %q has an object already; write -f PLATFORM=FILE for each", file, platform)
		}
		objects[platform], labels[platform] = object, bytecode.Labels(facts)
	}
	if object, single := objects[""]; single && len(objects) == 1 {
		return image.Build(object, image.BuildOptions{Labels: labels[""], Artifact: artifact, Filename: filepath.Base(files[0])})
	}
	return image.BuildIndex(objects, image.BuildOptions{PlatformLabels: labels, Artifact: artifact})
}

// readFacts inspects an object, and knows what people name instead of one.
func readFacts(where string, object []byte) (bytecode.Facts, error) {
	if !bytes.HasPrefix(object, []byte(elf.ELFMAG)) {
		return bytecode.Facts{}, fmt.Errorf("read %s: it is not ELF; compile it first: `%s`", where, bytecode.Compile)
	}
	facts, err := bytecode.Inspect(bytes.NewReader(object), bytecode.Options{})
	if err != nil {
		return facts, fmt.Errorf("read %s: %w", where, err)
	}
	return facts, nil
}

// newImageCopy is push and pull: the same copy, seen from two sides.
func newImageCopy(name, what string) *cobra.Command {
	var reg RegistryFlags
	cmd := &cobra.Command{
		Use:   name + " FROM TO",
		Short: what + ", with its signatures",
		Long:  what + ". FROM and TO are each REGISTRY/REPOSITORY:TAG or oci:DIR[:TAG]. Digests stay, and signatures go along.",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := reg.Client()
			if err != nil {
				return err
			}
			progress := display.Begin(cmd)
			defer progress.Done()
			progress.Step("looking up %s", args[0])
			var to image.Resolved
			err = reg.Within(cmd.Context(), "copying "+args[0], func(ctx context.Context) error {
				from, err := client.Resolve(ctx, args[0])
				if err == nil {
					progress.Step("copying %s to %s", args[0], args[1])
					to, err = client.Copy(ctx, from, args[1])
				}
				return err
			})
			if err != nil {
				return err
			}
			progress.Done()
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digestReference(to))
			return err
		},
	}
	reg.Register(cmd)
	return cmd
}

// inspection is what image inspect -o json prints.
type inspection struct {
	// Digest is the image's, or the file's own where a file was read.
	Digest string `json:"digest"`
	// ObjectDigest is the object's.
	ObjectDigest string              `json:"objectDigest"`
	Labels       map[string]string   `json:"labels,omitempty"`
	Mismatches   []bytecode.Mismatch `json:"mismatches,omitempty"`
	Facts        bytecode.Facts      `json:"facts"`
}

func newImageInspect() *cobra.Command {
	var (
		output string
		reg    RegistryFlags
	)
	cmd := &cobra.Command{
		Use:   "inspect REF|oci:DIR|FILE.o",
		Short: "Show what the bytecode does: programs, helpers, maps, variables, lowest kernel",
		Long: "Show what the bytecode itself says, not what labels claim of it. The lowest kernel is advice:\n" +
			"CO-RE guards and distribution backports lower it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			got, err := inspect(cmd.Context(), &reg, args[0])
			if err != nil {
				return err
			}
			if output == "json" {
				return display.JSON(cmd.OutOrStdout(), got)
			}
			return printInspection(cmd.OutOrStdout(), got)
		},
	}
	display.OutputFlag(cmd, &output, "text", "json")
	reg.Register(cmd)
	return cmd
}

// inspect reads an image, or a file where there is one of that name.
func inspect(ctx context.Context, reg *RegistryFlags, where string) (inspection, error) {
	var got inspection
	object, err := os.ReadFile(where)
	switch {
	case err == nil:
		sum := sha256.Sum256(object)
		got.ObjectDigest = "sha256:" + hex.EncodeToString(sum[:])
		got.Digest = got.ObjectDigest
	case namesFile(where):
		return got, fmt.Errorf("inspect object: %w; an OCI layout is written oci:DIR", err)
	default:
		client, err := reg.Client()
		if err != nil {
			return got, err
		}
		var img *registry.Image
		err = reg.Within(ctx, "reading "+where, func(ctx context.Context) error {
			r, err := client.Resolve(ctx, where)
			if err == nil {
				img, err = client.Pull(ctx, r)
			}
			return err
		})
		if err != nil {
			return got, err
		}
		got.Digest, got.ObjectDigest, got.Labels, object = img.Digest, img.ObjectDigest, img.Labels, img.Object
	}
	if got.Facts, err = readFacts(where, object); err != nil {
		return got, err
	}
	got.Mismatches = bytecode.CompareLabels(got.Labels, got.Facts)
	return got, nil
}

// namesFile tells a file from a reference, where there is none of that name: no
// image's name begins with a dot or a slash, and none that is meant ends in .o.
func namesFile(where string) bool {
	return !strings.HasPrefix(where, image.LayoutPrefix) && (strings.HasSuffix(where, ".o") || strings.HasPrefix(where, "/") || strings.HasPrefix(where, "."))
}

func printInspection(w io.Writer, got inspection) error {
	f := got.Facts
	fmt.Fprintf(w, "Digest      %s\nLicense     %s\nBTF         %t, CO-RE %t\nMap memory  %s with %d CPUs%s\nMin kernel  %s (advice)\n",
		text.Line(got.Digest), text.Line(cmp.Or(f.License, "none")), f.BTF, f.CORE, size(f.MemoryBytes), f.CPUs, text.Line(unbounded(f.Maps)), text.Line(f.MinKernel))
	for _, why := range f.MinKernelReasons {
		fmt.Fprintf(w, "            %s\n", text.Line(why.Kernel+": "+why.Feature+" "+why.Program))
	}
	if err := printPrograms(w, f.Programs); err != nil {
		return err
	}
	if err := printMaps(w, f.Maps); err != nil {
		return err
	}
	if err := printVariables(w, f.Variables); err != nil {
		return err
	}
	for _, m := range got.Mismatches {
		fmt.Fprintln(w, display.Paint(w, display.Red, "label claims otherwise: ")+text.Indented(m.Message))
	}
	return nil
}

func printPrograms(w io.Writer, programs []bytecode.Program) error {
	rows := make([][]string, 0, len(programs))
	for _, p := range programs {
		calls := slices.Concat(p.Helpers, p.Kfuncs)
		called := display.List(calls)
		if display.Terminal(w) {
			called = display.Fit(calls, 44)
		}
		rows = append(rows, []string{p.Name, p.Section, string(p.Subject), strconv.Itoa(p.Instructions), called})
	}
	fmt.Fprintln(w)
	if err := display.Table(w, []string{"PROGRAM", "SECTION", "SUBJECT", "INSNS", "HELPERS AND KFUNCS"}, rows); err != nil {
		return err
	}
	for _, p := range programs {
		if p.ReadsKernelMemory {
			fmt.Fprintf(w, "%s reads kernel memory: %s\n", text.Line(p.Name), text.Line(display.List(p.ReadsKernelMemoryBy)))
		}
		if len(p.ReadsRegistersBy) == 1 {
			fmt.Fprintf(w, "%s reads registers of the task alone in a namespace, by its %s\n", text.Line(p.Name), text.Line(string(p.ReadsRegistersBy[0])))
		}
	}
	return nil
}

func printMaps(w io.Writer, maps []bytecode.Map) error {
	if len(maps) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(maps))
	for _, m := range maps {
		memory := size(m.MemoryBytes)
		if m.UnboundedBy != "" {
			memory = "unbounded"
		}
		rows = append(rows, []string{m.Name, m.Type, sized(m.KeySize, m.KeyType), sized(m.ValueSize, m.ValueType), fmt.Sprint(m.MaxEntries), memory})
	}
	fmt.Fprintln(w)
	return display.Table(w, []string{"MAP", "TYPE", "KEY", "VALUE", "ENTRIES", "MEMORY"}, rows)
}

// unbounded says what memory is not counted: the values of maps that have one for each socket and the like.
func unbounded(maps []bytecode.Map) string {
	var by []string
	for _, m := range maps {
		if m.UnboundedBy != "" {
			by = append(by, m.UnboundedBy)
		}
	}
	if len(by) == 0 {
		return ""
	}
	slices.Sort(by)
	return ", unbounded: further values for each of the node's " + strings.Join(slices.Compact(by), ", ")
}

func printVariables(w io.Writer, variables []bytecode.Variable) error {
	if len(variables) == 0 {
		return nil
	}
	rows := make([][]string, 0, len(variables))
	for _, v := range variables {
		rows = append(rows, []string{v.Name, cmp.Or(v.Type, "?"), v.Section})
	}
	fmt.Fprintln(w)
	return display.Table(w, []string{"VARIABLE", "TYPE", "SECTION"}, rows)
}

// sized is a number of bytes, and the type that they are where the object says it.
func sized(bytes uint32, ctype string) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", bytes, ctype))
}

// size is bytes as people read them.
func size(n uint64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if n < 10*1024 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%d GiB", n)
}
