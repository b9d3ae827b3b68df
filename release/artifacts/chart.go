package artifacts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/release/build"
)

// The media types of a chart (https://helm.sh/docs/topics/registries/).
const (
	chartConfigType  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContentType types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// The files of a chart that have a meaning of their own.
const (
	chartFile   = "Chart.yaml"
	valuesFile  = "values.yaml"
	schemaFile  = "values.schema.json"
	ignoredFile = ".helmignore"
)

// metadata is Chart.yaml, with the fields in Helm's order: as JSON it is the config of the
// artifact, and Helm writes it so.
type metadata struct {
	Name        string            `json:"name,omitempty"`
	Home        string            `json:"home,omitempty"`
	Sources     []string          `json:"sources,omitempty"`
	Version     string            `json:"version,omitempty"`
	Description string            `json:"description,omitempty"`
	Keywords    []string          `json:"keywords,omitempty"`
	APIVersion  string            `json:"apiVersion,omitempty"`
	AppVersion  string            `json:"appVersion,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	KubeVersion string            `json:"kubeVersion,omitempty"`
	Type        string            `json:"type,omitempty"`
}

// Chart makes the chart as helm package and helm push make it: oci://…/charts/skep, of the
// release's version without the v. Its appVersion has the v, since images are tagged so. The images become defaults of
// its values, whose comments stay.
func Chart(o Options) (Artifact, error) {
	a, err := chartOf(o)
	if err != nil {
		return Artifact{}, fmt.Errorf("make chart: %w", err)
	}
	return a, nil
}

func chartOf(o Options) (Artifact, error) {
	if err := build.CheckVersion(o.Version); err != nil {
		return Artifact{}, err
	}
	files, err := chartFiles(o.Files)
	if err != nil {
		return Artifact{}, err
	}
	var about metadata
	if err := yaml.UnmarshalStrict(files[chartFile], &about); err != nil {
		return Artifact{}, fmt.Errorf("read %s: %w", chartFile, err)
	}
	about.Version = strings.TrimPrefix(o.Version, "v")
	about.AppVersion = o.Version
	if files[chartFile], err = yaml.Marshal(about); err != nil {
		return Artifact{}, err
	}
	if len(o.Images) > 0 {
		if files[valuesFile], err = withImages(files[valuesFile], o.Images); err != nil {
			return Artifact{}, fmt.Errorf("fill images into %s: %w", valuesFile, err)
		}
	}
	_, packed, err := image.Archive(inChartOrder(about.Name, files), o.Created.UTC())
	if err != nil {
		return Artifact{}, err
	}
	config, err := json.Marshal(about)
	if err != nil {
		return Artifact{}, err
	}
	made, err := assemble(blob{mediaType: chartConfigType, data: config}, blob{mediaType: chartContentType, data: packed}, about.annotations(o.Created))
	return Artifact{Repository: "charts/" + about.Name, Tag: about.Version, Image: made}, err
}

// annotations are those that helm push writes.
func (m metadata) annotations(created time.Time) map[string]string {
	all := map[string]string{annotationDescription: m.Description, annotationURL: m.Home}
	if len(m.Sources) > 0 {
		all[image.AnnotationSource] = m.Sources[0]
	}
	if !created.IsZero() {
		all[image.AnnotationCreated] = created.UTC().Format(time.RFC3339)
	}
	maps.Copy(all, m.Annotations)
	all[annotationTitle], all[annotationVersion] = m.Name, m.Version
	maps.DeleteFunc(all, func(_, value string) bool { return strings.TrimSpace(value) == "" })
	return all
}

// chartFiles reads a chart's files by path, but for those that .helmignore names.
func chartFiles(from fs.FS) (map[string][]byte, error) {
	ignored, err := fs.ReadFile(from, ignoredFile)
	if err != nil {
		return nil, err
	}
	patterns, err := ignoredNames(string(ignored))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	err = fs.WalkDir(from, ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, path.Base(file)); return ok }) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entry.IsDir() {
			return nil
		}
		files[file], err = fs.ReadFile(from, file)
		return err
	})
	return files, err
}

// ignoredNames are the patterns of .helmignore, which all are of a file's or folder's own name: what
// else Helm has there, such as paths, would be read as something else here.
func ignoredNames(content string) ([]string, error) {
	var patterns []string
	for line := range strings.Lines(content) {
		switch line = strings.TrimSpace(line); {
		case line == "", strings.HasPrefix(line, "#"):
		case strings.ContainsAny(line, "/! "):
			return nil, fmt.Errorf("read %s: %q is more than the pattern of a name: write one, such as *.swp", ignoredFile, line)
		default:
			patterns = append(patterns, line)
		}
	}
	return patterns, nil
}

// inChartOrder is the order in which Helm packs a chart's files, below the chart's name.
func inChartOrder(chart string, files map[string][]byte) []image.File {
	rank := func(p string) int {
		if i := slices.Index([]string{chartFile, valuesFile, schemaFile}, p); i >= 0 {
			return i - 4
		}
		if strings.HasPrefix(p, "templates/") {
			return -1
		}
		return 0
	}
	paths := slices.SortedFunc(maps.Keys(files), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	var all []image.File
	for _, p := range paths {
		all = append(all, image.File{Name: chart + "/" + p, Content: files[p]})
	}
	return all
}
