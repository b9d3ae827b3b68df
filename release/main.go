// Command release makes a release of the commit that is checked out, in dist/release, and
// pushes it where that is asked for: see docs/release.md.
//
// It holds flags and wiring; packages below do the work.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/release/build"
	"github.com/skep-dev/skep/release/dist"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing/sign"
)

// What the environment says. The password is cosign's, the time
// https://reproducible-builds.org/specs/source-date-epoch/.
const (
	passwordVariable = "COSIGN_PASSWORD"
	epochVariable    = "SOURCE_DATE_EPOCH"
)

// folder is where releases are pulled from.
const folder = "ghcr.io/skep-dev"

// builder is who builds where nobody says otherwise: somebody's own machine.
const builder = "https://github.com/skep-dev/skep/blob/main/docs/release.md#builders"

func main() {
	// The CUE module is vetted before it is released.
	schemas.MaybeRenderChild()
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run makes a release of the module in the current folder.
func run(out io.Writer, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := dist.Options{Checkout: ".", Folder: folder, Out: out, More: more}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.Version, "version", "", "version of the release, as vX.Y.Z")
	flags.StringVar(&o.Dir, "dir", "dist/release", "folder of the release, which is replaced")
	flags.StringVar(&o.Folder, "folder", folder, "registry and folder that images are named below where nothing is pushed, to repeat a release")
	flags.StringVar(&o.Builder, "builder", builder, "URI of who builds, for the provenance")
	arch := flags.String("arch", "", "architectures of the nodes, as Go calls them and with commas; amd64 and arm64 unless given")
	key := flags.String("key", "", "private key file that signs; its password is in $"+passwordVariable)
	push := flags.String("push", "", "registry and folder to push to, such as registry.example.com/team")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("read arguments: %q is none; the version is given as -version vX.Y.Z", flags.Arg(0))
	}
	if o.Version == "" {
		return errors.New("a release has a version; write VERSION=vX.Y.Z")
	}
	// It takes fewer than dist does.
	if _, err := schemas.ModuleVersion(o.Version); err != nil {
		return err
	}
	if *arch != "" {
		o.Architectures = strings.Split(*arch, ",")
	}
	if *push != "" {
		o.Folder, o.Push = *push, true
	}
	o.Folder = strings.TrimSuffix(o.Folder, "/")
	var err error
	if o.Time, err = epoch(os.Getenv(epochVariable)); err != nil {
		return err
	}
	if o.Key, err = privateKey(*key); err != nil {
		return err
	}
	// What is released is the commit, which the working tree has to be equal to.
	if err := artifacts.CheckCut(os.DirFS(o.Checkout), o.Version); err != nil {
		return err
	}
	if o.Authorities, err = build.AuthoritiesModule(); err != nil {
		return err
	}
	return dist.Make(ctx, o)
}

// epoch reads a time in seconds since 1970; zero where none is given.
func epoch(given string) (time.Time, error) {
	if given == "" {
		return time.Time{}, nil
	}
	// A tar archive has room for as many.
	seconds, err := strconv.ParseUint(given, 10, 33)
	if err != nil {
		return time.Time{}, fmt.Errorf("read $%s: %q is no number of seconds since 1970, or one after the year 2242", epochVariable, given)
	}
	return time.Unix(int64(seconds), 0).UTC(), nil
}

// privateKey reads the key in a file; nil where none is given. The password leaves the environment:
// no command that is run, such as a registry's credential helper, has to know it.
func privateKey(file string) (*sign.PrivateKey, error) {
	password := os.Getenv(passwordVariable)
	if err := os.Unsetenv(passwordVariable); err != nil {
		return nil, err
	}
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	key, err := sign.ParsePrivateKey(data, []byte(password))
	if err != nil {
		return nil, fmt.Errorf("read key %s with the password in $%s: %w", file, passwordVariable, err)
	}
	return key, nil
}
