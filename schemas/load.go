package schemas

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cuelang.org/go/cue/ast"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Options says what to load and within which bounds.
type Options struct {
	// Root is the folder that is the source. Nothing outside of it is read, and
	// positions are relative to it. Required where Stream is nil; see Locate.
	Root string
	// Path is a folder or a file below Root, relative to it; empty means Root
	// itself.
	Path string
	// Stream is a stream of YAML documents to read instead of Root and Path, and no
	// larger than a file may be. Positions in it name the file StreamName.
	Stream io.Reader
	// Package renders the CUE package of that name in the folder Path alone: no other
	// package, no folder below, no YAML and no JSON. "_" is the one without a name; empty
	// means all there is.
	Package string
	// Expressions are CUE expressions in the scope of the package: of the folder or the CUE
	// file at Path only what they give is rendered, as by cue export -e. No folder below is
	// rendered, no YAML and no JSON.
	Expressions []string
	// Tags are key=value pairs for fields with a @tag attribute, or names of
	// boolean tags. A tag that no file has a place for is a problem.
	Tags []string
	// Places has the fields of definitions know where they were written; see Definition.At.
	Places bool
	// Timeout bounds the processor time of the rendering from one death of the
	// renderer to the next; 0 means 20 s, of which the garbage collector takes a part.
	Timeout time.Duration
	// MemoryBytes bounds the renderer's memory; 0 means 512 MiB.
	MemoryBytes int64

	// listTags has the tags told, and nothing rendered; see Tags.
	listTags bool
	// patience bounds how long the same rendering is waited for: a longer wait is no fault of the
	// definitions; 0 means 2 minutes.
	patience time.Duration
}

// StreamName is the file that positions in Options.Stream name.
const StreamName = "stdin"

// complete fills in the defaults and makes Path slashed, clean and relative.
func (o Options) complete() (Options, error) {
	if o.Root == "" && o.Stream == nil {
		return o, fmt.Errorf("load the definitions: no root folder is given")
	}
	o.Path = path.Clean(filepath.ToSlash(o.Path))
	if !filepath.IsLocal(filepath.FromSlash(o.Path)) {
		return o, fmt.Errorf("load the definitions: path %s lies outside of the source", o.Path)
	}
	if !validPackage(o.Package) {
		return o, fmt.Errorf("load the definitions: %q is no name of a CUE package", o.Package)
	}
	if o.selects() && o.Stream != nil {
		return o, fmt.Errorf("load the definitions: a stream has neither packages nor expressions")
	}
	if o.Timeout <= 0 {
		o.Timeout = 20 * time.Second
	}
	if o.patience <= 0 {
		o.patience = 2 * time.Minute
	}
	if o.MemoryBytes <= 0 {
		o.MemoryBytes = 512 << 20
	}
	return o, nil
}

// Locate splits a path a user names into the root and the path of Options: the
// root is the nearest folder above with a folder cue.mod, else the named folder
// itself or the file's own.
func Locate(name string) (root, sub string, err error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", "", fmt.Errorf("locate %s: %w", name, err)
	}
	info, err := os.Stat(abs)
	if err != nil {
		return "", "", fmt.Errorf("locate %s: %w", name, cause(err))
	}
	nearest := abs
	if !info.IsDir() {
		nearest = filepath.Dir(abs)
	}
	root = nearest
	for dir := nearest; ; dir = filepath.Dir(dir) {
		if i, err := os.Stat(filepath.Join(dir, "cue.mod")); err == nil && i.IsDir() {
			root = dir
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	sub, err = filepath.Rel(root, abs)
	if err != nil {
		return "", "", fmt.Errorf("locate %s: %w", name, err)
	}
	return root, filepath.ToSlash(sub), nil
}

// Render renders every definition at o.Path as data, checked against the
// schema. It returns the good ones, sorted by kind, namespace and name, and the
// problems of the others. The error is for what kept it from looking: a path
// that is not there, a source over its bounds, a context that ended.
func Render(ctx context.Context, o Options) ([]Object, []Problem, error) {
	o, t, units, err := o.completeAndRead()
	if err != nil {
		return nil, nil, err
	}
	return renderRead(ctx, t, units, o)
}

// renderRead renders what was read by complete options.
func renderRead(ctx context.Context, t *tree, units []unit, o Options) ([]Object, []Problem, error) {
	out, err := renderAll(ctx, t, units, o)
	if err != nil {
		return nil, nil, err
	}
	good, twins := rejectTwins(out.objects)
	problems := slices.Concat(out.problems, twins)
	for _, tag := range o.Tags {
		if key, _, _ := strings.Cut(tag, "="); !out.usedTags[tag] && !out.usedTags[key] {
			problems = append(problems, Problem{
				Message: fmt.Sprintf("no file has a place for the tag %s", key),
				Fix:     fmt.Sprintf("add @tag(%s) to a field or leave the tag out", key),
			})
		}
	}
	sortProblems(problems)
	return good, problems, nil
}

// completeAndRead returns complete options and what they read.
func (o Options) completeAndRead() (Options, *tree, []unit, error) {
	o, err := o.complete()
	if err != nil {
		return o, nil, nil, err
	}
	t, units, err := o.read()
	return o, t, units, err
}

// read copies the source into memory and lists what there is to render.
func (o Options) read() (*tree, []unit, error) {
	if o.Stream != nil {
		return readStream(o.Stream)
	}
	root, err := os.OpenRoot(o.Root)
	if err != nil {
		return nil, nil, fmt.Errorf("open the source: %w", cause(err))
	}
	defer root.Close()
	t, units, err := readTree(root, o.Path)
	if err != nil || !o.selects() {
		return t, units, err
	}
	units, err = o.selected(units)
	t.problems = slices.DeleteFunc(t.problems, func(p Problem) bool { return path.Dir(p.Source.File) != t.sub || isData(p.Source.File) })
	return t, units, err
}

// validPackage reports whether a name is one of a CUE package, or empty.
func validPackage(name string) bool {
	return name == "" || name == "_" || ast.IsValidIdent(name) && !strings.HasPrefix(name, "_") && !strings.HasPrefix(name, "#")
}

// selects reports whether one package, or expressions, are rendered instead of all there is.
func (o Options) selects() bool { return o.Package != "" || len(o.Expressions) > 0 }

// selected is the one unit that a package or expressions are of.
func (o Options) selected(units []unit) ([]unit, error) {
	for _, u := range units {
		switch {
		case u.Path != o.Path:
		case u.Kind == cuePackage, u.Kind == cueFile && o.Package == "":
			return []unit{u}, nil
		case u.Kind == cueFile:
			return nil, fmt.Errorf("load the definitions at %s: package %s is looked for in a folder: name the folder, or leave the package out", o.Path, o.Package)
		}
	}
	return nil, fmt.Errorf("load the definitions at %s: there is no CUE for a package or an expression to be of: name the folder of the package", o.Path)
}

// Load reads every definition at o.Path. One bad definition hides no good one:
// it becomes a problem. Two definitions of one identity are both rejected. The
// error is as for Render.
func Load(ctx context.Context, o Options) (Definitions, error) {
	o, t, units, err := o.completeAndRead()
	if err != nil {
		return Definitions{}, err
	}
	return loadRead(ctx, t, units, o)
}

// loadRead loads what was read by complete options.
func loadRead(ctx context.Context, t *tree, units []unit, o Options) (Definitions, error) {
	objects, problems, err := renderRead(ctx, t, units, o)
	if err != nil {
		return Definitions{}, err
	}
	d := Decode(objects)
	d.Problems = append(d.Problems, problems...)
	sortProblems(d.Problems)
	d.hide(t)
	return d, nil
}

// Decode gives what Render returned the types of the API. What does not fit them is a
// problem.
func Decode(objects []Object) Definitions {
	d := Definitions{Sources: map[v1alpha1.Identity]Position{}}
	for _, obj := range objects {
		if err := d.add(obj); err != nil {
			d.Problems = append(d.Problems, Problem{
				Source: obj.Source, Definition: &obj.Identity, Path: obj.Path,
				Message: err.Error(), Fix: "give the field the type that the API has",
			})
			continue
		}
		d.Sources[obj.Identity] = obj.Source
	}
	sortProblems(d.Problems)
	return d
}

// add decodes an object into its type, without what only an API server writes. A BpfApplication
// or BpfPolicy that names no namespace gets "default", as kubectl has it.
func (d *Definitions) add(obj Object) error {
	switch obj.Identity.Kind {
	case v1alpha1.KindBpfApplication:
		a, err := decode[v1alpha1.BpfApplication](obj)
		if err != nil {
			return err
		}
		a.ObjectMeta, a.Status = ofAuthor(a.ObjectMeta, obj.Identity), v1alpha1.BpfApplicationStatus{}
		d.Applications = append(d.Applications, Definition{a, obj.Source, obj.unit, obj.Places})
	case v1alpha1.KindClusterBpfApplication:
		a, err := decode[v1alpha1.ClusterBpfApplication](obj)
		if err != nil {
			return err
		}
		a.ObjectMeta, a.Status = ofAuthor(a.ObjectMeta, obj.Identity), v1alpha1.BpfApplicationStatus{}
		d.Applications = append(d.Applications, Definition{a, obj.Source, obj.unit, obj.Places})
	case v1alpha1.KindBpfPolicy:
		p, err := decode[v1alpha1.BpfPolicy](obj)
		if err != nil {
			return err
		}
		p.ObjectMeta, p.Status = ofAuthor(p.ObjectMeta, obj.Identity), v1alpha1.BpfPolicyStatus{}
		d.Policies = append(d.Policies, *p)
	case v1alpha1.KindClusterBpfPolicy:
		p, err := decode[v1alpha1.ClusterBpfPolicy](obj)
		if err != nil {
			return err
		}
		p.ObjectMeta, p.Status = ofAuthor(p.ObjectMeta, obj.Identity), v1alpha1.BpfPolicyStatus{}
		d.ClusterPolicies = append(d.ClusterPolicies, *p)
	case v1alpha1.KindBpfSigner:
		s, err := decode[v1alpha1.BpfSigner](obj)
		if err != nil {
			return err
		}
		s.ObjectMeta, s.Status = ofAuthor(s.ObjectMeta, obj.Identity), v1alpha1.BpfSignerStatus{}
		d.Signers = append(d.Signers, *s)
	case v1alpha1.KindCueArtifact, v1alpha1.KindBpfImage, v1alpha1.KindBpfIntent, v1alpha1.KindBpfNode:
		d.Unjudged = append(d.Unjudged, unjudgedProblem(obj))
	default:
		return fmt.Errorf("kind %s is not known", obj.Identity.Kind)
	}
	return nil
}

// ofAuthor is the metadata that an author writes. The namespace is that of the identity: a
// cluster-wide kind has none, whatever it says.
func ofAuthor(m metav1.ObjectMeta, id v1alpha1.Identity) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: id.Name, Namespace: id.Namespace, Labels: m.Labels, Annotations: m.Annotations}
}

// maxAnnotations is how many bytes the annotations of an object have, as an API server bounds them.
const maxAnnotations = 256 << 10

// decode reads an object strictly: a field the type lacks is an error.
func decode[T any](obj Object) (*T, error) {
	var v T
	dec := json.NewDecoder(bytes.NewReader(obj.JSON))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("decode %s %s: %w", obj.Identity.Kind, obj.Identity, err)
	}
	if o, ok := any(&v).(metav1.Object); ok {
		size := 0
		for key, value := range o.GetAnnotations() {
			size += len(key) + len(value)
		}
		if size > maxAnnotations {
			return nil, fmt.Errorf("the annotations have %d bytes, and an API server takes %d: shorten them", size, maxAnnotations)
		}
	}
	return &v, nil
}
