package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller"
	"github.com/skep-dev/skep/controller/cueartifact"
	"github.com/skep-dev/skep/test/fixture/programs"
)

// many is how many CueArtifacts are rendered at once.
const many = 200

// restInterval is how often each of them is looked at without an event.
const restInterval = 5 * time.Second

// crowd makes many CueArtifacts of one source, and waits until all are published.
func (f *flux) crowd(image string) {
	f.t.Helper()
	f.commit("src", "main@sha1:1", definitions(image, "one"))
	all := make([]*v1alpha1.CueArtifact, many)
	for i := range all {
		// Of different expressions, so that each is rendered.
		value := fmt.Sprintf("%d", i)
		all[i] = cueArtifact("apps-"+value, "src", func(s *v1alpha1.CueArtifactSpec) {
			s.Expressions, s.Path, s.Interval.Duration = []string{"_app & {metadata: name: \"app-" + value + "\"}"}, "apps", restInterval
		})
		f.create(all[i])
	}
	for _, o := range all {
		f.until(o.Name, func() error {
			if err := f.Get(f.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			if apps := o.Status.Applications; o.Status.Artifact == nil || len(apps) != 1 || apps[0].Allowed == metav1.ConditionUnknown {
				return fmt.Errorf("its status is %v", o.Status)
			}
			return nil
		})
	}
}

func TestManyCueArtifactsAtRestAskNothing(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	f.create(f.Signer("team-a"))
	var asked traffic
	f.render(func(o *controller.Options) {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.Wrap(asked.wrap)
		o.Cue.Concurrent = 4
	})
	began := time.Now()
	f.crowd(image)
	t.Logf("%d are published after %s", many, time.Since(began).Round(time.Millisecond))
	// What is under way ends.
	f.until("the last request", func() error {
		before := asked.spent()
		time.Sleep(restInterval)
		if got := asked.spent().since(before); got.Requests > 0 {
			return fmt.Errorf("%d requests", got.Requests)
		}
		return nil
	})
	before := asked.spent()
	// An absence has no condition to wait for: each is looked at twice meanwhile.
	time.Sleep(2*restInterval + time.Second)
	if got := asked.spent().since(before); got.Requests > 0 {
		t.Errorf("at rest there are %d requests, %d of them write", got.Requests, got.Writes)
	}
}

func TestAThousandDefinitionsInOnePackage(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	f.create(f.Signer("team-a"))
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("app-%04d", i)
	}
	f.commit("src", "main@sha1:1", definitions(image, names...))
	o := cueArtifact("apps", "src")
	f.create(o)
	began := time.Now()
	f.render()
	f.ready(o, "main@sha1:1")
	t.Logf("a thousand are published after %s", time.Since(began).Round(time.Millisecond))
	if got := strings.Count(func() string { _, content := f.announced(o); return content }(), "kind: ClusterBpfApplication\n"); got != len(names) {
		t.Errorf("the artifact has %d definitions", got)
	}
	f.until("all are evaluated", func() error {
		if err := f.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		for _, app := range o.Status.Applications {
			if app.Allowed == metav1.ConditionUnknown {
				return fmt.Errorf("%s: %s", app.Name, app.Message)
			}
		}
		return nil
	})
	t.Logf("and evaluated after %s", time.Since(began).Round(time.Millisecond))
	if n := len(o.Status.Applications); n != 500 {
		t.Errorf("the status lists %d", n)
	}
	if c := f.condition(o, v1alpha1.ConditionReady, metav1.ConditionTrue, cueartifact.ReasonPublished); !strings.Contains(c.Message, "1000 applications") {
		t.Errorf("Ready says %s", c.Message)
	}
}

func TestARestartWithoutItsFolderPublishesTheSame(t *testing.T) {
	f := newFlux(t)
	image, _ := f.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	f.create(f.Signer("team-a"))
	f.commit("src", "main@sha1:1", definitions(image, "one"))
	o := cueArtifact("apps", "src")
	f.create(o)
	stop := f.render()
	f.ready(o, "main@sha1:1")
	before, content := f.announced(o)
	stop()
	if err := os.RemoveAll(f.storage); err != nil {
		t.Fatal(err)
	}
	f.render()
	f.until("the archive is served again", func() error {
		after := f.external(o)
		if after.Status.Artifact.URL == before.Status.Artifact.URL {
			return fmt.Errorf("it is announced at %s", after.Status.Artifact.URL)
		}
		return nil
	})
	after, again := f.announced(o)
	if after.Status.Artifact.Revision != before.Status.Artifact.Revision || after.Status.Artifact.Digest != before.Status.Artifact.Digest || again != content {
		t.Errorf("it is %v, and was %v", after.Status.Artifact, before.Status.Artifact)
	}
}
