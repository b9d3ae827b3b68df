package csi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/skep-dev/skep/agent/readers/csi"
	"github.com/skep-dev/skep/test/harness/await"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// report is what the suite reports of its tests, as Ginkgo writes it.
type report []struct {
	SpecReports []struct {
		ContainerHierarchyTexts []string
		LeafNodeType            string
		LeafNodeText            string
		State                   string
		Failure                 struct{ Message string }
	}
}

// TestTheSuiteOfTheSpecification runs csi-sanity, which tools.mod pins. Of a plug-in for ephemeral volumes of a node it can test what needs
// no volume that a controller made: the services Identity and Node.
func TestTheSuiteOfTheSpecification(t *testing.T) {
	need.Root(t)
	binary, err := command.Cached(t.Context(), "-modfile=tools.mod", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity")
	if err != nil {
		t.Fatal(err)
	}
	kubelet, scratch := t.TempDir(), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	p := csi.New(csi.Options{Driver: csi.Skep, Kubelet: kubelet, Node: "node1", Version: "v1", Volumes: &fake{}, Log: slog.New(slog.DiscardHandler)})
	go func() { done <- p.Serve(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	socket := filepath.Join(kubelet, "plugins", csi.Skep.Name, "csi.sock")
	await.True(t, "the plug-in", time.Minute, func() bool { _, err := os.Stat(socket); return err == nil })

	to := filepath.Join(scratch, "report.json")
	cmd := exec.CommandContext(t.Context(), binary, "--csi.endpoint=unix://"+socket, "--csi.mountdir="+filepath.Join(scratch, "mount"),
		"--csi.stagingdir="+filepath.Join(scratch, "staging"), "--ginkgo.focus=Identity Service|Node Service", "--ginkgo.skip=should remove target path",
		"--ginkgo.json-report="+to)
	out, failed := cmd.CombinedOutput()
	raw, err := os.ReadFile(to)
	var all report
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passed := 0
	for _, suite := range all {
		for _, s := range suite.SpecReports {
			switch name := append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText); {
			case s.LeafNodeType != "It":
			case s.State == "passed":
				passed++
			case s.Failure.Message != "":
				// Such as: Controller Service not provided.
				t.Logf("%s: %q: %s", s.State, name, s.Failure.Message)
			}
		}
	}
	t.Logf("%d passed", passed)
	if failed != nil || passed < 10 {
		t.Errorf("%d passed: %v\n%s", passed, failed, out)
	}
}
