package loader

import (
	"errors"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/need"
	"github.com/skep-dev/skep/test/harness/tasks"
)

func TestMain(m *testing.M) { tasks.Main(m) }

// tracer prepares a tracepoint program; what differs makes other revisions.
func tracer(t testing.TB, pid string) *Prepared {
	t.Helper()
	p, err := Prepare(opened(t, intent.Payload{
		Variables: map[string]apiextensionsv1.JSON{"only_pid": {Raw: []byte(pid)}},
		Programs:  []v1alpha1.Program{{Name: "tracepoint_count", Attach: []v1alpha1.Attachment{{Hook: "tracepoint", Tracepoint: "syscalls/sys_enter_getpgid"}}}},
	}), programs.Object("tracepoint_count"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func load(t testing.TB, p *Prepared, old *Revision) *Revision {
	t.Helper()
	r, _, err := Load(p, old, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestAVerifierErrorIsOneLineAndALog(t *testing.T) {
	need.Kernel(t)
	p, err := Prepare(opened(t, intent.Payload{Programs: program("xdp_rejected", "xdp", "")}), programs.Object("xdp_rejected"))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = Load(p, nil, nil, nil)
	var refused *LoadError
	if !errors.As(err, &refused) {
		t.Fatalf("Load = %v", err)
	}
	if strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "net/app") || !strings.Contains(err.Error(), "xdp_rejected") {
		t.Errorf("error = %q", err)
	}
	if lines := strings.Count(refused.Log, "\n"); lines < 3 || LogOf(err) != refused.Log {
		t.Errorf("the log has %d lines: %s", lines, refused.Log)
	}
}
