package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/skep-dev/skep/image"
	"github.com/skep-dev/skep/image/registry"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/need"
)

// BenchmarkResident reports the resident memory of skep run with ten
// applications loaded, read from /proc once it is at rest, and the memory that
// is its own rather than pages of its binary.
func BenchmarkResident(b *testing.B) {
	need.Kernel(b)
	const applications = 10
	dir := b.TempDir()
	client, err := registry.NewClient(registry.Options{})
	if err != nil {
		b.Fatal(err)
	}
	built, err := image.Build(programs.Object("tracepoint_count"), image.BuildOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := client.Push(b.Context(), "oci:"+dir+"/img:v1", built); err != nil {
		b.Fatal(err)
	}
	for _, d := range []string{"defs", "policies"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for i := range applications {
		write(b, filepath.Join(dir, "defs", fmt.Sprintf("%d.yaml", i)), fmt.Sprintf(
			"apiVersion: skep.dev/v1alpha1\nkind: ClusterBpfApplication\nmetadata: {name: app-%d}\nspec: {bytecode: {image: 'oci:%s/img:v1'}, programs: [{name: "+
				"tracepoint_count}]}\n", i, dir))
	}
	write(b, filepath.Join(dir, "policies", "any.rego"), "package skep.policy\n\ndeny contains \"never\" if false\n")
	pins := fmt.Sprintf("/sys/fs/bpf/skep-resident-%d", os.Getpid())
	b.Cleanup(func() { _ = os.RemoveAll(pins) })
	binary := command.Build(b, "skep")
	for b.Loop() {
		run := exec.CommandContext(b.Context(), binary, "run", "--source", dir+"/defs", "--policy", dir+"/policies", "--state", dir+"/state", "--bpffs", pins)
		if err := run.Start(); err != nil {
			b.Fatal(err)
		}
		for !loaded(b, binary, dir+"/state", applications) {
			<-time.After(50 * time.Millisecond)
		}
		m := command.MemoryOf(b, run.Process.Pid)
		b.ReportMetric(m.Resident, "MB-resident")
		b.ReportMetric(m.Peak, "MB-peak")
		b.ReportMetric(m.Own, "MB-own")
		if err := run.Process.Signal(os.Interrupt); err != nil {
			b.Fatal(err)
		}
		if err := run.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func write(b *testing.B, path, text string) {
	b.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

// loaded reports whether so many applications are ready.
func loaded(b *testing.B, binary, state string, want int) bool {
	var s struct {
		Applications []struct {
			Programs []struct{ ID uint32 }
		}
	}
	out, err := exec.CommandContext(b.Context(), binary, "status", "--state", state, "-o", "json").Output()
	if err != nil || json.Unmarshal(out, &s) != nil {
		return false
	}
	n := 0
	for _, a := range s.Applications {
		if len(a.Programs) == 1 && a.Programs[0].ID != 0 {
			n++
		}
	}
	return n == want
}
