// Package flux runs Flux's real source-controller and kustomize-controller for tests, on loopback,
// against the API server of a kubeconfig.
//
// It owns where their binaries and CRDs come from: the Go modules that controllers/go.mod pins. It
// makes no object: which sources and Kustomizations there are, its callers say.
package flux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/test/harness/cached"
	"github.com/skep-dev/skep/test/harness/child"
	"github.com/skep-dev/skep/test/harness/deployment"
	"github.com/skep-dev/skep/test/harness/module"
)

// patience bounds how long a controller may take to be ready.
const patience = 2 * time.Minute

func modules() string { return filepath.Join(module.Root(), "test", "harness", "flux", "controllers") }

func tools() cached.Tools { return cached.Tools{Name: "flux", Module: modules()} }

// Build returns the folder of the controllers, and builds them where this machine has none yet, which
// takes minutes.
func Build(ctx context.Context) (string, error) { return tools().Build(ctx) }

// Folder is where the controllers are. It fails with cached.ErrNotBuilt.
func Folder() (string, error) { return tools().Folder() }

// Need skips a test where nobody built the controllers. CRDs needs no build.
func Need(t testing.TB) {
	t.Helper()
	if _, err := Folder(); err != nil {
		t.Skip("SKIPPED: needs Flux's controllers: make flux")
	}
}

// CRDs installs Flux's CRDs, those of the modules, into an API server.
func CRDs(ctx context.Context, config *rest.Config) error {
	folders, err := crds(ctx)
	if err != nil {
		return err
	}
	_, err = envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: folders, ErrorIfPathMissing: true, MaxTime: time.Minute})
	return err
}

// crds are the folders of the CRDs. Go fetches the modules where it does not have them.
func crds(ctx context.Context) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "github.com/fluxcd/source-controller", "github.com/fluxcd/kustomize-controller")
	cmd.Dir, cmd.Env = modules(), append(os.Environ(), "GOFLAGS=")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find Flux's modules: %w\n%s", err, out)
	}
	var folders []string
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var found struct{ Dir string }
		if err := d.Decode(&found); errors.Is(err, io.EOF) {
			return folders, nil
		} else if err != nil {
			return nil, fmt.Errorf("read where Flux's modules are: %w", err)
		}
		folders = append(folders, filepath.Join(found.Dir, "config", "crd", "bases"))
	}
}

// SourceController starts a source-controller, which ends with the test. Its artifacts lie in a folder of
// the test's.
func SourceController(t testing.TB, kubeconfig string, flags ...string) {
	t.Helper()
	artifacts := free(t)
	start(t, "source-controller", kubeconfig, append([]string{
		"--storage-path=" + t.TempDir(), "--storage-addr=" + artifacts, "--storage-adv-addr=" + artifacts,
	}, flags...))
}

// KustomizeController starts a kustomize-controller, which ends with the test. It takes ExternalArtifacts.
func KustomizeController(t testing.TB, kubeconfig string, flags ...string) {
	t.Helper()
	start(t, "kustomize-controller", kubeconfig, append([]string{
		"--feature-gates=ExternalArtifact=true", "--requeue-dependency=1s", "--http-retry=1",
	}, flags...))
}

// start runs one until the test ends, and waits until it is ready.
func start(t testing.TB, name, kubeconfig string, flags []string) {
	t.Helper()
	dir, err := tools().Folder()
	if err != nil {
		t.Fatal(err)
	}
	health := free(t)
	// It outlives the test's context by its clean-up.
	ctx, end := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(dir, name), append([]string{
		"--metrics-addr=0", "--health-addr=" + health, "--enable-leader-election=false", "--log-encoding=console",
	}, flags...)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	// A proxy of the machine's does not know the test's addresses.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "RUNTIME_NAMESPACE=default", "NO_PROXY=*", "no_proxy=*", "TMPDIR="+t.TempDir())
	if err := child.Start(cmd); err != nil {
		end()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		end()
		how := <-ended
		if t.Failed() {
			t.Logf("%s ended: %v\n%s", name, how, said.String())
		}
	})
	if err := ready(t.Context(), "http://"+health+"/readyz", ended); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// ready waits until a controller answers, or has ended.
func ready(ctx context.Context, url string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := get(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case how := <-ended:
			return fmt.Errorf("it ended: %w", how)
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", err)
		case <-tick.C:
		}
	}
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// free is an address of loopback that nobody listens at.
func free(t testing.TB) string {
	t.Helper()
	address, err := deployment.Free(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return address
}
