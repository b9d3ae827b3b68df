package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"
)

// plugin is what plugin.yaml says, in the fields that Skep uses.
type plugin struct {
	Spec struct {
		Discover struct {
			FileName string `json:"fileName"`
		} `json:"discover"`
		Generate   commanded `json:"generate"`
		Parameters struct {
			Dynamic commanded `json:"dynamic"`
		} `json:"parameters"`
	} `json:"spec"`
}

type commanded struct {
	Command []string `json:"command"`
}

// sidecar runs the commands of the plugin as Argo CD's server of plugins does beside it: in the
// folder of the application, with its environment, as a user without rights.
type sidecar struct {
	plugin
	path, folder string
}

// readPlugin reads a file of what users of Argo CD take.
func readPlugin(t *testing.T, name string, into any) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("../../examples/argocd/plugin", name))
	if err == nil {
		err = yaml.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// argoRepository is what is in git.
const argoRepository = `
-- cue.mod/module.cue --
module: "example.com/fleet"
language: version: "v0.14.0"
-- counter/counter.cue --
package counter

// Interface to count on.
_interface: *"eth0" | string @tag(interface)

app: {
	apiVersion: "skep.dev/v1alpha1"
	kind:       "BpfApplication"
	metadata: name: "counter"
	spec: {
		bytecode: image: "registry.example.com/counter:v1"
		programs: [{name: "count", attach: [{hook: "xdp", pods: {}, interfaces: names: [_interface]}]}]
	}
}
-- broken/broken.cue --
package broken

app: {apiVersion: "skep.dev/v1alpha1", kind: "BpfApplication", metadata: name: "a", spec: programs: 7}
-- yaml/app.yaml --
kind: ConfigMap
`

func newSidecar(t *testing.T) sidecar {
	t.Helper()
	folder := t.TempDir()
	s := sidecar{path: filepath.Join(folder, "bin"), folder: filepath.Join(folder, "repository")}
	for _, f := range txtar.Parse([]byte(argoRepository)).Files {
		name := filepath.Join(s.folder, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// testscript.Main has put this binary on PATH under that name.
	skep, err := exec.LookPath("skep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(s.path, os.DirFS(filepath.Dir(skep))); err != nil {
		t.Fatal(err)
	}
	// Every user may enter them.
	for _, one := range []string{folder, filepath.Dir(folder)} {
		if err := os.Chmod(one, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	readPlugin(t, "plugin.yaml", &s.plugin)
	return s
}

// run runs one of the commands for an application in a folder of the repository.
func (s sidecar) run(t *testing.T, c commanded, folder string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.path, c.Command[0]), c.Command[1:]...)
	cmd.Dir = filepath.Join(s.folder, folder)
	cmd.Env = slices.Concat(env, []string{"PATH=" + s.path, "ARGOCD_APP_NAME=counter", "ARGOCD_APP_NAMESPACE=team-a", "ARGOCD_APP_REVISION=3f2c1e",
		"ARGOCD_APP_SOURCE_PATH=" + folder, "ARGOCD_ENV_CLUSTER=edge"})
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 999, Gid: 999}}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return stderr.String(), err
	}
	return string(out), nil
}

func TestThePluginRendersWithParameters(t *testing.T) {
	s := newSidecar(t)
	for folder, want := range map[string]bool{"counter": true, "broken": true, "yaml": false} {
		found, err := filepath.Glob(filepath.Join(s.folder, folder, s.Spec.Discover.FileName))
		if err != nil || len(found) > 0 != want {
			t.Errorf("%s is found by %v, %v", folder, found, err)
		}
	}

	out, err := s.run(t, s.Spec.Parameters.Dynamic, "counter")
	if err != nil {
		t.Fatal(err, out)
	}
	var announced []map[string]string
	if err := json.Unmarshal([]byte(out), &announced); err != nil {
		t.Fatal(err, out)
	}
	want := []map[string]string{{"name": "interface", "title": "interface", "tooltip": "Interface to count on.", "itemType": "string", "string": "eth0"}}
	if diff := gocmp.Diff(want, announced); diff != "" {
		t.Errorf("announced (-want +got):\n%s", diff)
	}

	for parameters, name := range map[string]string{
		"null":                                   "eth0",
		`[{"name":"interface","string":"net1"}]`: "net1",
	} {
		out, err := s.run(t, s.Spec.Generate, "counter", "ARGOCD_APP_PARAMETERS="+parameters)
		if err != nil {
			t.Fatal(err, out)
		}
		var app struct {
			Kind string
			Spec struct {
				Programs []struct {
					Attach []struct{ Interfaces struct{ Names []string } }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(out), &app); err != nil {
			t.Fatal(err)
		}
		if got := app.Spec.Programs[0].Attach[0].Interfaces.Names; app.Kind != "BpfApplication" || got[0] != name {
			t.Errorf("parameters %s render\n%s", parameters, out)
		}
	}
}

// TestThePluginFailsOverWhatIsBroken is why Argo CD then prunes nothing.
func TestThePluginFailsOverWhatIsBroken(t *testing.T) {
	s := newSidecar(t)
	said, err := s.run(t, s.Spec.Generate, "broken", "ARGOCD_APP_PARAMETERS=null")
	if err == nil || !strings.Contains(said, "broken.cue:3:") {
		t.Errorf("it ends with %v and says %s", err, said)
	}
	said, err = s.run(t, s.Spec.Generate, "counter", `ARGOCD_APP_PARAMETERS=[{"name":"interfaces","string":"net1"}]`)
	if err == nil || !strings.Contains(said, "no file has a place for the tag interfaces") {
		t.Errorf("it ends with %v and says %s", err, said)
	}
}

// TestTheSidecarRunsThePlugin holds the patch to what Argo CD's server of plugins demands.
func TestTheSidecarRunsThePlugin(t *testing.T) {
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Command         []string
						SecurityContext struct{ RunAsUser int64 }
						VolumeMounts    []struct{ Name, MountPath string }
					}
					Volumes []struct{ Name string }
				}
			}
		}
	}
	readPlugin(t, "sidecar.yaml", &deployment)
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if c.Command[0] != "/var/run/argocd/argocd-cmp-server" || c.SecurityContext.RunAsUser != 999 {
		t.Errorf("it runs %v as %d", c.Command, c.SecurityContext.RunAsUser)
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = m.Name
	}
	want := map[string]string{"/var/run/argocd": "var-files", "/home/argocd/cmp-server/plugins": "plugins",
		"/home/argocd/cmp-server/config/plugin.yaml": "skep-plugin", "/tmp": "skep-tmp"}
	if diff := gocmp.Diff(want, mounted); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	// The other two are the repository server's.
	if got := pod.Volumes[0].Name + " " + pod.Volumes[1].Name; got != "skep-plugin skep-tmp" {
		t.Errorf("volumes are %s", got)
	}
}
