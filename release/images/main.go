// Command images makes the container images of skep-controller, skep-agent and skep
// without Docker, and without a base image: a static binary is all there is in
// one, beside the certificate authorities of the machine that makes it.
//
// It owns what is in the images and writes below dist. The chart says what they
// are called; nothing of the product imports it. ko would do the same out of a
// base image from the network.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// authorities is where Go looks for certificate authorities first on Linux.
const authorities = "etc/ssl/certs/ca-certificates.crt"

// component is one of the images.
type component struct {
	// value is what the chart's values call it; empty of what no node of a cluster runs.
	value string
	// repository is where it is pulled from, where the chart does not say so.
	repository string
	// command is the folder below cmd, and the binary's name.
	command string
	// user runs it unless the Pod says otherwise.
	user string
	// authorities has it know who may sign a registry's certificate.
	authorities bool
}

// components are the images that the chart names, and that of the command line.
func components() []component {
	return []component{
		{value: "controller", command: "skep-controller", user: "65532:65532", authorities: true},
		// What the agent is to talk to, it is told the authorities of.
		{value: "agent", command: "skep-agent", user: "0:0"},
		// The user is the one that plugins of Argo CD have to run as.
		{repository: "ghcr.io/skep-dev/skep", command: "skep", user: "999:999", authorities: true},
	}
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// noTrace is the tag by which google.golang.org/grpc leaves out golang.org/x/net/trace and its
// pages of html/template. With these, the linker keeps every method of every type: 4 MB more
// of the agent.
const noTrace = "grpcnotrace"

// run builds the binaries of the module in the current folder and makes the
// images of them.
func run(out io.Writer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	push := flags.String("push", "", "registry and folder to push to, such as registry.example.com/team")
	dist := flags.String("dist", "dist", "folder for what is made")
	arch := flags.String("arch", runtime.GOARCH, "architecture of the nodes, as Go calls it")
	if err := flags.Parse(args); err != nil {
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
	build := exec.CommandContext(ctx, "go", "build", "-tags", noTrace, "-ldflags", "-s -w")
	build.Args = append(build.Args, "-o", binaries)
	for _, c := range components() {
		build.Args = append(build.Args, "./cmd/"+c.command)
	}
	// Static and for Linux, whatever the caller's flags and machine are.
	build.Env, build.Stderr = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS=linux", "GOARCH="+*arch), os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build binaries: %w", err)
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
	component
	v1.Image
}

// imagesOf makes the images of the binaries in a folder, which are of an
// architecture.
func imagesOf(binaries, arch string) ([]made, error) {
	var all []made
	for _, c := range components() {
		binary, err := os.ReadFile(filepath.Join(binaries, c.command))
		if err != nil {
			return nil, err
		}
		files := []file{{c.command, binary, 0o755}}
		if c.authorities {
			bundle, err := os.ReadFile("/" + authorities)
			if err != nil {
				return nil, fmt.Errorf("find certificate authorities for the image (Debian: apt-get install ca-certificates): %w", err)
			}
			files = append(files, file{authorities, bundle, 0o644})
		}
		image, err := imageOf(c, arch, files)
		if err != nil {
			return nil, fmt.Errorf("make image of %s: %w", c.command, err)
		}
		all = append(all, made{c, image})
	}
	return all, nil
}

// imageOf makes an image that depends on nothing but what is given.
func imageOf(c component, arch string, files []file) (v1.Image, error) {
	content, err := archive(files)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Config = v1.Config{
		User: c.user, Entrypoint: []string{"/" + c.command},
		Labels: map[string]string{
			"org.opencontainers.image.source":   "https://github.com/skep-dev/skep",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// file is one of an image's.
type file struct {
	path    string
	content []byte
	mode    int64
}

// archive is the files as a layer, each behind the folders it lies in; it has no
// times.
func archive(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		for i, r := range f.path {
			if r != '/' {
				continue
			}
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: f.path[:i+1], Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.path, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
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
		ref, err := chart.tag(m.component, "")
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
	_, err = fmt.Fprintf(out, "%s holds\n  %s\n\nTake it to your nodes, as by kind load image-archive or ctr --namespace k8s.io images import, and install:\n  %s\n",
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
		ref, err := chart.tag(m.component, folder)
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
		if m.value != "" {
			named[m.value] = map[string]any{"repository": ref.Repository.String(), "digest": digest.String()}
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
		content[m.value] = map[string]any{"nodeSelector": map[string]string{"kubernetes.io/arch": config.Architecture}}
		if image, ok := named[m.value]; ok {
			content[m.value]["image"] = image
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
	return slices.DeleteFunc(slices.Clone(all), func(m made) bool { return m.value == "" })
}

// tag is what the image of a component is called in the chart's version, below another folder
// where one is given.
func (c chart) tag(of component, folder string) (name.Tag, error) {
	repository := of.repository
	if of.value != "" {
		var err error
		if repository, _, err = unstructured.NestedString(c.values, of.value, "image", "repository"); err != nil {
			return name.Tag{}, err
		}
	}
	if folder != "" {
		repository = strings.TrimSuffix(folder, "/") + "/" + path.Base(repository)
	}
	return name.NewTag(repository + ":" + c.version)
}
