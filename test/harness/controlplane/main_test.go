package controlplane_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// plane is shared by the package's tests; each uses names of its own.
var plane *controlplane.Plane

func TestMain(m *testing.M) {
	os.Exit(leaks.Apart(func() int { return run(m) }))
}

func run(m *testing.M) int {
	var err error
	if plane, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Stop()
	return m.Run()
}

// newClient is an admin's client that knows Skep's kinds.
func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(plane.Config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newScheme knows Kubernetes' kinds and Skep's.
func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
