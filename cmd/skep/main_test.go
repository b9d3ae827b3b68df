package main

import (
	"archive/tar"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"cuelang.org/go/mod/modregistrytest"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/cmd/skep/internal/display"
	"github.com/skep-dev/skep/cmd/skep/internal/images"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/leaks"
	"github.com/skep-dev/skep/test/harness/workers"
)

// TestMain makes the test binary the command skep for scripts, and the renderer
// and the demo's child for the command.
func TestMain(m *testing.M) {
	leaks.MaybeProbe()
	schemas.MaybeRenderChild()
	policies.MaybeWorkerChild()
	workers.Use()
	testscript.Main(leaks.M{M: m}, map[string]func(){"skep": main, "kubectl-skep": main, "kubectl_complete-skep": main})
}

// TestCommands runs every script of testdata. A script may say "object NAME",
// which writes a test program, "plainkey NAME", which writes a key without a
// password beside its signer, which is revoked in NAME.revoked.yaml, since 2026 in
// NAME.since.yaml, and called NAME-twin in NAME.twin.yaml, "json FILE PATH VALUE", "cut FROM TO", "registry",
// which starts one at $REGISTRY, "modules", which starts one of CUE modules, "artifact REF", which writes what flux pull artifact finds there, and
// "pipeline FILE STEP TO", which writes the script of a step of examples/ci, "until PATTERN ARGS..." and "packets IFACE PORT N", and
// "plain FILE", which writes the last output as it is each time.
func TestCommands(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir)
			e.Setenv(workers.Variable, os.Getenv(workers.Variable))
			e.Setenv("COSIGN_PASSWORD", "")
			e.Setenv("NO_COLOR", "1")
			// With the race detector, a command would sleep a second before each exit.
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			// Other programs of this kernel, and other runs of these scripts, are
			// none of a script's business.
			pins := "/sys/fs/bpf/skep-script-" + strings.ToLower(rand.Text())
			e.Setenv("BPFFS", pins)
			e.Defer(func() { _ = os.RemoveAll(pins) })
			return nil
		},
		Condition: func(cond string) (bool, error) { return cond == "root" && leaks.Isolated(), nil },
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"object":   object,
			"cut":      cutShort,
			"plainkey": plainKey,
			"exit":     exitsWith,
			"json":     jsonValue,
			"registry": serveRegistry,
			"artifact": readArtifact,
			"pipeline": pipelineStep,
			"modules":  serveModules,
			"until":    untilShown,
			"packets":  sendPackets,
			"plain":    withoutPassing,
		},
	})
}

// object writes test programs as NAME.o.
func object(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		ts.Check(os.WriteFile(ts.MkAbs(name+".o"), programs.Object(name), 0o600))
	}
}

// cutShort writes the first half of a file: cut FROM TO.
func cutShort(ts *testscript.TestScript, _ bool, args []string) {
	data := ts.ReadFile(args[0])
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(data[:len(data)/2]), 0o600))
}

// plainKey writes NAME.key, NAME.signer.yaml, the same signer revoked and another of its key; cosign's own format takes a
// second of scrypt.
func plainKey(ts *testscript.TestScript, _ bool, args []string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ts.Check(err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	ts.Check(err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	signer := images.Signer(args[0], string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
	for _, f := range []struct {
		suffix string
		change func(*v1alpha1.BpfSigner)
	}{
		{".signer.yaml", func(*v1alpha1.BpfSigner) {}},
		{".twin.yaml", func(s *v1alpha1.BpfSigner) { s.Name += "-twin" }},
		{".revoked.yaml", func(s *v1alpha1.BpfSigner) { s.Spec.Revoked = true }},
		{".since.yaml", func(s *v1alpha1.BpfSigner) {
			s.Spec.RevokedAfter = &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
		}},
	} {
		object := signer.DeepCopy()
		f.change(object)
		doc, err := display.YAML(object)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[0]+f.suffix), doc, 0o600))
	}
}

// exitsWith runs skep and wants an exit code: exit CODE ARGS...
func exitsWith(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec("skep", args[1:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("skep %s: exit code %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// jsonValue wants a value in a JSON file: json FILE a.0.b VALUE.
func jsonValue(ts *testscript.TestScript, _ bool, args []string) {
	var v any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	dec.UseNumber()
	ts.Check(dec.Decode(&v))
	for part := range strings.SplitSeq(args[1], ".") {
		switch at := v.(type) {
		case map[string]any:
			inner, ok := at[part]
			if !ok {
				ts.Fatalf("%s: no key %s of %s", args[0], part, args[1])
			}
			v = inner
		case []any:
			i := strings.IndexByte("0123456789", part[0])
			if i < 0 || i >= len(at) {
				ts.Fatalf("%s: no member %s of %s", args[0], part, args[1])
			}
			v = at[i]
		default:
			ts.Fatalf("%s: %s leads nowhere", args[0], args[1])
		}
	}
	got, err := json.Marshal(v)
	ts.Check(err)
	if string(got) != args[2] {
		ts.Fatalf("%s: %s is %s, want %s", args[0], args[1], got, args[2])
	}
}

// serveRegistry starts a registry at $REGISTRY, until the script ends.
func serveRegistry(ts *testscript.TestScript, _ bool, _ []string) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true)))
	ts.Defer(server.Close)
	ts.Setenv("REGISTRY", strings.TrimPrefix(server.URL, "http://"))
}

// serveModules starts a registry of CUE modules at $CUE_REGISTRY with one, until the script ends.
func serveModules(ts *testscript.TestScript, _ bool, _ []string) {
	fsys, err := txtar.FS(txtar.Parse([]byte(`
-- example.com_lib_v0.1.0/cue.mod/module.cue --
module: "example.com/lib@v0"
language: version: "v0.14.0"
-- example.com_lib_v0.1.0/lib.cue --
package lib

#App: {apiVersion: "skep.dev/v1alpha1", kind: "ClusterBpfApplication", metadata: name: "lib"
	spec: {bytecode: image: "oci:img:v1", programs: [{name: "count_packets", attach: [{interfaces: names: ["lo"]}]}]}}
`)))
	ts.Check(err)
	server, err := modregistrytest.New(fsys, "")
	ts.Check(err)
	ts.Defer(server.Close)
	ts.Setenv("CUE_REGISTRY", server.Host()+"+insecure")
	ts.Setenv("CUE_CACHE_DIR", ts.MkAbs("cue-cache"))
}

// readArtifact writes the media types and the annotations of an artifact to the files types and
// annotations, a line each, and the files of its layer beside them: artifact REF. With !, there
// is to be none.
func readArtifact(ts *testscript.TestScript, neg bool, args []string) {
	ref, err := name.ParseReference(args[0])
	ts.Check(err)
	img, err := remote.Image(ref)
	if neg {
		if err == nil {
			ts.Fatalf("%s is there", ref)
		}
		return
	}
	ts.Check(err)
	manifest, err := img.Manifest()
	ts.Check(err)
	layers, err := img.Layers()
	ts.Check(err)
	if len(layers) != 1 {
		ts.Fatalf("%s has %d layers", ref, len(layers))
	}
	types := fmt.Sprintf("%s\n%s\n%s\n", manifest.MediaType, manifest.Config.MediaType, manifest.Layers[0].MediaType)
	ts.Check(os.WriteFile(ts.MkAbs("types"), []byte(types), 0o600))
	var annotations strings.Builder
	for _, key := range slices.Sorted(maps.Keys(manifest.Annotations)) {
		fmt.Fprintf(&annotations, "%s=%s\n", key, manifest.Annotations[key])
	}
	ts.Check(os.WriteFile(ts.MkAbs("annotations"), []byte(annotations.String()), 0o600))
	content, err := layers[0].Uncompressed()
	ts.Check(err)
	defer content.Close()
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		ts.Check(err)
		data, err := io.ReadAll(files)
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(header.Name), data, 0o600))
	}
}
