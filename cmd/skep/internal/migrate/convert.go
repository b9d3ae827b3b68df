// Package migrate has the command that converts bpfman's objects. It finds them, in files or in
// a cluster, and prints; what they become is decided by package convert.
package migrate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/image/transport"
	"github.com/skep-dev/skep/text"
)

// The bounds of the inputs of one run.
const (
	// maxFiles bounds the files, with those of folders.
	maxFiles = 1000
	// maxBytes bounds the inputs together.
	maxBytes = 64 << 20
)

// stdinPath is the path that names standard input.
const stdinPath = "-"

// source is one input, and where it is from.
type source struct {
	name string
	data []byte
	// file is that it is a file, named by who runs the command, or in a folder of theirs.
	file bool
}

// command is one run of skep convert.
type command struct {
	fromCluster, readImages bool
	kube                    kubeconfig.Flags
	registries              images.RegistryFlags
	// allowed are the registries that manifests may name.
	allowed       []string
	imagesTimeout time.Duration
}

// New returns skep convert.
func New() *cobra.Command {
	var (
		c      = command{imagesTimeout: imagesTimeout}
		output string
	)
	cmd := &cobra.Command{
		Use:   "convert [PATH...]",
		Short: "Convert bpfman's objects to Skep's",
		Long: "Print what bpfman's manifests of any generation come to as Skep's kinds. PATH is a file or a folder, or - for\n" +
			"standard input. Whatever has no equal becomes a comment at its place, with the reason; one that begins with\n" +
			"TODO asks for a decision. Nothing is written to a cluster.\n\n" +
			"Exit code 0: all is converted; 1: a TODO is left; 2: an input could not be read.",
		Example: "  skep convert bpfman/ > skep.yaml\n" +
			"  kubectl get clusterbpfapplications.bpfman.io -o yaml | skep convert -\n" +
			"  skep convert --from-cluster --read-images > skep.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if c.fromCluster {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.MinimumNArgs(1)(cmd, args)
		},
		RunE: c.run,
	}
	cmd.Flags().BoolVar(&c.fromCluster, "from-cluster", false, "read the objects of a cluster, and no PATH")
	cmd.Flags().BoolVar(&c.readImages, "read-images", false, "read each image for the types of its variables, so that globalData becomes values")
	display.OutputFlag(cmd, &output, "yaml")
	c.kube.Register(cmd)
	cmd.Flags().Lookup("namespace").Usage = "namespace to read with --from-cluster (default all)"
	c.registries.RegisterInsecure(cmd)
	cmd.Flags().StringSliceVar(&c.allowed, "allowed-registry", []string{transport.AnyPublic},
		"registry that --read-images may ask: host[:port][/prefix], *.example.com, or * "+
			"for every one at a public address; one that is listed by name may be at any address")
	return cmd
}

// run converts every input. One that cannot be read hides no other.
func (c *command) run(cmd *cobra.Command, args []string) error {
	options, stop, err := c.options(cmd.Context())
	if err != nil {
		return err
	}
	defer stop()
	inputs := files(cmd.InOrStdin(), args)
	if c.fromCluster {
		objects, err := c.cluster(cmd)
		if err != nil {
			return err
		}
		inputs = each(objects)
	}
	var s summary
	var failed []error
	progress := display.Begin(cmd)
	defer progress.Done()
	for in, err := range inputs {
		if err != nil {
			failed = append(failed, err)
			continue
		}
		options.Layouts = in.file
		progress.Step("converting %s", in.name)
		r, err := convert.Convert(cmd.Context(), in.data, options)
		if err != nil {
			failed = append(failed, fmt.Errorf("convert %s: %w", in.name, err))
		}
		if err := cmd.Context().Err(); err != nil {
			return fmt.Errorf("convert %s: %w", in.name, err)
		}
		progress.Done()
		if err := s.print(cmd, in.name, r); err != nil {
			return err
		}
	}
	s.end(cmd.ErrOrStderr())
	switch {
	case len(failed) > 0:
		return errors.Join(failed...)
	case s.documents+s.left == 0:
		return errors.New("convert: no object was found; name manifests of bpfman.io, bpfd.dev or bpfd.io")
	case s.todos > 0:
		return exit.ErrDenied
	}
	return nil
}

// summary counts what was printed.
type summary struct{ documents, left, notes, todos int }

// print writes the documents to stdout, and all there is to say of them to stderr.
func (s *summary) print(cmd *cobra.Command, name string, r convert.Result) error {
	for _, d := range r.Documents {
		s.documents++
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", d.YAML); err != nil {
			return err
		}
		s.report(cmd.ErrOrStderr(), name, d.Notes)
	}
	s.left += len(r.Left)
	s.report(cmd.ErrOrStderr(), name, r.Left)
	return nil
}

func (s *summary) report(w io.Writer, name string, notes []convert.Note) {
	for _, n := range notes {
		mark := "note"
		if n.Todo {
			mark = "TODO"
			s.todos++
		} else {
			s.notes++
		}
		fmt.Fprintf(w, "%s:%d: %s %s: %s\n", text.Line(name), n.Line, mark, n.Path, n.Text)
	}
}

func (s *summary) end(w io.Writer) {
	fmt.Fprintf(w, "applications: %d; objects left out: %d; notes: %d; TODO: %d\n", s.documents, s.left, s.notes, s.todos)
}

// each has the objects of a cluster converted one by one.
func each(all []source) iter.Seq2[source, error] {
	return func(yield func(source, error) bool) {
		for _, one := range all {
			if !yield(one, nil) {
				return
			}
		}
	}
}

// files reads files, folders and standard input, each when it is asked for. What is over the bounds
// of them all ends it with an error.
func files(stdin io.Reader, paths []string) iter.Seq2[source, error] {
	return func(yield func(source, error) bool) {
		left := total{objects: maxFiles, bytes: maxBytes}
		for one, err := range named(stdin, paths) {
			if err == nil {
				err = left.take(len(one.data))
			}
			if !yield(one, err) || errors.Is(err, errTotal) {
				return
			}
		}
	}
}

// named reads what paths name.
func named(stdin io.Reader, paths []string) iter.Seq2[source, error] {
	return func(yield func(source, error) bool) {
		for _, path := range paths {
			if !yieldPath(stdin, path, yield) {
				return
			}
		}
	}
}

// yieldPath yields what one path names, and reports whether more is asked for.
func yieldPath(stdin io.Reader, path string, yield func(source, error) bool) bool {
	if path == stdinPath {
		data, err := bounded(stdin)
		if err != nil {
			err = fmt.Errorf("read standard input: %w", err)
		}
		return yield(source{name: "stdin", data: data}, err)
	}
	all, err := filesOf(path)
	if err != nil {
		return yield(source{}, err)
	}
	for _, file := range all {
		data, err := readFile(file)
		if err != nil {
			err = fmt.Errorf("read manifests: %w", err)
		}
		if !yield(source{name: file, data: data, file: true}, err) {
			return false
		}
	}
	return true
}

// errTotal is that the inputs of one run are over a bound together.
var errTotal = errors.New("convert them in parts")

// total is what the inputs of one run may still come to.
type total struct{ objects, bytes int }

// take takes one input of a size, or says that it is over.
func (t *total) take(size int) error {
	t.objects--
	t.bytes -= size
	if t.objects < 0 || t.bytes < 0 {
		return fmt.Errorf("the inputs are more than may be converted at once, which is %d MiB of %d files or %d objects of a cluster; %w",
			maxBytes>>20, maxFiles, convert.MaxObjects, errTotal)
	}
	return nil
}

// filesOf lists the manifests of a path: itself, or the YAML and JSON files of a folder and below.
func filesOf(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(file))) {
			return err
		}
		if files = append(files, file); len(files) > maxFiles {
			return fmt.Errorf("%s has more than %d manifests; convert it in parts", path, maxFiles)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return files, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return bounded(f)
}

// bounded reads one byte more than may be converted, which is then denied.
func bounded(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, convert.MaxBytes+1)) }
