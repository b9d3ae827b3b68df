package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skep-dev/skep/test/fixture/programs"
)

// TestPodsReadMaps is a chapter of TestAUserInstallsSkep, and runs alone, too.
func TestPodsReadMaps(t *testing.T) {
	if os.Getenv(stage) != stageTest {
		t.Skip("SKIPPED: a whole cluster is for make test-e2e")
	}
	if exists(filepath.Join(state, "pki")) {
		t.Skip("SKIPPED: TestAUserInstallsSkep has had it as a chapter")
	}
	n := newNode(t)
	n.home()
	n.tutorial()
	n.readMaps()
}

// readable is an application of the cluster whose map pods of three namespaces may read or write.
const readable = `apiVersion: skep.dev/v1alpha1
kind: ClusterBpfApplication
metadata: {name: readable}
spec:
  bytecode: {image: %q}
  programs: [{name: tracepoint_count, attach: [{hook: tracepoint}]}]
  maps: {counts: {export: [%s]}}
`

// allGrants are all that it grants at first.
const allGrants = "{access: Read, namespaces: [web], serviceAccounts: [reader]}, {access: Read, namespaces: [plain]}, {access: Write, namespaces: [shop]}"

// The security contexts of a pod that is restricted, with the runtime's seccomp profile and with one that allows bpf(2), and the
// containers of such a pod.
const (
	asUser    = "securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}"
	asUserBPF = "securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: " +
		"{type: Localhost, localhostProfile: bpf.json}}"
	asRoot     = "securityContext: {fsGroup: 65532}"
	noGroup    = "securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}"
	unassigned = "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}, "
)

// readerOf is a pod with a volume of an application.
func readerOf(namespace, name, account, security, container, application string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  serviceAccountName: %s
  %s
  containers: [{name: reader, image: 'registry.example.com/reader:1', %senv: [{name: TEAM, value: %s-%s}], volumeMounts: [{name: maps, mountPath: /maps}]}]
  volumes: [{name: maps, csi: {driver: csi.skep.dev, volumeAttributes: {%s}}}]
`, name, namespace, account, security, container, namespace, name, application)
}

// bpfmanReaderOf is a pod as bpfman's examples are: of its driver, with the maps that it names.
func bpfmanReaderOf(namespace, name, maps string) string {
	pod := readerOf(namespace, name, "reader", asUserBPF, unassigned, "csi.bpfman.io/program: readable, csi.bpfman.io/maps: '"+maps+"'")
	return strings.Replace(pod, "driver: csi.skep.dev", "driver: csi.bpfman.io", 1)
}

const ofReadable = "clusterApplication: readable"

// readMaps installs the plug-in, and has pods read maps as they were granted them.
func (n *node) readMaps() {
	n.t.Helper()
	n.file("lib/kubelet/seccomp/bpf.json", `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["unshare", "mount"], "action": "SCMP_ACT_ERRNO"}]}`)
	before := n.agent()
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=csi.enabled=true", "--set=agent.capabilities={BPF,NET_ADMIN,PERFMON}", "--wait")
	n.agentReady(before)
	n.file("pods/readable.o", string(programs.Object("tracepoint_count")))
	n.run("skep", "image", "build", "-f", n.path("pods/readable.o"), imageOfObject("readable"))
	n.run("skep", "sign", "--key", n.path("home/cluster/release.key"), imageOfObject("readable"))
	for _, namespace := range []string{"web", "shop", "plain", "other"} {
		n.must("create", "namespace", namespace)
		n.must("create", "serviceaccount", "reader", "--namespace="+namespace)
	}
	n.must("label", "namespace", "web", "pod-security.kubernetes.io/enforce=restricted")
	n.must("label", "namespace", "other", "pod-security.kubernetes.io/enforce=restricted")

	n.consumers()
	n.walk(readersPage, "## In a pod", "### The volume")
	// A pod that comes before the application waits for it.
	n.applies("readers/early", readerOf("web", "early", "reader", asUser, unassigned, ofReadable))
	n.fails("web", "early", "has no intent for ClusterBpfApplication readable")
	n.exports(allGrants)
	n.reads("web", "early")
	n.readsBySocket()

	// What is mounted from now on has pins.
	before = n.agent()
	n.helm("upgrade", "skep", "charts/skep", "--reuse-values", "--set=csi.pins=true", "--set=csi.bpfman=true", "--wait")
	n.agentReady(before)
	n.reads("web", "early")
	n.restrictedReads()
	n.refused()
	n.resets()
	n.consumersStay("kills of agent and mounter", n.survives)
	n.failedMeanwhile()
	n.consumersReturn(n.rebooting)
	for _, pod := range []string{"early", "pins"} {
		n.reads("web", pod)
	}
	n.withdraws()
	n.must(append([]string{"delete", "namespace", "web", "shop", "plain", "other", "--timeout=2m"}, n.consumersEnd()...)...)
	n.until("volumes to be unmounted", func() error {
		if left := volumesOf(""); len(left) > 0 {
			return fmt.Errorf("these are there: %v", left)
		}
		return nil
	})
	n.must("delete", "clusterbpfapplication", "readable")
}

// applies applies a file.
func (n *node) applies(name, content string) {
	n.t.Helper()
	n.file(name+".yaml", content)
	n.must("apply", "--filename", n.path(name+".yaml"))
}

// exports applies the application with grants.
func (n *node) exports(all string) {
	n.t.Helper()
	n.applies("readers/readable", fmt.Sprintf(readable, imageOfObject("readable"), all))
	n.ready("clusterbpfapplication", "readable")
}

// volumesOf are the mounts of the plug-in for pods, or for one of them by its UID.
func volumesOf(uid string) (found []string) {
	all, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(all)) {
		if at := strings.Fields(line)[4]; strings.Contains(at, "/kubelet/pods/"+uid) && strings.Contains(at, "/kubernetes.io~csi/") {
			found = append(found, at)
		}
	}
	return found
}

// answers are those that a pod gets for the map.
type answers struct {
	Generation                                       uint64
	Sum                                              map[string]uint64
	Lookup, Put, Pin, WritePin, Update, Freeze, ByID map[string]string
}

// look is what a pod is answered now.
func (n *node) look(namespace, pod string) (a answers, err error) {
	out, err := n.kubectl("exec", "--namespace="+namespace, pod, "--", "/reader", "look")
	if err == nil {
		err = json.Unmarshal([]byte(out), &a)
	}
	return a, err
}

// reads waits until a pod runs and reads the map, and returns what it is answered.
func (n *node) reads(namespace, pod string) (a answers) {
	n.t.Helper()
	n.until("pod "+pod+" of "+namespace+" to read the map", func() (err error) {
		if a, err = n.look(namespace, pod); err == nil && (a.Lookup["counts"] != "yes" || a.Sum["counts"] == 0) {
			err = fmt.Errorf("it is answered %+v", a)
		}
		return err
	})
	return a
}

// fails waits until a pod's event says why its volume is not mounted, and holds that nothing is.
func (n *node) fails(namespace, pod, why string) {
	n.t.Helper()
	n.until("the event of pod "+pod+" of "+namespace, func() error {
		said := n.field("{.items[*].message}", "events", "--namespace="+namespace, "--field-selector=reason=FailedMount,involvedObject.name="+pod)
		if !strings.Contains(said, why) {
			return fmt.Errorf("events say %q, want %q", said, why)
		}
		return nil
	})
	if left := volumesOf(n.field("{.metadata.uid}", "pod", pod, "--namespace="+namespace)); len(left) > 0 {
		n.t.Errorf("%s of %s has mounts: %v", pod, namespace, left)
	}
}

// readsBySocket has root of a pod without a seccomp profile read and not write, in a volume that has no pins.
func (n *node) readsBySocket() {
	n.t.Helper()
	n.applies("readers/root-socket", readerOf("plain", "root-socket", "reader", asRoot, "", ofReadable))
	a := n.reads("plain", "root-socket")
	for what, got := range map[string]string{"open the pin": a.Pin["counts"], "open the pin for writing": a.WritePin["counts"]} {
		if !strings.Contains(got, "no such file") {
			n.t.Errorf("root: %s is answered by %q", what, got)
		}
	}
	if a.Put["counts"] == "yes" {
		n.t.Error("root may write what it may read")
	}
	for _, at := range volumesOf(n.field("{.metadata.uid}", "pod", "root-socket", "--namespace=plain")) {
		if !strings.HasSuffix(at, "/mount") {
			n.t.Errorf("something is mounted in its volume, at %s", at)
		}
	}
}

// restrictedReads has pods read by the socket and by pins, under the profiles that a restricted namespace allows, and write where that
// is granted.
func (n *node) restrictedReads() {
	n.t.Helper()
	n.applies("readers/pins", readerOf("web", "pins", "reader", asUserBPF, unassigned, ofReadable))
	n.applies("readers/root", readerOf("plain", "root", "reader", asRoot, "", ofReadable))
	n.applies("readers/writer", readerOf("shop", "writer", "reader", asUser, unassigned, ofReadable))
	n.applies("readers/writer-pins", readerOf("shop", "writer-pins", "reader", asUserBPF, unassigned, ofReadable))
	n.applies("readers/bpfman", bpfmanReaderOf("shop", "bpfman", "counts"))
	for _, c := range []struct {
		namespace, pod string
		// Empty is an answer that is not "yes"; what it must have is else a part of it.
		pin, writePin, put string
	}{
		{"web", "early", "operation not permitted", "operation not permitted", ""},
		{"web", "pins", "yes", "read-only file system", ""},
		{"plain", "root", "yes", "read-only file system", ""},
		{"shop", "writer", "operation not permitted", "operation not permitted", "yes"},
		{"shop", "writer-pins", "yes", "yes", "yes"},
		{"shop", "bpfman", "yes", "yes", "yes"},
	} {
		a := n.reads(c.namespace, c.pod)
		for what, pair := range map[string][2]string{
			"open the pin": {a.Pin["counts"], c.pin}, "open the pin for writing": {a.WritePin["counts"], c.writePin}, "put": {a.Put["counts"], c.put},
		} {
			if got, want := pair[0], pair[1]; !strings.Contains(got, want) || want == "" && got == "yes" {
				n.t.Errorf("%s of %s: %s is answered by %q, want %q", c.pod, c.namespace, what, got, want)
			}
		}
		for what, got := range map[string]string{
			"update by a descriptor for reading": a.Update["counts"], "freeze": a.Freeze["counts"], "open by id": a.ByID["counts"],
		} {
			if got == "yes" {
				n.t.Errorf("%s of %s may %s", c.pod, c.namespace, what)
			}
		}
	}
}

// refused has pods that were granted nothing, and such without a group.
func (n *node) refused() {
	n.t.Helper()
	for _, c := range []struct{ namespace, pod, account, security, application, why string }{
		{"other", "namespace", "reader", asUser, ofReadable, `grants none of its maps (spec.maps.NAME.export) to service account "reader" of namespace "other"`},
		{"web", "account", "default", asUser, ofReadable, `to service account "default" of namespace "web"`},
		{"web", "ungrouped", "reader", noGroup, ofReadable, "spec.securityContext.fsGroup"},
		{"web", "theirs", "reader", asUser, "application: readable", "BpfApplication web/readable"},
		{"web", "misspelt", "reader", asUser, "clusterApplicaton: readable", "only application or clusterApplication are known"},
		{"other", "forged", "reader", asUser, ofReadable + ", csi.storage.k8s.io/pod.namespace: web", `of namespace "other"`},
		{"other", "forger", "reader", asUser, ofReadable + ", csi.storage.k8s.io/pod.Namespace: web", `has "csi.storage.k8s.io/pod.Namespace"`},
	} {
		n.applies("readers/"+c.pod, readerOf(c.namespace, c.pod, c.account, c.security, unassigned, c.application))
		n.fails(c.namespace, c.pod, c.why)
	}
	n.applies("readers/bpfman-more", bpfmanReaderOf("shop", "bpfman-more", "counts,absent"))
	n.fails("shop", "bpfman-more", "grants no map absent (spec.maps.absent.export)")
}

// survives kills the agent, and the mounter, while pods have volumes and others start.
func (n *node) survives() {
	n.t.Helper()
	mounts := volumesOf("")
	for _, name := range []string{"skep-agent", "skep-mounter"} {
		if killed := n.kill(name, ""); killed != 1 {
			n.t.Fatalf("%d processes are %s", killed, name)
		}
		n.applies("readers/after-"+name, readerOf("web", "after-"+name, "reader", asUser, unassigned, ofReadable))
		if a, err := n.look("web", "pins"); err != nil || a.Lookup["counts"] != "yes" {
			n.t.Errorf("without %s the pin is answered by %+v, %v", name, a, err)
		}
		n.reads("web", "after-"+name)
		n.reads("web", "early")
		n.must("delete", "pod", "after-"+name, "--namespace=web", "--timeout=1m")
	}
	n.until("mounts to be those of before", func() error {
		if now := volumesOf(""); strings.Join(now, " ") != strings.Join(mounts, " ") {
			return fmt.Errorf("they are\n%v\nand were\n%v", now, mounts)
		}
		return nil
	})
}

// withdraws edits the grant while pods have the map.
func (n *node) withdraws() {
	n.t.Helper()
	n.exports("{access: Read, namespaces: [shop]}")
	for _, pod := range []string{"early", "pins"} {
		n.until("the grant of "+pod+" to end", func() error {
			a, err := n.look("web", pod)
			if _, listed := a.Lookup["counts"]; err == nil && listed {
				err = errors.New("it has the map")
			}
			return err
		})
	}
	n.until("the writer to read alone", func() error {
		a, err := n.look("shop", "writer-pins")
		if err == nil && (a.Lookup["counts"] != "yes" || a.Put["counts"] == "yes" || a.WritePin["counts"] == "yes") {
			err = fmt.Errorf("it is answered %+v", a)
		}
		return err
	})
	n.must("delete", "clusterbpfapplication", "readable")
	n.until("the maps to go with the application", func() error {
		a, err := n.look("shop", "writer-pins")
		if _, listed := a.Lookup["counts"]; err == nil && listed {
			err = errors.New("it has the map")
		}
		return err
	})
	n.exports(allGrants)
	n.reads("web", "early")
}
