// Package build makes Skep's binaries and the container images of them, without Docker
// and without a base image: a static binary is all there is in one, beside certificate
// authorities.
//
// It owns how a binary is linked and what is in an image. It pushes nothing; commands
// below release say what images are for. ko would make the same out of a base image from
// the network.
package build

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// Component is one of the binaries, and the image of it.
type Component struct {
	// Value is what the chart's values call it; empty of what no node of a cluster runs.
	Value string
	// Repository is where the image is pulled from, where the chart does not say so.
	Repository string
	// Command is the folder below cmd, and the binary's name.
	Command string
	// Beside are further commands in the image, which other containers of the same Pod run.
	Beside []string
	// Title describes the image.
	Title string
	// User runs it unless the Pod says otherwise.
	User string
	// Authorities has it know who may sign a registry's certificate.
	Authorities bool
	// MaxBytes is the size of the image in a release, uncompressed; 0 for no bound.
	MaxBytes int64
}

// Commands are all that are in the image.
func (c Component) Commands() []string { return append([]string{c.Command}, c.Beside...) }

// megabyte is what the bounds of images are counted in.
const megabyte = 1_000_000

// Components are the images that the chart names, and that of the command line.
func Components() []Component {
	return []Component{
		{
			Value: "controller", Command: "skep-controller", Title: "Skep's controller",
			User: "65532:65532", Authorities: true, MaxBytes: 120 * megabyte,
		},
		// What the agent is to talk to, it is told the authorities of.
		{Value: "agent", Command: "skep-agent", Beside: []string{"skep-mounter"}, Title: "Skep's agent", User: "0:0", MaxBytes: 40 * megabyte},
		// The user is the one that plugins of Argo CD have to run as.
		{
			Repository: "ghcr.io/skep-dev/skep", Command: "skep", Title: "Skep's command line",
			User: "999:999", Authorities: true,
		},
	}
}

// NoTrace is the tag by which google.golang.org/grpc leaves out golang.org/x/net/trace and its
// pages of html/template. With these, the linker keeps every method of every type: 4 MB more
// of the agent.
const NoTrace = "grpcnotrace"

// CheckVersion returns an error for everything but a whole semantic version: v1.2.3, with a
// pre-release or without. Build metadata has no place in a tag, and CUE takes none.
func CheckVersion(version string) error {
	if version == "" || semver.Canonical(version) != version {
		return fmt.Errorf("read version %q: write it as vX.Y.Z, such as v0.2.0 or v0.2.0-rc.1", version)
	}
	return nil
}

// Stamp is what binaries of a release say of themselves.
type Stamp struct {
	// Version is the release's, as v1.2.3.
	Version string
	// Revision is the commit's hash.
	Revision string
	// Time is when the commit was made.
	Time time.Time
}

// Link says which binaries are made, and how.
type Link struct {
	// Module is the module's folder.
	Module string
	// To is the folder that the binaries are written to.
	To string
	// Arch is the architecture, as Go calls it; the system is Linux.
	Arch string
	// Stamp is set for a release: nothing of the machine, its folders or its git goes
	// into the binaries then. Nil leaves it to Go to say what commit they are of.
	Stamp *Stamp
}

// versionPackage has the variables that Stamp sets.
const versionPackage = "github.com/skep-dev/skep/cmd/internal/version."

// Flags are those of go build for a link.
func (l Link) Flags() []string {
	// What is compiled without the folder it lies in serves every clone.
	flags := []string{"-tags", NoTrace, "-trimpath"}
	linker := []string{"-s", "-w"}
	if s := l.Stamp; s != nil {
		flags = append(flags, "-buildvcs=false")
		for _, set := range []string{"release=" + s.Version, "revision=" + s.Revision, "committed=" + s.Time.UTC().Format(time.RFC3339)} {
			linker = append(linker, "-X", versionPackage+set)
		}
	}
	return append(flags, "-ldflags", strings.Join(linker, " "))
}

// Binaries builds the binaries of all components with the go command of the machine, whose
// own version is part of what is built.
func Binaries(ctx context.Context, l Link) error {
	to, err := filepath.Abs(l.To)
	if err != nil {
		return err
	}
	args := append([]string{"build"}, l.Flags()...)
	args = append(args, "-o", to+string(os.PathSeparator))
	for _, c := range Components() {
		for _, command := range c.Commands() {
			args = append(args, "./cmd/"+command)
		}
	}
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are those of a link
	cmd.Dir, cmd.Stderr = l.Module, os.Stderr
	cmd.Env = append(os.Environ(), l.Environment()...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build binaries for linux/%s: %w", l.Arch, err)
	}
	return nil
}

// Environment is what go build is told by its environment: static and for Linux, whatever
// the caller's flags and machine are. A release is for every processor of an architecture,
// and neither a workspace nor another version of Go counts. Flags are not left empty, since Go
// takes those of go env -w then.
func (l Link) Environment() []string {
	env := []string{"CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOOS=linux", "GOARCH=" + l.Arch}
	if l.Stamp != nil {
		env = append(env, "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOFIPS140=off", "GOTOOLCHAIN=local", "GOWORK=off", "GO_EXTLINK_ENABLED=0")
	}
	return env
}

// Check returns an error where a binary of a release says of itself that it was built in another
// way than Flags and Environment say, or by another Go than this command, which packs it. What
// go env -w has set is seen here.
func (l Link) Check(binary *debug.BuildInfo) error {
	if binary.GoVersion != runtime.Version() {
		return fmt.Errorf("it was built by %q, and is packed by %q: run make release with one version of Go in PATH", binary.GoVersion, runtime.Version())
	}
	want := map[string]string{
		"-buildmode": "exe", "-compiler": "gc", "-tags": NoTrace, "-trimpath": "true", "CGO_ENABLED": "0",
		"GOOS": "linux", "GOARCH": l.Arch, "GOAMD64": "v1", "GOARM64": "v8.0",
	}
	for _, s := range binary.Settings {
		// The standard library's defaults follow from go.mod.
		if value, known := want[s.Key]; s.Key != "DefaultGODEBUG" && (!known || value != s.Value) {
			return fmt.Errorf("it was built with %s=%s, which no release is: see go env -changed, and undo it with go env -u", s.Key, s.Value)
		}
	}
	return nil
}
