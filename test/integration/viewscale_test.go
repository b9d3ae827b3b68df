package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/discovery"

	view "github.com/skep-dev/skep/api/view/v1alpha1"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/controlplane"
	"github.com/skep-dev/skep/test/harness/deployment"
)

// BenchmarkViewMemory measures what view.skep.dev costs a controller: its memory in MB amid agents of which each runs an application
// with a hundred attachments, without the API, and how much more with it: when all have just begun to poll, the most while kubectl
// lists all attachments by pages of 500, and after that.
func BenchmarkViewMemory(b *testing.B) {
	const attachments = 100
	for _, nodes := range []int{100, 500, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				without := newViewScale(b, nodes, attachments, false).atRest()
				with := newViewScale(b, nodes, attachments, true)
				rest, began := with.atRest(), time.Now()
				n, most := with.lists()
				if n != nodes*attachments {
					b.Fatalf("%d attachments are listed", n)
				}
				b.ReportMetric(time.Since(began).Seconds(), "s/list")
				for unit, mb := range map[string]float64{"begun": rest, "listing": most, "listed": with.atRest()} {
					b.ReportMetric(mb-without, "more-MB/"+unit)
				}
				b.ReportMetric(without, "MB")
			}
		})
	}
}

// viewScale is a scale whose agents have a connection to the controller.
type viewScale struct {
	*scale
	// reads asks the API server as an administrator.
	reads *mapsWorld
}

// newViewScale starts a controller, which serves view.skep.dev where that is asked for, and agents that run an application.
func newViewScale(b *testing.B, nodes, attachments int, serves bool) *viewScale {
	b.Helper()
	plane, err := controlplane.Start(b.Context(), controlplane.Options{Flags: frontProxy(b, filepath.Join(b.TempDir(), "audit.log"))})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = plane.Stop() })
	var at [3]netip.AddrPort
	for i := range at {
		free, err := deployment.Free(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		at[i] = netip.MustParseAddrPort(free)
	}
	webhook, mirrors, apis := at[0], at[1], at[2]
	flags := []string{fmt.Sprintf("--webhook-port=%d", webhook.Port()), "--certificate-name=127.0.0.1," + mapsHost, "--mirror-address=" + mirrors.String()}
	w := &mapsWorld{cluster: newClusterOn(b, plane), address: apis.String(), mirror: "https://" + mirrors.String()}
	w.installs("rbac.yaml")
	if serves {
		flags = append(flags, "--view", "--api-address="+apis.String())
		w.aggregate()
	}
	s := &viewScale{newScaleOn(b, w.cluster, nodes, flags...), w}
	s.starts(func(folder string, o *orders) { s.joins(folder, o, attachments) })
	ref, _ := s.Push("app:v1", programs.Object("tracepoint_count"), "team-a")
	app := application("app", ref)
	app.Spec.Rollout = nil
	s.create(app)
	s.until("all nodes to run it", func() error { return s.areReady(1) })
	if serves {
		s.until("the API to be served", func() error {
			if code, body := w.read(plane.Config, viewBase); code != http.StatusOK {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	return s
}

// joins has agents ask the controller for requests, each with the token of its node.
func (s *viewScale) joins(folder string, o *orders, attachments int) {
	var authority []byte
	s.until("the mirror's certificate to be published", func() (err error) {
		authority, err = sealing.Published(s.b.Context(), s.Client, "default", sealing.MirrorCA)
		return errors.Join(err, missing("authorities", len(authority)))
	})
	o.Mirror, o.Authority, o.Attachments = s.reads.mirror, filepath.Join(folder, "ca.crt"), attachments
	if err := os.WriteFile(o.Authority, authority, 0o600); err != nil {
		s.b.Fatal(err)
	}
	for i := range o.Nodes {
		node := fmt.Sprintf("node-%d", i)
		if err := os.WriteFile(filepath.Join(folder, node+".token"), []byte(s.tokenOn(node)), 0o600); err != nil {
			s.b.Fatal(err)
		}
	}
}

// atRest is what the controller has in memory when nothing happens.
func (s *viewScale) atRest() float64 {
	s.b.Helper()
	s.rests()
	return command.MemoryOf(s.b, s.controller.Process.Pid).Own
}

// lists reads all attachments by pages as kubectl does, and returns how many there are and the most memory that the controller had at
// the end of a page.
func (s *viewScale) lists() (n int, most float64) {
	s.b.Helper()
	asks, err := discovery.NewDiscoveryClientForConfig(s.plane.Config)
	if err != nil {
		s.b.Fatal(err)
	}
	for next := ""; ; {
		body, err := asks.RESTClient().Get().AbsPath(viewBase, "clusterbpfattachments").Param("limit", "500").Param("continue", next).DoRaw(s.b.Context())
		if err != nil {
			s.b.Fatal(err)
		}
		var page view.BpfAttachmentList
		if err := json.Unmarshal(body, &page); err != nil {
			s.b.Fatal(err)
		}
		n += len(page.Items)
		most = max(most, command.MemoryOf(s.b, s.controller.Process.Pid).Own)
		if next = page.Continue; next == "" {
			return n, most
		}
	}
}
