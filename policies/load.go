package policies

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Bounds on a folder of policies.
const (
	maxFileBytes = 1 << 20
	maxFiles     = 1000
)

// testSuffix ends the names of files with Rego tests.
const testSuffix = "_test.rego"

// Load reads a folder and the folders in it. Each .rego file is one
// cluster-wide policy, named after the file; those that end in _test.rego are
// its tests and are left out. Each .yaml or .yml file holds objects of the kinds
// ClusterBpfPolicy and BpfPolicy and no others. Other files are not looked at,
// nor are those whose names begin with a dot. All errors of the folder are
// joined. replaces names the built-in policies that each .rego file replaces: an
// object says so itself.
func Load(fsys fs.FS, replaces ...v1alpha1.BuiltinPolicy) ([]Policy, error) {
	files, err := LoadFiles(fsys, replaces...)
	var loaded []Policy
	errs := []error{err}
	for _, f := range files {
		loaded, errs = append(loaded, f.Policies...), append(errs, f.Err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return loaded, nil
}

// File is what a file of a folder holds.
type File struct {
	// Path is its path in the folder; of a folder that cannot be read, the folder's.
	Path string
	// Policies are those that can be read, and Err is why others cannot.
	Policies []Policy
	Err      error
}

// LoadFiles is Load by file, in the order of their names. An error is one of the folder as
// a whole.
func LoadFiles(fsys fs.FS, replaces ...v1alpha1.BuiltinPolicy) ([]File, error) {
	var files []File
	err := eachFile(fsys, func(file string, body []byte, err error) {
		f := File{Path: file, Err: err}
		switch ext := path.Ext(file); {
		case err != nil:
		case ext != ".rego":
			f.Policies, f.Err = objects(file, body)
		case !strings.HasSuffix(file, testSuffix):
			p := regoPolicy(file, body)
			p.Replaces = replaces
			f.Policies = []Policy{p}
		}
		files = append(files, f)
	})
	return files, err
}

// eachFile calls read with every file that Load looks at, in the order of their
// names, and with what cannot be read and why.
func eachFile(fsys fs.FS, read func(file string, body []byte, err error)) error {
	files := 0
	return fs.WalkDir(fsys, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && file == ".":
			return fmt.Errorf("read policies: %w", err)
		case err != nil:
			read(file, nil, fmt.Errorf("read policies: %w", err))
			return nil
		case file != "." && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() || !policyFile(file):
			return nil
		}
		if files++; files > maxFiles {
			return fmt.Errorf("read policies: more than %d files", maxFiles)
		}
		body, err := readFile(fsys, file)
		read(file, body, err)
		return nil
	})
}

// policyFile reports whether Load looks at a file of that name.
func policyFile(file string) bool {
	ext := path.Ext(file)
	return ext == ".rego" || ext == ".yaml" || ext == ".yml"
}

// readFile reads a file of at most maxFileBytes.
func readFile(fsys fs.FS, file string) ([]byte, error) {
	f, err := fsys.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read policies: %s: %w", file, err)
	}
	if len(body) > maxFileBytes {
		return nil, fmt.Errorf("read policies: %s: more than %d bytes", file, maxFileBytes)
	}
	return body, nil
}

// regoPolicy is a cluster-wide policy of the file's name.
func regoPolicy(file string, body []byte) Policy {
	return Policy{
		Name: strings.TrimSuffix(path.Base(file), ".rego"),
		File: file,
		Spec: v1alpha1.BpfPolicySpec{Rego: string(body)},
	}
}

// objects reads the documents of a YAML file.
func objects(file string, body []byte) ([]Policy, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, fmt.Errorf("read policies: %s: the file is empty: write the policy again, or remove the file", file)
	}
	var list []Policy
	var errs []error
	reader := kyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(body)))
	for n := 1; ; n++ {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return list, errors.Join(errs...)
		}
		if err != nil {
			return list, errors.Join(append(errs, fmt.Errorf("read policies: %s: document %d: %w", file, n, err))...)
		}
		p, found, err := object(document)
		if err != nil {
			errs = append(errs, fmt.Errorf("read policies: %s: document %d: %w", file, n, err))
		} else if found {
			p.File = file + ": spec.rego"
			list = append(list, p)
		}
	}
}

// object reads one document; found is false for one that holds nothing.
func object(document []byte) (p Policy, found bool, err error) {
	var kind *metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return Policy{}, false, err
	}
	if kind == nil {
		return Policy{}, false, nil
	}
	if kind.APIVersion != v1alpha1.APIVersion {
		return Policy{}, false, fmt.Errorf("apiVersion is %q; a policy's is %s", kind.APIVersion, v1alpha1.APIVersion)
	}
	switch kind.Kind {
	case v1alpha1.KindClusterBpfPolicy:
		var o v1alpha1.ClusterBpfPolicy
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			return Policy{}, false, err
		}
		if o.Namespace != "" {
			return Policy{}, false, fmt.Errorf("metadata.namespace: a %s has none; write a %s for one namespace", kind.Kind, v1alpha1.KindBpfPolicy)
		}
		return Policy{Name: o.Name, Spec: o.Spec.BpfPolicySpec, Replaces: o.Spec.Replaces}, true, nil
	case v1alpha1.KindBpfPolicy:
		var o v1alpha1.BpfPolicy
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			return Policy{}, false, err
		}
		if o.Namespace == "" {
			return Policy{}, false, fmt.Errorf("metadata.namespace: a %s needs one; write a %s for the whole cluster", kind.Kind, v1alpha1.KindClusterBpfPolicy)
		}
		return Policy{Name: o.Name, Namespace: o.Namespace, Spec: o.Spec}, true, nil
	}
	return Policy{}, false, fmt.Errorf("kind is %q; a folder of policies holds %s and %s", kind.Kind, v1alpha1.KindClusterBpfPolicy, v1alpha1.KindBpfPolicy)
}
