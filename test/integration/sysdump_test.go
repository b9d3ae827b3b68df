package integration

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// make makes objects until the test ends.
func (c *cluster) make(all ...client.Object) {
	c.t.Helper()
	for _, o := range all {
		if err := c.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() {
			if err := client.IgnoreNotFound(c.Delete(context.Background(), o)); err != nil {
				c.t.Error(err)
			}
		})
	}
}

// withSecrets has the API server store a secret wherever a user, or the chart, may have written one.
func (c *cluster) withSecrets() {
	c.t.Helper()
	const home = "skep-system"
	if err := c.Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: home}}); err != nil && !apierrors.IsAlreadyExists(err) {
		c.t.Fatal(err)
	}
	for _, namespace := range []string{"default", otherTeam} {
		app := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "of-" + namespace, Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: `{"spec":{"variables":{"key":"SECRET-variable"}}}`, "skep.dev/kept": "kept-annotation"}}}
		app.Spec.Bytecode.Image = "r.example.com/kept-image:v1"
		app.Spec.Variables = map[string]apiextensionsv1.JSON{"kept_variable": {Raw: []byte(`"SECRET-variable"`)}, "number": {Raw: []byte(`4711471147`)}}
		app.Spec.Maps = map[string]v1alpha1.Map{"kept_map": {Contents: []v1alpha1.MapEntry{
			{Key: apiextensionsv1.JSON{Raw: []byte(`"SECRET-key"`)}, Value: apiextensionsv1.JSON{Raw: []byte(`{"a":["SECRET-value"]}`)}}}}}
		app.Spec.Programs = []v1alpha1.Program{{Name: "count", Attach: []v1alpha1.Attachment{{Hook: "tcx/ingress", Pods: &v1alpha1.Pods{}}}}}
		c.make(app)
		app.Status.ObservedGeneration = app.Generation
		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionAllowed} {
			app.Status.Conditions = append(app.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Failed",
				ObservedGeneration: app.Generation, LastTransitionTime: metav1.Now(),
				Message: "kept-message: GET https://user:SECRET-registry@r.example.com: it is SECRET-value, 4711471147"})
		}
		if err := c.Status().Update(c.t.Context(), app); err != nil {
			c.t.Fatal(err)
		}
		c.make(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "event"}, Reason: "KeptReason", Message: "it says SECRET-variable",
			InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.APIVersion, Kind: "BpfApplication", Namespace: namespace, Name: app.Name}})
	}
	labels := map[string]string{"app": "skep"}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "kept-container", Image: "kept", Args: []string{"--kept-flag=SECRET-argument"},
		Env: []corev1.EnvVar{{Name: "KEPT_ENV", Value: "SECRET-environment"}}}}}
	c.make(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "s"}, StringData: map[string]string{"a": "SECRET-data"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "m"}, Data: map[string]string{"a": "SECRET-config"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: home, Name: "skep-controller"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "others"}, Reason: "OfOthers",
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: "p"}},
	)
}

// sysdump is the text of all files of an archive that kubectl's plug-in writes as a user, and of its manifest.
func sysdump(t *testing.T, config *rest.Config, args ...string) (whole, manifest string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out.tar.gz")
	if stdout, stderr, code := plugin(t, config, append([]string{"sysdump", "-o", path}, args...)...); code != 0 {
		t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for all := tar.NewReader(plain); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			return whole, manifest
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(all)
		if err != nil {
			t.Fatal(err)
		}
		whole += "\n" + header.Name + "\n" + string(body)
		if strings.HasSuffix(header.Name, "/MANIFEST.txt") {
			manifest = string(body)
		}
	}
}

// TestAnArchiveHasNoSecretsOfTheAPIServer, and as a user of one namespace nothing of others.
func TestAnArchiveHasNoSecretsOfTheAPIServer(t *testing.T) {
	c := teams(t)
	c.withSecrets()
	jane := c.editor()
	secrets := []string{"SECRET", "4711471147", "managedFields"}
	for sentence, on := range map[string]struct {
		config               *rest.Config
		args                 []string
		has, manifest, lacks []string
	}{
		"an admin": {c.plane.Config, nil, []string{"kept-image", "kept_variable", "kept_map", "kept-annotation", "kept-message",
			"of-default", "of-other-team", "KeptReason", "kept-container", "KEPT_ENV", "--kept-flag=", `"version": "v9"`},
			[]string{"bpfnodes.json  ", "2 objects"}, []string{"OfOthers"}},
		"an editor of a namespace": {jane, nil, []string{"of-default", "kept-message"}, []string{
			"bpfapplications.json of every namespace  NOT READ: it needs the right to list bpfapplications.skep.dev\n",
			"bpfnodes.json  NOT READ: it needs the right to list bpfnodes.skep.dev\n",
			"skep/deployments.json  NOT READ: it needs the right to list deployments.apps in"},
			[]string{otherTeam, "kept-container", `"v9"`}},
		"an admin as that user": {c.plane.Config, []string{"--as", "jane", "-n", "default"}, []string{"of-default"}, []string{"bpfnodes.json  NOT READ"},
			[]string{otherTeam, "kept-container"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			whole, manifest := sysdump(t, on.config, on.args...)
			for _, want := range on.has {
				if !strings.Contains(whole, want) {
					t.Errorf("it lacks %q:\n%s", want, whole)
				}
			}
			for _, want := range on.manifest {
				if !strings.Contains(manifest, want) {
					t.Errorf("the manifest lacks %q:\n%s", want, manifest)
				}
			}
			key := string(on.config.KeyData)
			for _, secret := range append(append(secrets, on.lacks...), key, base64.StdEncoding.EncodeToString([]byte(key))) {
				if at := strings.Index(whole, secret); at >= 0 {
					t.Errorf("it has %s: …%s…", secret, whole[max(0, at-200):min(len(whole), at+40)])
				}
			}
		})
	}
}
