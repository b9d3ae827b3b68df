package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/cmd/internal/exit"
	"github.com/skep-dev/skep/convert"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// manifests writes a file with an application for each image.
func manifests(t *testing.T, images ...string) string {
	t.Helper()
	var all strings.Builder
	for i, image := range images {
		fmt.Fprintf(&all, "---\n{apiVersion: bpfman.io/v1alpha1, kind: TracepointProgram, metadata: {name: app-%d}, spec: {bpffunctionname: enter, name: "+
			"syscalls/sys_enter_openat, "+
			"bytecode: {image: {url: %q}}, globaldata: {sampling: [7, 0, 0, 0]}}}\n", i, image)
	}
	file := filepath.Join(t.TempDir(), "in.yaml")
	if err := os.WriteFile(file, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestARegistryIsAskedOnceForAReference(t *testing.T) {
	chain := supply.New(t)
	ref, _ := chain.Push("counter:v1", programs.Object("xdp_count"))
	asked := func(images ...string) int64 {
		before := chain.Requests.Load()
		out, summary, err := run(t, "--read-images", "--allowed-registry", chain.Registry, manifests(t, images...))
		if err != nil || strings.Count(out, "sampling: 7") != len(images) {
			t.Fatalf("%v, want %d values:\n%s%s", err, len(images), out, summary)
		}
		return chain.Requests.Load() - before
	}
	if once, often := asked(ref), asked(ref, ref, ref, ref); once == 0 || often != once {
		t.Errorf("%d requests for one application and %d for four, want as many", once, often)
	}
}

// A person who may write an application would fill the user's disk or memory with images.
func TestImagesAreRememberedWithinBoundsAndNotOnDisk(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", home)
	chain := supply.New(t)
	ref, _ := chain.Push("counter:v1", programs.Object("xdp_count"))
	if _, _, err := run(t, "--read-images", "--allowed-registry", chain.Registry, manifests(t, ref)); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("%v and %v are left on disk", left, err)
	}
	small, large := newReader(t.Context(), nil).objects, newReader(t.Context(), nil).objects
	for i := range 2 * maxObjects {
		small.Put(fmt.Sprint(i), []byte{0})
		large.Put(fmt.Sprint(i), make([]byte, maxObjectBytes/8))
	}
	if entries, _ := small.Held(); entries != maxObjects {
		t.Errorf("%d objects are remembered, want %d", entries, maxObjects)
	}
	if _, bytes := large.Held(); bytes != maxObjectBytes {
		t.Errorf("%d bytes are remembered, want %d", bytes, maxObjectBytes)
	}
}

// Whoever may write an application would have the user's machine ask hosts of its network.
func TestARegistryOfThisNetworkIsAskedWhereItIsListed(t *testing.T) {
	chain := supply.New(t)
	ref, _ := chain.Push("counter:v1", programs.Object("xdp_count"))
	before := chain.Requests.Load()
	out, _, err := run(t, "--read-images", manifests(t, ref))
	if asked := chain.Requests.Load() - before; !errors.Is(err, exit.ErrDenied) || asked != 0 || !strings.Contains(out, "list it by --allowed-registry") {
		t.Errorf("%v, %d requests, want none and a TODO that names the flag:\n%s", err, asked, out)
	}
}

func TestALayoutIsReadWhereAFileNamesIt(t *testing.T) {
	in, err := os.ReadFile(manifests(t, "oci:counter"))
	if err != nil {
		t.Fatal(err)
	}
	for layouts, want := range map[bool]string{true: "image: oci:counter", false: "no object of a cluster may choose"} {
		r, err := convert.Convert(t.Context(), in, convert.Options{Layouts: layouts})
		if err != nil || len(r.Documents) != 1 || !strings.Contains(string(r.Documents[0].YAML), want) {
			t.Errorf("with layouts %v: %v, no %q: %v", layouts, err, want, r)
		}
	}
}

func TestImagesHaveOneDeadline(t *testing.T) {
	chain := supply.New(t)
	ref, _ := chain.Push("counter:v1", programs.Object("xdp_count"))
	before := chain.Requests.Load()
	c := command{readImages: true, allowed: []string{chain.Registry}, imagesTimeout: -1}
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	o, stop, err := c.options(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for range 2 {
		if _, _, err := o.Variables(ref, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that the time is over", err)
		}
	}
	if asked := chain.Requests.Load() - before; asked != 0 {
		t.Errorf("%d requests after the deadline", asked)
	}
}

func TestConvertEndsWhereItIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	out, _, err := runWith(ctx, t, "", manifests(t, "registry.example.com/a:v1"), manifests(t, "registry.example.com/b:v1"))
	if !errors.Is(err, context.Canceled) || out != "" {
		t.Errorf("error %v and output %q, want that it is interrupted", err, out)
	}
}
