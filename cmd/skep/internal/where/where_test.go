package where

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/nodemode"
)

// kubeconfig names a cluster.
const kubeconfigFile = `apiVersion: v1
kind: Config
current-context: admin@a
clusters: [{name: kind-a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: admin, user: {}}]
contexts: [{name: admin@a, context: {cluster: kind-a, user: admin, namespace: team}}, {name: other, context: {cluster: kind-b, user: admin}}]
`

// machine is a machine with a state folder and a home.
type machine struct{ state, home string }

// newMachine has a state folder with the files, and a kubeconfig if it should.
func newMachine(t *testing.T, kubeconfig bool, files ...string) machine {
	t.Helper()
	dir := t.TempDir()
	m := machine{filepath.Join(dir, "state"), filepath.Join(dir, "home")}
	write := func(path, body string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		write(filepath.Join(m.state, name), "")
	}
	t.Setenv("KUBECONFIG", filepath.Join(m.home, "config"))
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if kubeconfig {
		write(filepath.Join(m.home, "config"), kubeconfigFile)
	}
	return m
}

// choose is the place that a command of the name asks on the machine, whose state folder is the default one.
func (m machine) choose(name string, args ...string) (place string, err error) {
	var f Flags
	root := &cobra.Command{Use: "skep", SilenceErrors: true, SilenceUsage: true, Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: name}}
	cmd := &cobra.Command{Use: "status", RunE: func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed(stateFlag) {
			f.State = m.state
		}
		cluster, err := f.Cluster(cmd)
		if place = "host"; cluster {
			place = f.Kube.Describe()
		}
		return err
	}}
	f.Register(cmd)
	f.RegisterNode(cmd, "node")
	root.AddCommand(cmd)
	root.SetArgs(append([]string{"status"}, args...))
	return place, root.Execute()
}

func TestAPlaceIsChosen(t *testing.T) {
	const socket, left, cluster = nodemode.SocketName, nodemode.LeftName, "cluster kind-a, context admin@a"
	for sentence, c := range map[string]struct {
		as         string
		kubeconfig bool
		files      []string
		args       []string
		place      string
		err        []string
	}{
		"kubectl's plug-in asks a cluster": {as: "kubectl skep", kubeconfig: true, files: []string{socket}, place: cluster},
		"a state folder is this host's":    {kubeconfig: true, args: []string{"--state", "elsewhere"}, place: "host"},
		"this host is named":               {kubeconfig: true, args: []string{"--host"}, place: "host"},
		"a context is a cluster's": {kubeconfig: true, files: []string{socket}, args: []string{"--context", "other"},
			place: "cluster kind-b, context other"},
		"a namespace is a cluster's":     {kubeconfig: true, files: []string{socket}, args: []string{"-n", "team"}, place: cluster},
		"a node is a cluster's":          {kubeconfig: true, files: []string{socket}, args: []string{"--node", "a"}, place: cluster},
		"another user is a cluster's":    {kubeconfig: true, files: []string{socket}, args: []string{"--as", "jane"}, place: cluster},
		"all namespaces are a cluster's": {kubeconfig: true, files: []string{socket}, args: []string{"-A"}, place: cluster},
		"a server is a cluster":          {args: []string{"-s", "https://10.0.0.1"}, place: "cluster https://10.0.0.1"},
		"another server than the context's": {kubeconfig: true, args: []string{"--server=https://10.0.0.1", "--context", "other"},
			place: "cluster https://10.0.0.1, context other"},
		"this host has a socket, and there is a cluster":  {kubeconfig: true, files: []string{socket}, place: "host"},
		"skep run ended on this host, which has a config": {kubeconfig: true, files: []string{left}, place: "host"},
		"this host has nothing, and there is a cluster":   {kubeconfig: true, place: cluster},
		"there is neither": {err: []string{
			"status: there is no skep run on this host (no file ", "/state/skep.sock), and no kubeconfig names a cluster", "--state", "--kubeconfig"}},
		"a host and a cluster are named": {kubeconfig: true, args: []string{"--state", "x", "--context", "other"}, err: []string{
			"status: --state names this host, and --context a cluster: give one of them"}},
		"the plug-in is to ask this host": {as: "kubectl skep", args: []string{"--host"}, err: []string{
			"status: kubectl skep asks a cluster, and --host names this host: use skep instead of kubectl skep"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			as := c.as
			if as == "" {
				as = "skep"
			}
			place, err := newMachine(t, c.kubeconfig, c.files...).choose(as, c.args...)
			if (err != nil) != (c.err != nil) {
				t.Fatalf("%v, want %q", err, c.err)
			}
			if isNowhere := sentence == "there is neither"; errors.Is(err, ErrNowhere) != isNowhere {
				t.Errorf("%v: is that nothing can be asked: %t, want %t", err, !isNowhere, isNowhere)
			}
			for _, want := range c.err {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q in it", err, want)
				}
			}
			if err == nil && place != c.place {
				t.Errorf("it asks %s, want %s", place, c.place)
			}
		})
	}
}

// TestAHostThatRefusesIsNoReasonToAskACluster as another user than root.
func TestAHostThatRefusesIsNoReasonToAskACluster(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	m := newMachine(t, true, nodemode.SocketName)
	for _, dir := range []string{filepath.Dir(filepath.Dir(m.home)), filepath.Dir(m.home), m.home} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		// The thread ends with the goroutine, and its user with it.
		runtime.LockOSThread()
		if err := unix.Setfsuid(65534); err != nil {
			done <- err
			return
		}
		_, err := m.choose("skep")
		done <- err
	}()
	err := <-done
	for _, want := range []string{"status: the skep run of this host answers its own user", "skep.sock: permission denied", "--context"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
}

// TestAWrongFlagIsNoMissingKubeconfig: what is wrong is named, and --kubeconfig where that helps.
func TestAWrongFlagIsNoMissingKubeconfig(t *testing.T) {
	m := newMachine(t, true)
	for flag, helps := range map[string]bool{"--request-timeout=soon": false, "--context=none": false, "--kubeconfig=nowhere": true} {
		var f Flags
		cmd := &cobra.Command{}
		f.Register(cmd)
		if err := cmd.ParseFlags([]string{flag}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Kube.Load(); err == nil || strings.Contains(err.Error(), "name one by --kubeconfig") != helps {
			t.Errorf("%s in %s: %v", flag, m.home, err)
		}
	}
}

// TestThePlaceIsSaidToPeopleAlone: output for programs stays as it is.
func TestThePlaceIsSaidToPeopleAlone(t *testing.T) {
	for output, want := range map[string]string{"text": "host a b\n", "wide": "host a b\n", "json": "", "yaml": ""} {
		var out, aside bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetErr(&aside)
		if Say(cmd, output, "host a\nb"); aside.String() != want || out.Len() > 0 {
			t.Errorf("-o %s: it says %q and %q, want %q beside", output, &out, &aside, want)
		}
	}
}
