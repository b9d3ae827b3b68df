// Package controlplane runs a real kube-apiserver with a real etcd for tests.
//
// It owns where their binaries come from and how they are started and stopped.
// They are taken from KUBEBUILDER_ASSETS where that is set, and built once from
// the Go modules that kubernetes/go.mod pins where it is not.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/cached"
	"github.com/skep-dev/skep/test/harness/module"
)

// Assets returns a folder with kube-apiserver, kubectl and etcd.
func Assets(ctx context.Context) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		return dir, nil
	}
	return Built(ctx)
}

// Built returns a folder with all that a cluster is made of, the node's half
// included. The first caller on a machine builds it, which takes minutes; others
// wait for it.
func Built(ctx context.Context) (string, error) {
	const set = "k8s.io/component-base/version."
	return cached.Tools{
		Name: "kubernetes", Module: filepath.Join(module.Root(), "test", "harness", "controlplane", "kubernetes"),
		Variables: []string{set + "gitVersion=" + version, set + "gitMajor=1", set + "gitMinor=36"},
		// etcd's main package is called server.
		Renamed: map[string]string{"server": "etcd"},
	}.Build(ctx)
}

// version is what the API server says of itself; go.mod pins the same.
const version = "v1.36.3"

// CRDs is the folder of the CRDs the chart installs.
func CRDs() string { return filepath.Join(module.Root(), "charts", "skep", "files", "crds") }

// CRDInstall is how Skep's CRDs are installed and taken away: with more time than
// envtest's own ten seconds, which a busy machine exceeds.
func CRDInstall() envtest.CRDInstallOptions {
	return envtest.CRDInstallOptions{Paths: []string{CRDs()}, ErrorIfPathMissing: true, MaxTime: time.Minute}
}

// Uninstall deletes Skep's CRDs, and returns once they are gone: as a rule within
// seconds, but kube-apiserver looks again a minute later only where an agent made
// an object anew meanwhile.
func (p *Plane) Uninstall(ctx context.Context) error {
	crds, err := apiextensions.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	if err := p.list(ctx, crds); err != nil {
		return err
	}
	if err := envtest.UninstallCRDs(p.Config, CRDInstall()); err != nil {
		return err
	}
	var left []apiextensionsv1.CustomResourceDefinition
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 3*time.Minute, true, func(ctx context.Context) (bool, error) {
		found, err := crds.CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
		if err == nil {
			// Others have kinds of their own here, such as Flux.
			left = slices.DeleteFunc(found.Items, func(crd apiextensionsv1.CustomResourceDefinition) bool {
				return crd.Spec.Group != v1alpha1.Group
			})
		}
		return err == nil && len(left) == 0, nil
	})
	if err != nil {
		for _, crd := range left {
			err = fmt.Errorf("%w; %s is left: %+v", err, crd.Name, crd.Status.Conditions)
		}
	}
	return err
}

// list lists the objects of every CRD once. One whose objects nobody ever read is
// deleted minutes later only ("storage is (re)initializing"): see
// https://github.com/operator-framework/operator-controller/issues/1437.
func (p *Plane) list(ctx context.Context, crds *apiextensions.ApiextensionsV1Client) error {
	all, err := crds.CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	for _, crd := range all.Items {
		resource := schema.GroupVersionResource{Group: crd.Spec.Group, Version: crd.Spec.Versions[0].Name, Resource: crd.Spec.Names.Plural}
		if _, err := objects.Resource(resource).List(ctx, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("list %s: %w", crd.Name, err)
		}
	}
	return nil
}

// Plane is a control plane with Skep's CRDs.
type Plane struct {
	// Config is an admin's.
	Config *rest.Config
	// Env is what was started, for those that stop parts of it.
	Env *envtest.Environment
	// Kubectl is the path of the binary.
	Kubectl string
	dir     string
}

// Options says what a Plane is to have beside the defaults.
type Options struct {
	// Webhooks are installed with the CRDs.
	Webhooks envtest.WebhookInstallOptions
	// Flags are set on kube-apiserver, each name with its values.
	Flags map[string][]string
	// WithoutCRDs leaves Skep's CRDs out.
	WithoutCRDs bool
}

// Start starts a control plane; Stop ends it.
func Start(ctx context.Context, o Options) (*Plane, error) {
	assets, err := Assets(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "controlplane")
	if err != nil {
		return nil, err
	}
	env := &envtest.Environment{
		BinaryAssetsDirectory: assets, WebhookInstallOptions: o.Webhooks,
		ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: 2 * time.Second,
	}
	if !o.WithoutCRDs {
		env.CRDInstallOptions = CRDInstall()
	}
	// A folder of its own outlives a restart of etcd.
	env.ControlPlane.Etcd = &envtest.Etcd{DataDir: filepath.Join(dir, "etcd")}
	env.ControlPlane.Etcd.Configure().Append("unsafe-no-fsync")
	env.ControlPlane.GetAPIServer().CertDir = filepath.Join(dir, "apiserver")
	if err := os.Mkdir(env.ControlPlane.GetAPIServer().CertDir, 0o700); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	args := env.ControlPlane.GetAPIServer().Configure()
	// It would look for a route that leads away, which isolated tests do not have. The address is
	// one for documentation (RFC 5737): no request goes there.
	args.Set("advertise-address", "192.0.2.1")
	for name, values := range o.Flags {
		args.Set(name, values...)
	}
	config, err := env.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), env.Stop(), os.RemoveAll(dir))
	}
	return &Plane{Config: config, Env: env, Kubectl: filepath.Join(assets, "kubectl"), dir: dir}, nil
}

// Mutates reports whether the API server serves MutatingAdmissionPolicy, which those
// before 1.36 do not.
func (p *Plane) Mutates() (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(p.Config)
	if err != nil {
		return false, err
	}
	served, err := client.ServerResourcesForGroupVersion("admissionregistration.k8s.io/v1")
	if err != nil {
		return false, fmt.Errorf("ask what is served: %w", err)
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Kind == "MutatingAdmissionPolicy" }), nil
}

// Stop ends the control plane and takes its data away. An API server that
// somebody still watches would take a minute to end; after two seconds it is
// killed, which is no error here.
func (p *Plane) Stop() error {
	_ = p.Env.Stop()
	return os.RemoveAll(p.dir)
}
