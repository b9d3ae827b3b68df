package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/release/artifacts"
	"github.com/skep-dev/skep/test/harness/module"
	"github.com/skep-dev/skep/test/harness/page"
)

// released pushes and signs an artifact of a release that is made of a folder, and returns its digest.
func (p *pipeline) released(folder string, of func(artifacts.Options) (artifacts.Artifact, error)) string {
	p.t.Helper()
	images := map[string]name.Digest{}
	for component, digit := range map[string]string{"controller": "a", "agent": "b"} {
		d, err := name.NewDigest("registry.example.com/skep-" + component + "@sha256:" + strings.Repeat(digit, 64))
		if err != nil {
			p.t.Fatal(err)
		}
		images[component] = d
	}
	made, err := of(artifacts.Options{Files: os.DirFS(filepath.Join(module.Root(), folder)), Version: "v0.2.0", Images: images})
	if err != nil {
		p.t.Fatal(err)
	}
	digest, err := made.Digest()
	if err != nil {
		p.t.Fatal(err)
	}
	ref, err := name.NewDigest(p.registry + "/" + made.Repository + "@" + digest.String())
	if err == nil {
		err = remote.Write(ref, made)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.run(0, "sign", "--key", p.key+".key", ref.String())
	return digest.String()
}

// reads does what docs/install.md says for Flux, with this registry and a digest.
func (p *pipeline) reads(digest string) {
	p.t.Helper()
	reader := page.Reader{Home: p.t.TempDir(), At: p.t.TempDir()}
	reader.Env = []string{"KUBECONFIG=" + p.config, "PATH=" + filepath.Dir(p.plane.Kubectl) + ":" + os.Getenv("PATH"), "NO_PROXY=*", "no_proxy=*"}
	public, err := os.ReadFile(p.key + ".pub")
	if err == nil {
		err = os.WriteFile(filepath.Join(reader.At, "release.pub"), public, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	here := strings.NewReplacer("url: oci://ghcr.io/skep-dev", "insecure: true\n  url: oci://"+p.registry, "sha256:…", digest)
	for _, s := range page.Steps(p.t, page.Read(p.t, "install.md"), "## A cluster, by Flux", "## One host") {
		s.Content = here.Replace(s.Content)
		reader.Do(p.t, s)
	}
}

// trusted returns the webhook configuration of a cluster, if a controller wrote there whom the API server trusts.
func trusted(c *cluster) (v admissionregistrationv1.ValidatingWebhookConfiguration, err error) {
	if err := c.Get(c.t.Context(), client.ObjectKey{Name: "skep"}, &v); err != nil {
		return v, err
	}
	for _, w := range v.Webhooks {
		if len(w.ClientConfig.CABundle) == 0 || w.ClientConfig.Service == nil || w.ClientConfig.Service.Path == nil {
			return v, fmt.Errorf("the webhook %s has no authority or no path", w.Name)
		}
	}
	return v, nil
}

// TestFluxInstallsARelease has a real source-controller verify the kustomize directory and the chart of a release, a
// real kustomize-controller apply the directory as docs/install.md says, and leave what a controller writes into it.
func TestFluxInstallsARelease(t *testing.T) {
	p := newPipeline(t)
	c := newClusterOn(t, p.plane)
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "flux-system"}})
	p.reads(p.released("deploy/kustomize", artifacts.Kustomize))
	var agent appsv1.DaemonSet
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "skep-system", Name: "skep-agent"}, &agent); err != nil {
		t.Fatal(err)
	}

	_, admission := c.admission()
	c.control(admission)
	var before admissionregistrationv1.ValidatingWebhookConfiguration
	c.until("the webhook to be trusted", func() (err error) { before, err = trusted(c); return err })
	applied := object("kustomize.toolkit.fluxcd.io/v1", "Kustomization", "skep")
	applied.SetNamespace("flux-system")
	c.change(applied, func() { applied.SetAnnotations(map[string]string{gate.AnnotationRequestedAt: "again"}) })
	c.until("Flux to have applied it again", func() error {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(applied), applied); err != nil {
			return err
		}
		if at, _, _ := unstructured.NestedString(applied.Object, "status", "lastHandledReconcileAt"); at != "again" {
			return errors.New("it did not look again")
		}
		return nil
	})
	if got := p.settled(applied); !apimeta.IsStatusConditionTrue(got.Status.Conditions, "Ready") {
		t.Errorf("applied again: %+v", got.Status.Conditions)
	}
	// Whatever Flux had taken away, the controller would have written again.
	if after, err := trusted(c); err != nil || after.Generation != before.Generation {
		t.Errorf("the webhooks were, at generation %d, %+v and are, at %d, %+v: %v", before.Generation, before.Webhooks, after.Generation, after.Webhooks, err)
	}

	chart := p.source("charts/skep", map[string]any{
		"ref":           map[string]any{"digest": p.released("charts/skep", artifacts.Chart)},
		"layerSelector": map[string]any{"mediaType": "application/vnd.cncf.helm.chart.content.v1.tar+gzip", "operation": "copy"},
	})
	if got := p.settled(chart); !apimeta.IsStatusConditionTrue(got.Status.Conditions, "Ready") ||
		!apimeta.IsStatusConditionTrue(got.Status.Conditions, "SourceVerified") {
		t.Errorf("chart: %+v", got.Status.Conditions)
	}
}
