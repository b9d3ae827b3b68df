package chart

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/controller/sealing"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/test/harness/controlplane"
)

func TestTheCRDsAreTheGeneratedOnesAndAreKept(t *testing.T) {
	want := map[string]map[string]any{}
	files, err := filepath.Glob(filepath.Join(controlplane.CRDs(), "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		o := decoded(t, body)
		want[o.GetName()] = o.Object
	}
	for name, c := range map[string]struct {
		values []string
		kept   string
	}{
		"by default they are kept": {nil, "keep"},
		"and they go when told to": {[]string{`crds.keep=false`}, ""},
		"and they may be left out": {[]string{`crds.enabled=false`}, "left out"},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]map[string]any{}
			for _, o := range (setting{values: c.values}).objects(t) {
				if o.GetKind() != "CustomResourceDefinition" {
					continue
				}
				annotations := o.GetAnnotations()
				if annotations["helm.sh/resource-policy"] != c.kept {
					t.Errorf("%s: resource policy %q", o.GetName(), annotations["helm.sh/resource-policy"])
				}
				delete(annotations, "helm.sh/resource-policy")
				o.SetAnnotations(annotations)
				got[o.GetName()] = o.Object
			}
			if c.kept == "left out" {
				if len(got) > 0 {
					t.Errorf("%d are there", len(got))
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWhatNeedsNoRightsHasNone(t *testing.T) {
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if err := admin.Create(t.Context(), strict); err != nil {
		t.Fatal(err)
	}
	pod := func(template corev1.PodTemplateSpec) error {
		template.Spec.PriorityClassName = ""
		return admin.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: strict.Name, GenerateName: "pod-"}, Spec: template.Spec,
		}, client.DryRunAll)
	}
	for name, s := range settings() {
		t.Run(name, func(t *testing.T) {
			objects := s.objects(t)
			if err := pod(typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template); err != nil {
				t.Errorf("the controller: %v", err)
			}
			if err := pod(typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template); err == nil || !strings.Contains(err.Error(), "restricted") {
				t.Errorf("the agent passes as restricted, so that nothing is tested: %v", err)
			}
			if slices.Contains(s.values, `uninstall.unload=true`) {
				if err := pod(typed[batchv1.Job](t, objects, "Job", "skep-unload").Spec.Template); err != nil {
					t.Errorf("the Job that unloads: %v", err)
				}
			}
		})
	}
}

func TestTheAgentHasTheRightsItIsGivenAndNoSecret(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   []corev1.Capability
	}{
		"by default": {nil, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"}},
		"with fewer": {[]string{`agent.capabilities=["BPF","NET_ADMIN"]`}, []corev1.Capability{"BPF", "NET_ADMIN"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := setting{values: c.values}.objects(t)
			spec := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Spec
			has := spec.Containers[0].SecurityContext
			if *has.Privileged || *has.AllowPrivilegeEscalation || !*has.ReadOnlyRootFilesystem || spec.HostPID || spec.HostIPC {
				t.Errorf("it may do more than it needs: %+v", has)
			}
			if diff := cmp.Diff(&corev1.Capabilities{Add: c.want, Drop: []corev1.Capability{"ALL"}}, has.Capabilities); diff != "" {
				t.Error(diff)
			}
			for _, v := range spec.Volumes {
				if v.Secret != nil {
					t.Errorf("it is given Secret %s", v.Secret.SecretName)
				}
			}
			for _, rule := range typed[rbacv1.ClusterRole](t, objects, "ClusterRole", "skep-agent").Rules {
				if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "*") {
					t.Errorf("it may read Secrets by %v", rule)
				}
			}
		})
	}
}

func TestABPFFileSystemIsMountedForTheNodeWhereThatIsAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		asked  bool
	}{
		"by default the node brings it":                               {[]string{`uninstall.unload=true`, `openshift.enabled=true`}, false},
		"values of an older chart that are used again do not name it": {[]string{`uninstall.unload=true`, `openshift.enabled=true`, `agent.mountBPFFS=null`}, false},
		"a Pod mounts it": {[]string{`uninstall.unload=true`, `openshift.enabled=true`, `agent.mountBPFFS=true`, `agent.hostPaths.bpffs="/run/bpf"`}, true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := setting{values: c.values}.objects(t)
			for _, daemons := range []string{"skep-agent", "skep-unload"} {
				spec := typed[appsv1.DaemonSet](t, objects, "DaemonSet", daemons).Spec.Template.Spec
				first := append(spec.InitContainers, spec.Containers...)[0]
				if got := slices.Contains(first.Args, "--mount-bpffs=/run/bpf"); got != c.asked {
					t.Fatalf("%s begins with %v", daemons, first.Args)
				}
				for i, container := range append(spec.InitContainers, spec.Containers...) {
					if *container.SecurityContext.Privileged != (c.asked && i == 0) {
						t.Errorf("%s of %s is privileged: %t", container.Name, daemons, !c.asked || i > 0)
					}
				}
				if !c.asked {
					continue
				}
				both := corev1.MountPropagationBidirectional
				want := []corev1.VolumeMount{{Name: "bpffs", MountPath: "/run/bpf", MountPropagation: &both}}
				if diff := cmp.Diff(want, first.VolumeMounts); diff != "" {
					t.Errorf("%s: what is mounted stays in the container:\n%s", daemons, diff)
				}
			}
			scc := one(t, objects, "SecurityContextConstraints", "skep-agent").Object
			if scc["allowPrivilegedContainer"] != c.asked || scc["allowPrivilegeEscalation"] != c.asked {
				t.Errorf("OpenShift allows privileged Pods: %v", scc["allowPrivilegedContainer"])
			}
		})
	}
}

// TestProgramsInPodsTakeTheRightsThatTheyNeed renders the agent with and without agent.pods.
func TestProgramsInPodsTakeTheRightsThatTheyNeed(t *testing.T) {
	for sentence, c := range map[string]struct {
		values       []string
		capabilities []corev1.Capability
		pods         bool
		// folder is where the runtime's socket is, endpoint what the agent is told. nri is the
		// folder of the socket for plug-ins that it has beside.
		folder, endpoint, nri string
	}{
		"none by default": {nil, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"}, false, "", "", ""},
		"containerd": {
			[]string{`agent.pods.enabled=true`}, []corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_PTRACE"}, true, "/run/containerd",
			"/run/containerd/containerd.sock", "/var/run/nri",
		},
		"another runtime, and as few rights as can be": {
			[]string{`agent.pods={"enabled":true,"runtimeEndpoint":"unix:///run/crio/crio.sock"}`, `agent.capabilities=["BPF"]`},
			[]corev1.Capability{"BPF", "SYS_ADMIN", "SYS_PTRACE"}, true, "/run/crio", "unix:///run/crio/crio.sock", "/var/run/nri"},
		"no plug-in": {[]string{`agent.pods={"enabled":true,"nriSocket":""}`},
			[]corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_PTRACE"}, true, "/run/containerd", "/run/containerd/containerd.sock", ""},
		"one folder for both": {[]string{`agent.pods={"enabled":true,"nriSocket":"/run/containerd/nri.sock"}`},
			[]corev1.Capability{"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_PTRACE"}, true, "/run/containerd", "/run/containerd/containerd.sock", ""},
	} {
		t.Run(sentence, func(t *testing.T) {
			objects := setting{values: append(c.values, `openshift.enabled=true`, `uninstall.unload=true`)}.objects(t)
			spec := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Spec
			agent := spec.Containers[0]
			if diff := cmp.Diff(c.capabilities, agent.SecurityContext.Capabilities.Add); diff != "" || spec.HostPID != c.pods {
				t.Errorf("hostPID is %t, capabilities (-want +got):\n%s", spec.HostPID, diff)
			}
			if cleaner := typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-unload").Spec.Template.Spec; cleaner.HostPID != c.pods {
				t.Errorf("what unloads has hostPID %t", cleaner.HostPID)
			}
			if told := slices.Contains(agent.Args, "--container-runtime-endpoint="+c.endpoint); told != c.pods {
				t.Errorf("its arguments are %q", agent.Args)
			}
			for name, folder := range map[string]string{"runtime": c.folder, "nri": c.nri} {
				var has, want []string
				for _, v := range spec.Volumes {
					if v.Name == name {
						has = append(has, v.HostPath.Path)
					}
				}
				for _, m := range agent.VolumeMounts {
					if m.Name == name && m.ReadOnly && (name == "nri" || *m.MountPropagation == corev1.MountPropagationHostToContainer) {
						has = append(has, m.MountPath)
					}
				}
				if folder != "" {
					want = []string{folder, folder}
				}
				if !slices.Equal(has, want) {
					t.Errorf("of %s it has the folders %v, want %v", name, has, want)
				}
			}
			nri := slices.IndexFunc(agent.Args, func(arg string) bool { return strings.HasPrefix(arg, "--nri-socket=") })
			if off := strings.Contains(strings.Join(c.values, " "), `"nriSocket":""`) || !c.pods; (nri < 0) != off {
				t.Errorf("its arguments are %q", agent.Args)
			}
			reads := slices.ContainsFunc(typed[rbacv1.ClusterRole](t, objects, "ClusterRole", "skep-agent").Rules, func(r rbacv1.PolicyRule) bool {
				return slices.Equal(r.Resources, []string{"namespaces"}) && slices.Equal(r.Verbs, []string{"list", "watch"})
			})
			if reads != c.pods {
				t.Errorf("it may list namespaces: %t", reads)
			}
			scc := one(t, objects, "SecurityContextConstraints", "skep-agent").Object
			allowed, _, _ := unstructured.NestedStringSlice(scc, "allowedCapabilities")
			if len(allowed) != len(c.capabilities) || scc["allowHostPID"] != c.pods {
				t.Errorf("OpenShift allows %v and hostPID: %v", allowed, scc["allowHostPID"])
			}
		})
	}
}

func TestTheControllerHasTheEnvironmentThatIsGivenBesideItsOwn(t *testing.T) {
	objects := setting{
		values: []string{`controller.env=[{"name":"HTTPS_PROXY","value":"http://proxy:3128"},{"name":"PASSWORD","valueFrom":{"secretKeyRef":{"name":"proxy",` +
			`"key":"password"}}}]`},
	}.objects(t)
	has := map[string]corev1.EnvVar{}
	for _, e := range typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template.Spec.Containers[0].Env {
		has[e.Name] = e
	}
	if has["HTTPS_PROXY"].Value != "http://proxy:3128" || has["PASSWORD"].ValueFrom.SecretKeyRef.Key != "password" || has["POD_NAMESPACE"].ValueFrom == nil {
		t.Errorf("it has %v", has)
	}
}

func TestTheControllerKnowsTheMemoryItMayTake(t *testing.T) {
	container := typed[appsv1.Deployment](t, setting{}.objects(t), "Deployment", "skep-controller").Spec.Template.Spec.Containers[0]
	if !slices.Contains(container.Args, "--memory-limit=$(MEMORY_LIMIT)") {
		t.Errorf("it is told %v", container.Args)
	}
	limit := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "MEMORY_LIMIT" })
	if limit < 0 || container.Env[limit].ValueFrom.ResourceFieldRef.Resource != "limits.memory" {
		t.Errorf("the limit is none of %v", container.Env)
	}
}

func TestTheControllersMemoryHoldsWhatEvaluatesPolicies(t *testing.T) {
	container := typed[appsv1.Deployment](t, setting{}.objects(t), "Deployment", "skep-controller").Spec.Template.Spec.Containers[0]
	left := container.Resources.Limits.Memory().Value() - policies.EngineOptions{}.WorkerBytes()
	// What the controller itself took with a thousand applications, three times.
	if left < 3*128<<20 {
		t.Errorf("%d MiB are left for the controller itself", left>>20)
	}
}

func TestTheAgentsMemoryIsBounded(t *testing.T) {
	for sentence, c := range map[string]struct {
		values    []string
		goLimit   string
		container string
	}{
		"by default":              {nil, "512MiB", "4Gi"},
		"as it is given":          {[]string{`agent.goMemoryLimit="1GiB"`, `agent.resources.limits.memory="8Gi"`}, "1GiB", "8Gi"},
		"not, where that is said": {[]string{`agent.goMemoryLimit="off"`, `agent.resources.limits=null`}, "off", "0"},
	} {
		t.Run(sentence, func(t *testing.T) {
			container := typed[appsv1.DaemonSet](t, setting{values: c.values}.objects(t), "DaemonSet", "skep-agent").Spec.Template.Spec.Containers[0]
			if !slices.Contains(container.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: c.goLimit}) {
				t.Errorf("it has %v", container.Env)
			}
			if got := container.Resources.Limits.Memory(); got.String() != c.container {
				t.Errorf("its limit is %s, want %s", got, c.container)
			}
		})
	}
}

func TestBytecodeIsCachedOnTheVolumeThatIsGiven(t *testing.T) {
	room := resource.MustParse("1Gi")
	for name, c := range map[string]struct {
		values []string
		want   corev1.VolumeSource
	}{
		"by default on the node's disk": {nil, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &room}}},
		"in a claim": {[]string{`controller.cacheVolume={"persistentVolumeClaim":{"claimName":"bytecode"}}`},
			corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "bytecode"}}},
		"in a folder of the node's": {[]string{`controller.cacheVolume={"hostPath":{"path":"/var/cache/skep"}}`},
			corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/cache/skep"}}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := typed[appsv1.Deployment](t, setting{values: c.values}.objects(t), "Deployment", "skep-controller").Spec.Template.Spec
			mounts := spec.Containers[0].VolumeMounts
			mount := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool {
				return slices.Contains(spec.Containers[0].Args, "--cache="+m.MountPath)
			})
			if mount < 0 {
				t.Fatalf("nothing is mounted where the cache is: %v", spec.Containers[0].Args)
			}
			volume := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mounts[mount].Name })
			if diff := cmp.Diff(c.want, spec.Volumes[volume].VolumeSource); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheAgentFindsItsTrustAndItsTokenWhereTheControllerPutsThem(t *testing.T) {
	spec := typed[appsv1.DaemonSet](t, setting{}.objects(t), "DaemonSet", "skep-agent").Spec.Template.Spec
	for _, v := range spec.Volumes {
		switch v.Name {
		case "trust":
			if v.ConfigMap == nil || v.ConfigMap.Name != sealing.ConfigMapName {
				t.Errorf("trust is %+v", v.VolumeSource)
			}
		case "token":
			if got := v.Projected.Sources[0].ServiceAccountToken.Audience; got != mirror.Audience {
				t.Errorf("the token is for %q", got)
			}
		}
	}
	args := strings.Join(spec.Containers[0].Args, " ")
	if !strings.Contains(args, "--mirror-ca=/etc/skep/trust/"+sealing.MirrorCA+" ") {
		t.Errorf("it looks for the mirror's authority elsewhere: %s", args)
	}
}

func TestEverySelectorChoosesThePodsItIsMeantFor(t *testing.T) {
	objects := setting{values: rich}.objects(t)
	pods := map[string]map[string]string{
		"controller": typed[appsv1.Deployment](t, objects, "Deployment", "skep-controller").Spec.Template.Labels,
		"agent":      typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-agent").Spec.Template.Labels,
		"cleaner":    typed[appsv1.DaemonSet](t, objects, "DaemonSet", "skep-unload").Spec.Template.Labels,
		"job":        typed[batchv1.Job](t, objects, "Job", "skep-unload").Spec.Template.Labels,
	}
	for _, c := range []struct{ kind, name, where, pod string }{
		{"Deployment", "skep-controller", "spec.selector.matchLabels", "controller"},
		{"DaemonSet", "skep-agent", "spec.selector.matchLabels", "agent"},
		{"DaemonSet", "skep-unload", "spec.selector.matchLabels", "cleaner"},
		{"Service", "skep-webhook", "spec.selector", "controller"},
		{"Service", "skep-mirror", "spec.selector", "controller"},
		{"Service", "skep-controller-metrics", "spec.selector", "controller"},
		{"Service", "skep-agent-metrics", "spec.selector", "agent"},
		{"PodDisruptionBudget", "skep-controller", "spec.selector.matchLabels", "controller"},
		{"NetworkPolicy", "skep-controller", "spec.podSelector.matchLabels", "controller"},
	} {
		selector, _, err := unstructured.NestedStringMap(one(t, objects, c.kind, c.name).Object, strings.Split(c.where, ".")...)
		if err != nil || len(selector) == 0 {
			t.Fatalf("%s %s has no selector: %v", c.kind, c.name, err)
		}
		for pod, labels := range pods {
			all := maps.Clone(labels)
			maps.Copy(all, selector)
			if chosen := maps.Equal(all, labels); chosen != (pod == c.pod) {
				t.Errorf("%s %s chooses the %s: %t", c.kind, c.name, pod, chosen)
			}
		}
	}
}

// code is a word in backticks.
var code = regexp.MustCompile("`([^`]+)`")

func TestThePageListsEveryValue(t *testing.T) {
	body, err := os.ReadFile(filepath.Join(folder(), "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(body, &values); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(folder(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range bytes.Lines(page) {
		if cells := strings.Split(string(line), "|"); len(cells) == 5 && !strings.Contains(cells[1], "-") {
			for _, word := range code.FindAllStringSubmatch(cells[1], -1) {
				listed = append(listed, word[1])
			}
		}
	}
	want := leaves("", values)
	slices.Sort(listed)
	slices.Sort(want)
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("values.yaml and the table differ:\n%s", diff)
	}
}

// whole are the values that the table describes as one.
var whole = regexp.MustCompile(`\.(resources|nodeSelector|affinity|labels|annotations|podAnnotations|cacheVolume|storage)$`)

// leaves are the paths of values.
func leaves(path string, value any) []string {
	fields, ok := value.(map[string]any)
	if !ok || whole.MatchString(path) {
		return []string{strings.TrimPrefix(path, ".")}
	}
	var all []string
	for name, v := range fields {
		all = append(all, leaves(path+"."+name, v)...)
	}
	return all
}

// TestAMetricKeepsTheNamespaceOfItsApplication: Prometheus' operator else puts that
// of the Pod in its place.
func TestAMetricKeepsTheNamespaceOfItsApplication(t *testing.T) {
	monitor := one(t, setting{values: []string{`serviceMonitor.enabled=true`}}.objects(t), "ServiceMonitor", "skep").Object
	endpoints, found, err := unstructured.NestedSlice(monitor, "spec", "endpoints")
	if err != nil || !found || len(endpoints) != 1 {
		t.Fatalf("%v, %v, %v", endpoints, found, err)
	}
	if honor := endpoints[0].(map[string]any)["honorLabels"]; honor != true {
		t.Errorf("honorLabels is %v", honor)
	}
}

// TestTheSeriesOfAnAgentNameItsNode: dashboards choose by that label.
func TestTheSeriesOfAnAgentNameItsNode(t *testing.T) {
	monitor := one(t, setting{values: []string{`serviceMonitor.enabled=true`, `agent.exposeMetrics=true`}}.objects(t), "ServiceMonitor", "skep-agent").Object
	endpoints, _, err := unstructured.NestedSlice(monitor, "spec", "endpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("%v, %v", endpoints, err)
	}
	want := []any{map[string]any{"sourceLabels": []any{"__meta_kubernetes_pod_node_name"}, "targetLabel": "node"}}
	if diff := cmp.Diff(want, endpoints[0].(map[string]any)["relabelings"]); diff != "" {
		t.Errorf("relabelings (-want +got):\n%s", diff)
	}
}

// TestDashboardsAndRulesAreAsTheirFilesHaveThem: the module in test/dashboards evaluates the files.
func TestDashboardsAndRulesAreAsTheirFilesHaveThem(t *testing.T) {
	objects := setting{values: []string{`dashboards.enabled=true`, `prometheusRule.enabled=true`}}.objects(t)
	for _, name := range []string{"fleet", "application", "node", "admission"} {
		file, err := os.ReadFile(filepath.Join(folder(), "files", "dashboards", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		config := typed[corev1.ConfigMap](t, objects, "ConfigMap", "skep-dashboard-"+name)
		if config.Labels["grafana_dashboard"] != "1" || config.Data["skep-"+name+".json"] != string(file) {
			t.Errorf("%s: labels %v, or other contents than the file's", config.Name, config.Labels)
		}
	}
	for _, name := range []string{"cluster", "hosts"} {
		file, err := os.ReadFile(filepath.Join(folder(), "files", "rules", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := yaml.Unmarshal(file, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, one(t, objects, "PrometheusRule", "skep-"+name).Object["spec"]); diff != "" {
			t.Errorf("%s (-file +object):\n%s", name, diff)
		}
	}
}
