// Command images makes the container images of skep-controller, skep-agent (with skep-mounter) and skep for one
// architecture, for a cluster to try out what is in the folder.
//
// It writes below dist, or pushes. The chart says what the images are called; package build
// says what is in them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/release/build"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// run builds the binaries of the module in the current folder and makes the
// images of them.
func run(out io.Writer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	push := flags.String("push", "", "registry and folder to push to, such as registry.example.com/team")
	dist := flags.String("dist", "dist", "folder for what is made")
	arch := flags.String("arch", runtime.GOARCH, "architecture of the nodes, as Go calls it")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if err := os.MkdirAll(*dist, 0o750); err != nil {
		return err
	}
	binaries, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(binaries)
	if err := build.Binaries(ctx, build.Link{To: binaries, Arch: *arch}); err != nil {
		return err
	}
	made, err := imagesOf(binaries, *arch)
	if err != nil {
		return err
	}
	values := filepath.Join(*dist, "images.yaml")
	if *push != "" {
		return pushed(ctx, out, made, *push, values)
	}
	return packed(out, made, filepath.Join(*dist, "images.tar"), values)
}

// made is an image with the component it is of.
type made struct {
	build.Component
	v1.Image
}

// imagesOf makes the images of the binaries in a folder, which are of an
// architecture.
func imagesOf(binaries, arch string) ([]made, error) {
	authorities, err := build.MachineAuthorities()
	if err != nil {
		return nil, err
	}
	var all []made
	for _, c := range build.Components() {
		image, err := build.Image(c, build.Content{Binaries: binaries, Arch: arch, Authorities: authorities})
		if err != nil {
			return nil, err
		}
		all = append(all, made{c, image})
	}
	return all, nil
}

// packed writes the images to one file, by the names that the chart gives them,
// and values by which the chart uses them.
func packed(out io.Writer, all []made, to, values string) error {
	chart, err := readChart()
	if err != nil {
		return err
	}
	named := map[name.Reference]v1.Image{}
	var names []string
	for _, m := range ofChart(all) {
		ref, err := chart.tag(m.Component, "")
		if err != nil {
			return err
		}
		named[ref] = m.Image
		names = append(names, ref.String())
	}
	if err := tarball.MultiRefWriteToFile(to, named); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err := write(values, all, nil); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s holds\n  %s\n\nTake it to your nodes, as by kind load image-archive or ctr --namespace k8s.io images import, "+
		"and install:\n  %s\n",
		to, strings.Join(names, "\n  "), install(values))
	return err
}

// pushed pushes the images and writes values by which the chart uses them.
func pushed(ctx context.Context, out io.Writer, all []made, folder, values string) error {
	chart, err := readChart()
	if err != nil {
		return err
	}
	named := map[string]any{}
	for _, m := range all {
		ref, err := chart.tag(m.Component, folder)
		if err != nil {
			return err
		}
		if err := remote.Write(ref, m.Image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", ref, err)
		}
		digest, err := m.Digest()
		if err != nil {
			return err
		}
		if m.Value != "" {
			named[m.Value] = map[string]any{"repository": ref.Repository.String(), "digest": digest.String()}
		}
		if _, err := fmt.Fprintf(out, "%s@%s\n", ref.Repository, digest); err != nil {
			return err
		}
	}
	if err := write(values, all, named); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nInstall them:\n  %s\n", install(values))
	return err
}

// write writes values for the chart: what images are called, where that is not
// what the chart calls them, and which nodes can run them.
func write(values string, all []made, named map[string]any) error {
	content := map[string]map[string]any{}
	for _, m := range ofChart(all) {
		config, err := m.ConfigFile()
		if err != nil {
			return err
		}
		content[m.Value] = map[string]any{"nodeSelector": map[string]string{"kubernetes.io/arch": config.Architecture}}
		if image, ok := named[m.Value]; ok {
			content[m.Value]["image"] = image
		}
	}
	body, err := yaml.Marshal(content)
	if err != nil {
		return err
	}
	return os.WriteFile(values, body, 0o600)
}

// install is the command that comes next.
func install(values string) string {
	return "helm install skep charts/skep --namespace skep-system --create-namespace --values " + values + " --wait"
}

// chart is what the chart says of images.
type chart struct {
	version string
	values  map[string]any
}

// readChart reads the chart of the module in the current folder.
func readChart() (chart, error) {
	var (
		c     chart
		about struct {
			AppVersion string `json:"appVersion"`
		}
	)
	for name, into := range map[string]any{"Chart.yaml": &about, "values.yaml": &c.values} {
		body, err := os.ReadFile(filepath.Join("charts", "skep", name))
		if err == nil {
			err = yaml.Unmarshal(body, into)
		}
		if err != nil {
			return chart{}, fmt.Errorf("read the chart: %w", err)
		}
	}
	c.version = about.AppVersion
	return c, nil
}

// ofChart are the images that the chart names.
func ofChart(all []made) []made {
	return slices.DeleteFunc(slices.Clone(all), func(m made) bool { return m.Value == "" })
}

// tag is what the image of a component is called in the chart's version, below another folder
// where one is given.
func (c chart) tag(of build.Component, folder string) (name.Tag, error) {
	repository := of.Repository
	if of.Value != "" {
		var err error
		if repository, _, err = unstructured.NestedString(c.values, of.Value, "image", "repository"); err != nil {
			return name.Tag{}, err
		}
	}
	if folder != "" {
		repository = strings.TrimSuffix(folder, "/") + "/" + path.Base(repository)
	}
	return name.NewTag(repository + ":" + c.version)
}
