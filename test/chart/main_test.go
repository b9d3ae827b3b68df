package chart

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/leaks"
)

// plane is shared by the package's tests; nothing of Skep's is in it but what
// the chart brings.
var (
	plane *controlplane.Plane
	admin client.Client
)

func TestMain(m *testing.M) { os.Exit(leaks.Run(func() int { return run(m) })) }

func run(m *testing.M) int {
	ctx := context.Background()
	var err error
	if plane, err = controlplane.Start(ctx, controlplane.Options{WithoutCRDs: true}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer plane.Stop()
	scheme, err := controller.Scheme()
	if err == nil {
		admin, err = client.New(plane.Config, client.Options{Scheme: scheme})
	}
	if err == nil {
		err = admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
