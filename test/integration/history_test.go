package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
)

// recorded waits until the newest version in the history of an application has a result.
func (c *cluster) recorded(app *v1alpha1.ClusterBpfApplication, version int64, result v1alpha1.VersionResult) v1alpha1.ApplicationVersion {
	c.t.Helper()
	c.until(fmt.Sprintf("version %d to be %s", version, result), func() error {
		if err := c.Get(c.t.Context(), client.ObjectKeyFromObject(app), app); err != nil {
			return err
		}
		if all := app.Status.History; len(all) == 0 || all[0].Version != version || all[0].Result != result {
			return fmt.Errorf("history is %+v", all)
		}
		return nil
	})
	return app.Status.History[0]
}

// sampled is an application whose variable has a value.
func sampled(app *v1alpha1.ClusterBpfApplication, value string) func() {
	return func() { app.Spec.Variables = map[string]apiextensionsv1.JSON{"sampling": {Raw: []byte(value)}} }
}

// TestAChangedVariableIsInTheHistory asks the API server, whose schema and events it passes.
func TestAChangedVariableIsInTheHistory(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.node("one", map[string]string{"role": "edge"})
	c.create(c.Signer("team-a"))
	ref, digest := c.Push("app:v1", programs.Object("xdp_count"), "team-a")
	app := fleet(ref)
	c.create(app)
	c.recorded(app, 1, v1alpha1.VersionAllowed)
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	first := c.recorded(app, 1, v1alpha1.VersionDeployed)

	c.change(app, sampled(app, "4242424"))
	c.recorded(app, 2, v1alpha1.VersionAllowed)
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	second := c.recorded(app, 2, v1alpha1.VersionDeployed)
	if first.Digest != digest || second.Digest != digest || fmt.Sprint(second.Changes) != "[variable sampling]" || second.Generation != app.Generation ||
		second.Serial != c.opened(app).VersionSerial() || second.SignedBy != "team-a" || second.Time.IsZero() {
		t.Errorf("it records %+v, then %+v", first, second)
	}
	e := c.told(app, "Updated")
	if want := "version 2: variable sampling changed; image digest same; loaded on 1 of 1 nodes"; e.Note != want || e.Type != "Normal" {
		t.Errorf("the event is %s %q, want %q", e.Type, e.Note, want)
	}
}

// TestEachLineOfTheControllerIsOfItsFormat starts the binary, whose libraries log, too, and reads all that it writes.
func TestEachLineOfTheControllerIsOfItsFormat(t *testing.T) {
	binary := command.Build(t, "skep-controller")
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			c := newCluster(t)
			c.node("one", map[string]string{"role": "edge"})
			c.create(c.Signer("team-a"))
			port := strconv.Itoa(freePort(t))
			p := c.process(binary, "--log-format="+format, "--leader-elect=true", "--metrics-address="+net.JoinHostPort("127.0.0.1", port))
			ref, digest := c.Push("app:v1", programs.Object("xdp_count"), "team-a")
			unsigned, _ := c.Push("app:v2", programs.Object("xdp_count_v2"))
			app := fleet(ref)
			c.create(app)
			c.recorded(app, 1, v1alpha1.VersionAllowed)
			c.answers("one", app, v1alpha1.NodeLoaded, "")
			c.recorded(app, 1, v1alpha1.VersionDeployed)
			c.change(app, func() { app.Spec.Bytecode.Image = unsigned })
			c.recorded(app, 2, v1alpha1.VersionDenied)
			c.told(app, "Denied")
			c.until("the controller to log what no client of https sends", func() error { return noTLS(t.Context(), port) })
			p.stop()
			lines := strings.Split(strings.TrimSpace(p.said.String()), "\n")
			for _, line := range lines {
				if err := isOf(format, line); err != nil {
					t.Errorf("%v: %s", err, line)
				}
			}
			for _, message := range []string{"application allowed", "sealed intent", "application deployed", "application denied"} {
				logged := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, message) })
				if len(logged) != 1 || !strings.Contains(logged[0], "generation") || !strings.Contains(logged[0], app.Name) ||
					!strings.Contains(logged[0], digest) && message != "application denied" {
					t.Errorf("%q is logged as %q", message, logged)
				}
			}
		})
	}
}

// noTLS sends a server of https something else, and waits for the end of the connection: net/http logs that.
func noTLS(ctx context.Context, port string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("no TLS, which takes more bytes than a line\r\n\r\n"))
	_, readErr := io.Copy(io.Discard, conn)
	return errors.Join(err, readErr, conn.Close())
}

// isOf says what is wrong with a line of a log of a format.
func isOf(format, line string) error {
	if format == "text" {
		if !strings.HasPrefix(line, "time=") || !strings.Contains(line, " level=") || !strings.Contains(line, " msg=") {
			return errors.New("no line of text")
		}
		return nil
	}
	var one struct{ Time, Level, Msg string }
	if err := json.Unmarshal([]byte(line), &one); err != nil {
		return err
	}
	if one.Time == "" || one.Level == "" || one.Msg == "" {
		return errors.New("it lacks time, level or msg")
	}
	return nil
}

// TestWideColumnsFitATerminal looks at what kubectl get -o wide shows, without the message of STATUS, which has no bound.
func TestWideColumnsFitATerminal(t *testing.T) {
	c := newCluster(t)
	c.control()
	c.node("one", map[string]string{"role": "edge"})
	c.create(c.Signer("team-a"))
	ref, digest := c.Push("app:v1.2.3", programs.Object("xdp_count"), "team-a")
	app := fleet(ref)
	c.create(app)
	c.recorded(app, 1, v1alpha1.VersionAllowed)
	c.answers("one", app, v1alpha1.NodeLoaded, "")
	c.recorded(app, 1, v1alpha1.VersionDeployed)
	shown := c.columns("clusterbpfapplications")
	if shown["Ready"] != "True" || shown["Loaded"] != "1/1" || shown["Version"] != "v1.2.3" || width(shown, "Status") > 90 {
		t.Errorf("an application is shown as %v", shown)
	}
	c.change(app, func() { app.Spec.Bytecode.Image = strings.TrimSuffix(ref, ":v1.2.3") + "@" + digest })
	c.until("the digest to name the version", func() error {
		if shown := c.columns("clusterbpfapplications"); shown["Version"] != digest[:len("sha256:")+12] {
			return fmt.Errorf("it is shown as %v", shown)
		}
		return nil
	})

	node := &v1alpha1.BpfNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	c.change(node, func() {
		node.Status.Agent.Version, node.Status.Kernel.Release = "v1.0.0-rc.1+0123456789ab", "6.12.0-101.gke-cos-amd64"
		node.Status.Counts.Pods = 1000
		node.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonApplicationsFailed,
			LastTransitionTime: metav1.Now()}}
	})
	// kubectl puts three blanks after each column but the last.
	if shown := c.columns("bpfnodes"); shown["Ready"] != "False" || shown["Version"] != node.Status.Agent.Version ||
		fmt.Sprint(shown["Pods"]) != "1000" || width(shown)-3 > 120 {
		t.Errorf("a node is shown as %v, %d wide", shown, width(shown))
	}
}

// width is how many columns of a terminal kubectl takes for a row, but for some of its columns.
func width(shown map[string]any, but ...string) (all int) {
	for name, cell := range shown {
		if !slices.Contains(but, name) {
			all += max(len(name), len(fmt.Sprint(cell))) + 3
		}
	}
	return all
}
