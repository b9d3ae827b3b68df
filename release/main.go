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
	"time"

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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o := dist.Options{Checkout: ".", Folder: folder, Out: out, More: more}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.StringVar(&o.Version, "version", "", "version of the release, as vX.Y.Z")
	flags.StringVar(&o.Dir, "dir", "dist/release", "folder of the release, which is replaced")
	flags.StringVar(&o.Builder, "builder", builder, "URI of who builds, for the provenance")
	key := flags.String("key", "", "private key file that signs; its password is in $"+passwordVariable)
	push := flags.String("push", "", "registry and folder to push to, such as registry.example.com/team")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.Version == "" {
		return errors.New("a release has a version; write VERSION=vX.Y.Z")
	}
	if *push != "" {
		o.Folder, o.Push = strings.TrimSuffix(*push, "/"), true
	}
	var err error
	if o.Time, err = epoch(os.Getenv(epochVariable)); err != nil {
		return err
	}
	if o.Key, err = privateKey(*key); err != nil {
		return err
	}
	return dist.Make(ctx, o)
}

// epoch reads a time in seconds since 1970; zero where none is given.
func epoch(given string) (time.Time, error) {
	if given == "" {
		return time.Time{}, nil
	}
	seconds, err := strconv.ParseInt(given, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("read $%s: %q is no number of seconds since 1970", epochVariable, given)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// privateKey reads the key in a file; nil where none is given.
func privateKey(file string) (*sign.PrivateKey, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	return sign.ParsePrivateKey(data, []byte(os.Getenv(passwordVariable)))
}
