package nodemode

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/supply"
)

// TestASignatureThatIsHiddenUnloadsNothingWithoutAMemory has the remembered signatures lost and the signature hidden: the
// intent on disk says where it is.
func TestASignatureThatIsHiddenUnloadsNothingWithoutAMemory(t *testing.T) {
	s := newStage(t)
	s.policy("package skep.policy\n\ndeny contains \"not signed\" if count(input.signatures) == 0\n", v1alpha1.RunningUnload)
	ref := s.push(first, "app:v1", "team-a")
	s.define("app", ref)
	s.loaded("app")
	supply.HideSignature(t, ref)
	if err := os.RemoveAll(filepath.Join(s.state, "memory")); err != nil {
		t.Fatal(err)
	}
	h := s.open()
	if now := s.pass(h)["app"]; running(now) == 0 || isUnloaded(h, "app") {
		t.Errorf("it is unloaded: %+v", now)
	}
}
