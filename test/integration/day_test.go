package integration

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/await"
)

// guards has the cluster run a firewall and a counter behind it on eth0, of which packets to port 9 are dropped, and a program that the
// verifier rejects. Since then, the firewall's port has changed.
func (w *mapsWorld) guards() {
	w.t.Helper()
	onEth0 := func(name, object, program string, priority int32) *v1alpha1.ClusterBpfApplication {
		ref, _ := w.Push(name+":v1", programs.Object(object), "team-a")
		app := fleet(ref)
		app.Name, app.Spec.Programs[0].Name, app.Spec.Programs[0].Attach[0].Priority = name, program, &priority
		w.create(app)
		return app
	}
	guard := onEth0("guard", "xdp_drop_port", "drop_port", 100)
	w.summary(guard, "1/1")
	w.summary(onEth0("meter", "xdp_count", "count_packets", 500), "1/1")
	onEth0("reader", "xdp_rejected", "xdp_rejected", 600)
	w.node.send(20)
	w.change(guard, func() { guard.Spec.Variables = map[string]apiextensionsv1.JSON{"port": {Raw: []byte("80")}} })
	w.recorded(guard, 2, v1alpha1.VersionDeployed)
	w.node.send(7)
}

// shows runs kubectl's plug-in until it prints what is wanted, at least once: the clock of cost measures once in 15 seconds.
func shows(t *testing.T, config *rest.Config, wants []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := await.Until(ctx, time.Second, func() error {
		stdout, stderr, code := plugin(t, config, args...)
		for _, want := range wants {
			if code != 0 || !strings.Contains(squeezed(stdout), want) {
				return fmt.Errorf("exit code %d, want %q in\n%s%s", code, want, stderr, stdout)
			}
		}
		t.Logf("$ kubectl skep %s\n%s%s", strings.Join(args, " "), stderr, stdout)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// squeezed has one space where a table has many.
func squeezed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

// day asks the five questions of a person's day, each by at most two commands.
func (w *mapsWorld) day(t *testing.T, editor, operator *rest.Config) {
	w.guards()
	on := "--node=" + w.node.name
	for question, q := range map[string]struct {
		as    *rest.Config
		asks  string
		wants []string
	}{
		"who attached this to eth0": {operator, "chain eth0 " + on,
			[]string{"\n1 100 guard drop_port Pass ", " Drop 20, Pass ", "\n2 500 meter count_packets Pass "}},
		"who else":                {operator, "inventory " + on, []string{"skep_xdp_chain xdp@eth0 skep guard,meter"}},
		"why did my packets stop": {w.plane.Config, "explain guard", []string{w.node.name + " drop_port xdp eth0 Attached 1 of 2 ", " Drop 20, Pass "}},
		"which failed":            {w.plane.Config, "status", []string{"reader False", "guard True"}},
		"why":                     {w.plane.Config, "explain reader", []string{w.node.name + " Failed", "; return data[64] ? XDP_PASS : XDP_DROP;"}},
		"what does it cost":       {operator, "top --once " + on, []string{"xdp@eth0 skep_xdp_chain guard +1"}},
		"what changed":            {w.plane.Config, "history guard", []string{"team-a variable port", "Deployed"}},
	} {
		t.Run(question, func(t *testing.T) { shows(t, q.as, q.wants, strings.Fields(q.asks)...) })
	}
	w.dayOfTenant(t, editor, on)
	w.dumpsTenant(t, editor)
	w.choosesCluster(t, editor)
}

// dayOfTenant asks as a user with the role edit in team-a, who sees nothing of others.
func (w *mapsWorld) dayOfTenant(t *testing.T, editor *rest.Config, on string) {
	const mine = "team-a/exec-snoop"
	for question, q := range map[string]struct {
		asks  string
		wants []string
		fails bool
	}{
		"what runs": {"status -n team-a", []string{mine + " "}, false},
		"what runs where it may not look": {"status", []string{"no application in namespace default",
			"some are not shown: it needs the right to list bpfapplications.skep.dev in namespace default"}, false},
		"all about it":           {"explain " + mine, []string{"BpfApplication " + mine, w.node.name + " snoop tracepoint"}, false},
		"what changed":           {"history " + mine, []string{"VERSION AGO RESULT"}, false},
		"what it costs":          {"top --once " + mine, []string{"MEMORY"}, false},
		"not the cluster's":      {"explain guard", []string{"needs the right"}, true},
		"not another team's":     {"explain team-b/exec-snoop", []string{"needs the right to get bpfapplications.skep.dev exec-snoop in namespace team-b"}, true},
		"nor its history":        {"history team-b/exec-snoop", []string{"needs the right"}, true},
		"no interface of a node": {"chain " + on, []string{"needs the right to get nodeviews.view.skep.dev"}, true},
		"no program of a node":   {"inventory " + on, []string{"needs the right to get nodeviews.view.skep.dev"}, true},
		"no cost of a node":      {"top --once " + on, []string{"needs the right to get nodeviews.view.skep.dev"}, true},
		"no cost of another's":   {"top --once team-b/exec-snoop", []string{"needs the right"}, true},
		"as JSON":                {"explain -o json " + mine, []string{`"name": "exec-snoop"`}, false},
	} {
		t.Run("by an editor: "+question, func(t *testing.T) {
			stdout, stderr, code := plugin(t, editor, strings.Fields(q.asks)...)
			all := squeezed(stderr + stdout)
			t.Log(stderr + stdout)
			if (code != 0) != q.fails {
				t.Errorf("exit code %d", code)
			}
			for _, want := range q.wants {
				if !strings.Contains(all, want) {
					t.Errorf("it lacks %q", want)
				}
			}
			// What was asked for is named in errors.
			others := strings.ReplaceAll(all, q.asks[strings.LastIndex(q.asks, " ")+1:], "")
			for _, not := range []string{"guard", "meter", "reader", "drop_port", "count_packets", "data[64]"} {
				if strings.Contains(others, not) {
					t.Errorf("it has %q", not)
				}
			}
			if !q.fails && strings.Contains(all, "team-b") {
				t.Error("it names another team")
			}
		})
	}
}

// dumpsTenant has the editor write a bug report, which has nothing of others either.
func (w *mapsWorld) dumpsTenant(t *testing.T, editor *rest.Config) {
	t.Run("by an editor: a bug report", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "dump.tar.gz")
		if stdout, stderr, code := plugin(t, editor, "sysdump", "-n", "team-a", "-o", file); code != 0 || stdout != file+"\n" {
			t.Fatalf("exit code %d: %s%s", code, stdout, stderr)
		}
		all, err := exec.CommandContext(t.Context(), "tar", "xzOf", file).CombinedOutput()
		if err != nil || !strings.Contains(string(all), `"namespace": "team-a"`) || !strings.Contains(string(all), `"state": "NoPods"`) {
			t.Errorf("%v: it lacks the application or its attachment:\n%s", err, all)
		}
		for _, not := range []string{"guard", "drop_port", "count_packets", "data[64]", "team-b"} {
			if at := bytes.Index(all, []byte(not)); at >= 0 {
				t.Errorf("it has %q: …%s…", not, all[max(0, at-200):min(len(all), at+100)])
			}
		}
	})
}

// choosesCluster has two kubeconfigs of two clusters, and one user of both who may see one namespace of the first.
func (w *mapsWorld) choosesCluster(t *testing.T, editor *rest.Config) {
	t.Run("the context chooses the cluster", func(t *testing.T) {
		other := newCluster(t)
		app := &v1alpha1.ClusterBpfApplication{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}, Spec: fleet("r.example.com/elsewhere:v1").Spec}
		other.create(app)
		var files []string
		for name, config := range map[string]*rest.Config{"here": w.plane.Config, "there": other.plane.Config} {
			file := clientcmdapi.NewConfig()
			file.Clusters[name+"-cluster"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
			file.AuthInfos[name+"-admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
			file.Contexts[name] = &clientcmdapi.Context{Cluster: name + "-cluster", AuthInfo: name + "-admin"}
			if name == "here" {
				file.CurrentContext = name
				file.AuthInfos["editor"] = &clientcmdapi.AuthInfo{ClientCertificateData: editor.CertData, ClientKeyData: editor.KeyData}
				file.Contexts["team"] = &clientcmdapi.Context{Cluster: "here-cluster", AuthInfo: "editor", Namespace: "team-a"}
				file.Contexts["foreign"] = &clientcmdapi.Context{Cluster: "there-cluster", AuthInfo: "editor"}
			}
			files = append(files, filepath.Join(t.TempDir(), name))
			if err := clientcmd.WriteToFile(*file, files[len(files)-1]); err != nil {
				t.Fatal(err)
			}
		}
		kubeconfig := strings.Join(files, string(filepath.ListSeparator))
		const rejected = "cluster there-cluster, context foreign does not accept your credentials"
		for args, c := range map[string]struct {
			has, lacks []string
			code       int
		}{
			"status":                            {[]string{"cluster here-cluster, context here\n", "\nguard"}, []string{"elsewhere"}, 0},
			"status --context there":            {[]string{"cluster there-cluster, context there\n", "\nelsewhere"}, []string{"guard"}, 0},
			"explain elsewhere --context there": {[]string{"cluster there-cluster, context there\n", "view.skep.dev"}, []string{"guard"}, 0},
			"status --context team": {[]string{"\nteam-a/exec-snoop ", "some are not shown: it needs the right to list clusterbpfapplications.skep.dev\n",
				"some are not shown: it needs the right to list bpfapplications.skep.dev in every namespace\n"}, []string{"guard", "team-b"}, 0},
			"status -A --context team":          {[]string{"\nteam-a/exec-snoop ", " in every namespace\n"}, []string{"guard", "team-b"}, 0},
			"explain exec-snoop --context team": {[]string{"BpfApplication team-a/exec-snoop\n", " snoop "}, []string{"guard", "team-b"}, 0},
			// The second cluster does not know who signed the editor's certificate.
			"status --context foreign":        {[]string{rejected}, []string{"elsewhere", "right to"}, 2},
			"top elsewhere --context foreign": {[]string{rejected}, []string{"right to"}, 2},
		} {
			stdout, stderr, code := pluginBy(t, kubeconfig, strings.Fields(args)...)
			all := stderr + stdout
			t.Log(all)
			has := func(text string) bool { return strings.Contains(all, text) }
			lacks := func(text string) bool { return !has(text) }
			if code != c.code || slices.ContainsFunc(c.has, lacks) || slices.ContainsFunc(c.lacks, has) {
				t.Errorf("%q: exit code %d, want %q and not %q in\n%s", args, code, c.has, c.lacks, all)
			}
		}
	})
}
