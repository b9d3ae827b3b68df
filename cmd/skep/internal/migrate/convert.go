// Package migrate has the command that converts bpfman's objects. It finds them, in files or in
// a cluster, and prints; what they become is decided by package convert.
package migrate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/cmd/skep/internal/kubeconfig"
	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/text"
)

// maxFiles bounds the files of one folder, with those below it.
const maxFiles = 1000

// imageTimeout bounds what is asked of registries for one application.
const imageTimeout = images.Timeout

// stdinPath is the path that names standard input.
const stdinPath = "-"

// source is one input, and where it is from.
type source struct {
	name string
	data []byte
}

// command is one run of skep convert.
type command struct {
	fromCluster, readImages bool
	kube                    kubeconfig.Flags
	registries              images.RegistryFlags
}

// New returns skep convert.
func New() *cobra.Command {
	var (
		c      command
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
	c.registries.Register(cmd)
	return cmd
}

// run converts every input. One that cannot be read hides no other.
func (c *command) run(cmd *cobra.Command, args []string) error {
	options, err := c.options(cmd.Context())
	if err != nil {
		return err
	}
	var inputs []source
	if c.fromCluster {
		inputs, err = c.cluster(cmd)
	} else {
		inputs, err = read(cmd.InOrStdin(), args)
	}
	if err != nil {
		return err
	}
	var s summary
	var failed []error
	for _, in := range inputs {
		r, err := convert.Convert(cmd.Context(), in.data, options)
		if err != nil {
			failed = append(failed, fmt.Errorf("convert %s: %w", in.name, err))
		}
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

// read reads files, folders and standard input.
func read(stdin io.Reader, paths []string) ([]source, error) {
	var all []source
	for _, path := range paths {
		if path == stdinPath {
			data, err := bounded(stdin)
			if err != nil {
				return nil, fmt.Errorf("read standard input: %w", err)
			}
			all = append(all, source{"stdin", data})
			continue
		}
		files, err := filesOf(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := readFile(file)
			if err != nil {
				return nil, fmt.Errorf("read manifests: %w", err)
			}
			all = append(all, source{file, data})
		}
	}
	return all, nil
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
