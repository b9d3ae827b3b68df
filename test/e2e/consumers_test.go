package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/skep-dev/skep/examples"
)

// consumer is an example with a user space of its own, which runs on each node in a namespace that enforces the Pod Security
// Standard restricted.
type consumer struct {
	// name is the example's, and object its object.
	name, object string
	// namespace has the DaemonSet, which is named as the example is.
	namespace string
}

// The examples that are of the shape of NetObserv's agent and of the Ingress Node Firewall.
var (
	flowAgent    = consumer{"flow-agent", "flow_agent.bpf.o", "flows"}
	nodeFirewall = consumer{"node-firewall", "node_firewall.bpf.o", "firewall"}
	// exporter is the Deployment of the page on readers, which its walk starts.
	exporter = consumer{name: "exporter", namespace: "monitoring"}
)

// flows are what the flow-agent sees, and rules what the node-firewall does.
type (
	flows struct {
		Generation                           uint64
		Flows, Packets, DNSMessages, Records uint64
		Counters                             map[string]uint64
		Filters                              map[string]uint32
		Errors                               string
	}
	rules struct {
		Generation uint64
		Networks   int
		Rules      map[string]struct {
			Allowed, Denied uint64
			Last            string
		}
		Events uint64
		Errors string
	}
)

// consumers starts both, as their folders have it but for how often they look.
func (n *node) consumers() {
	n.t.Helper()
	for _, c := range []consumer{flowAgent, nodeFirewall} {
		image := "registry.example.com/examples/" + c.name + ":v1"
		for _, name := range []string{c.object, "app.yaml", "daemonset.yaml"} {
			body, err := examples.FS.ReadFile(c.name + "/" + name)
			if err != nil {
				n.t.Fatal(err)
			}
			n.file("consumers/"+c.name+"/"+name, strings.ReplaceAll(string(body), "-every=1s", "-every=50ms"))
		}
		n.run("skep", "image", "build", "-f", n.path("consumers/"+c.name+"/"+c.object), image)
		n.run("skep", "sign", "--key", n.path("home/cluster/release.key"), image)
		n.must("apply", "--filename", n.path("consumers/"+c.name+"/daemonset.yaml"))
		n.must("apply", "--filename", n.path("consumers/"+c.name+"/app.yaml"))
	}
}

// sees reads what a consumer said last, as JSON.
func (c consumer) sees(n *node, into any) error {
	out, err := n.kubectl("logs", "--namespace="+c.namespace, "daemonset/"+c.name, "--tail=1")
	if err == nil {
		err = json.Unmarshal([]byte(strings.TrimSpace(out)), into)
	}
	return err
}

// pod is the consumer's pod, by its UID, and how often its container was started again.
func (c consumer) pod(n *node) string {
	n.t.Helper()
	return n.field("{.items[*].metadata.uid} {.items[*].status.containerStatuses[0].restartCount}", "pods", "--namespace="+c.namespace)
}

// some are how many packets each kind gets at a time.
const some = 40

// Ports: rule 1 of the node-firewall denies packets to the first, and rule 2 allows those to the second.
const deniedPort, allowedPort = 4242, 4243

// consume sends packets, and holds both consumers to see them and the node to get only those that the rules allow. It returns what
// both saw then.
func (n *node) consume() (f flows, r rules) {
	n.t.Helper()
	n.until("the flow-agent to see without an error", func() error {
		f = flows{}
		if err := flowAgent.sees(n, &f); err != nil {
			return err
		}
		if want := map[string]uint32{"0.0.0.0/0": 1, "127.0.0.0/8": 0}; f.Errors != "" || fmt.Sprint(f.Filters) != fmt.Sprint(want) {
			return fmt.Errorf("it sees %+v", f)
		}
		return nil
	})
	n.until("the node-firewall to have its rules in the table", func() error {
		r = rules{}
		if err := nodeFirewall.sees(n, &r); err != nil {
			return err
		}
		if r.Errors != "" || r.Networks != 2 {
			return fmt.Errorf("it sees %+v", r)
		}
		return nil
	})
	denied, allowed := n.listen(deniedPort), n.listen(allowedPort)
	for _, port := range []int{deniedPort, allowedPort, 53} {
		n.sendToPort(port, some)
	}
	n.until("the node-firewall to count and to take what it dropped", func() error {
		var now rules
		if err := nodeFirewall.sees(n, &now); err != nil {
			return err
		}
		drops, passes := now.Rules["1"].Denied-r.Rules["1"].Denied, now.Rules["2"].Allowed-r.Rules["2"].Allowed
		if now.Errors != "" || drops != some || passes != some || now.Events-r.Events != some || now.Rules["1"].Last != outside {
			return fmt.Errorf("it sees %+v, and saw %+v", now, r)
		}
		r = now
		return nil
	})
	if got := denied(); got != 0 {
		n.t.Errorf("%d of %d packets came to port %d, which a rule denies", got, some, deniedPort)
	}
	if got := allowed(); got != some {
		n.t.Errorf("%d of %d packets came to port %d", got, some, allowedPort)
	}
	n.until("the flow-agent to see all flows", func() error {
		var now flows
		if err := flowAgent.sees(n, &now); err != nil {
			return err
		}
		// Those that were dropped are no flows: the firewall is before it. Two packets may have one port of their own, and one flow.
		more := now.Flows - f.Flows
		if now.Errors != "" || more <= some || more > 2*some || now.Packets-f.Packets != 2*some || now.DNSMessages-f.DNSMessages != some ||
			now.Records-f.Records != more || now.Counters["filterAccept"]-f.Counters["filterAccept"] != 2*some {
			return fmt.Errorf("it sees %+v, and saw %+v", now, f)
		}
		f = now
		return nil
	})
	return f, r
}

// sendToPort has the other machine send packets to a port, each from a port of its own.
func (n *node) sendToPort(port, count int) {
	n.t.Helper()
	n.run("ip", "netns", "exec", "outside", "bash", "-c", fmt.Sprintf("for ((i = 0; i < %d; i++)); do echo 01234567 >/dev/udp/%s/%d; done", count, address, port))
}

// listen counts the packets that come to a port until it is asked.
func (n *node) listen(port int) (count func() int) {
	n.t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address), Port: port})
	if err != nil {
		n.t.Fatal(err)
	}
	return func() (got int) {
		// What has come is in its buffer.
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		for buffer := make([]byte, 64); ; got++ {
			if _, err := conn.Read(buffer); err != nil {
				_ = conn.Close()
				return got
			}
		}
	}
}

// consumersStay holds that both consumers were not started again while something was done, by which they failed for a while. It
// returns what they see then.
func (n *node) consumersStay(what string, do func()) (f flows, r rules) {
	n.t.Helper()
	before := [2]string{flowAgent.pod(n), nodeFirewall.pod(n)}
	do()
	f, r = n.consume()
	if after := [2]string{flowAgent.pod(n), nodeFirewall.pod(n)}; after != before {
		n.t.Errorf("%s: the consumers' pods are %v, and were %v", what, after, before)
	}
	return f, r
}

// resets has a new version of each application make maps anew: the consumers open the new ones, and the rules are written again.
func (n *node) resets() {
	n.t.Helper()
	f, r := n.consume()
	_, now := n.consumersStay("new versions with other maps", func() {
		n.patches(flowAgent, `{"aggregated_flows":{"maxEntries":8192},"aggregated_flows_dns":{"maxEntries":2048},"direct_flows":{"maxEntries":131072}}`)
		n.patches(nodeFirewall, `{"ingress_node_firewall_table_map":{"maxEntries":512},"ingress_node_firewall_events_map":{"maxEntries":131072}}`)
		n.until("both consumers to have the new maps", func() error {
			var flow flows
			var rule rules
			err := errors.Join(flowAgent.sees(n, &flow), nodeFirewall.sees(n, &rule))
			if err == nil && (flow.Generation <= f.Generation || rule.Generation <= r.Generation) {
				err = fmt.Errorf("the generations are %d and %d, and were %d and %d", flow.Generation, rule.Generation, f.Generation, r.Generation)
			}
			return err
		})
	})
	// A map that was not made anew has its counts, by the same rules.
	if now.Rules["1"].Denied <= r.Rules["1"].Denied {
		n.t.Errorf("rule 1 denied %d packets, and %d before the reset", now.Rules["1"].Denied, r.Rules["1"].Denied)
	}
}

// patches changes the maps of a consumer's application, and waits for the version.
func (n *node) patches(c consumer, maps string) {
	n.t.Helper()
	n.must("patch", "clusterbpfapplication", c.name, "--type=merge", "--patch", `{"spec":{"maps":`+maps+`}}`)
	n.ready("clusterbpfapplication", c.name)
}

// consumersReturn holds all consumers to see again after something that ends their containers, in the same pods. What the earlier
// containers said last is no proof.
func (n *node) consumersReturn(do func()) {
	n.t.Helper()
	before := map[consumer]string{flowAgent: flowAgent.pod(n), nodeFirewall: nodeFirewall.pod(n), exporter: exporter.pod(n)}
	do()
	for c, pod := range before {
		uid, _, _ := strings.Cut(pod, " ")
		n.until("the container of "+c.name+" to be another one", func() error {
			if now := c.pod(n); now == pod || !strings.HasPrefix(now, uid+" ") {
				return fmt.Errorf("its pod is %s, and was %s", now, pod)
			}
			return nil
		})
	}
	n.consume()
	n.until("the exporter of the page to read", func() error {
		out, err := n.kubectl("logs", "--namespace="+exporter.namespace, "deployment/exporter", "--tail=1")
		if err == nil && !strings.HasPrefix(out, "packets ") {
			err = errors.New(out)
		}
		return err
	})
}

// failedMeanwhile holds the kill of the agent to have come amid reads: both consumers say that some failed.
func (n *node) failedMeanwhile() {
	n.t.Helper()
	for _, c := range []consumer{flowAgent, nodeFirewall} {
		if all := n.must("logs", "--namespace="+c.namespace, "daemonset/"+c.name); !strings.Contains(all, `"errors":"`) {
			n.t.Errorf("%s noticed nothing of it", c.name)
		}
	}
}

// consumersEnd deletes their applications, and what the page added to the counter, and returns the namespaces that are left of them.
func (n *node) consumersEnd() []string {
	n.t.Helper()
	n.must("delete", "clusterbpfapplication", flowAgent.name, nodeFirewall.name)
	n.must("apply", "--filename", n.path("home/cluster/counter.yaml"))
	n.ready(counter...)
	return []string{flowAgent.namespace, nodeFirewall.namespace, exporter.namespace}
}
