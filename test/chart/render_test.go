package chart

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/skep-dev/skep/test/harness/helm"
	"github.com/skep-dev/skep/test/harness/module"
)

// namespace is where the chart is installed.
const namespace = "skep-system"

// folder is the chart's.
func folder() string { return filepath.Join(module.Root(), "charts", "skep") }

// setting is what a chart is rendered with.
type setting struct {
	// values are helm's --set-json.
	values []string
	// older is a cluster without MutatingAdmissionPolicy.
	older bool
	// namespace is the release's; empty means namespace.
	namespace string
	// foreign are the kinds that only other software knows.
	foreign []string
}

// settings are those that between them have every line of the templates
// rendered.
func settings() map[string]setting {
	return map[string]setting{
		"the defaults":                       {},
		"the defaults on the oldest cluster": {older: true},
		"everything that can be left out":    {values: bare},
		"everything that can be had": {values: rich, foreign: []string{
			"Certificate", "Certificate", "Issuer", "Issuer", "PrometheusRule", "PrometheusRule", "SecurityContextConstraints", "ServiceMonitor", "ServiceMonitor",
		}},
		"cert-manager on the oldest cluster": {older: true, values: []string{`certificates.certManager=true`, `certificates.path="` + path + `"`},
			foreign: []string{"Certificate", "Certificate", "Issuer", "Issuer"}},
		"programs in pods": {values: []string{
			`agent.pods.enabled=true`, `agent.pods.runtimeEndpoint="unix:///run/crio/crio.sock"`, `agent.capabilities=["BPF"]`,
		}},
		"CUE with tags of one namespace": {values: []string{`cue.enabled=true`, `cue.tagNamespaces=["default"]`, `networkPolicy.artifactsFrom=[]`}},
		"pull Secrets of one namespace":  {values: []string{`registries.pullSecretNamespaces=["default"]`}},
	}
}

var (
	bare = []string{
		`controller.replicas=1`, `controller.priorityClassName=""`, `controller.nodeSelector=null`, `controller.resources={"limits":null,"requests":null}`,
		`agent.priorityClassName=""`, `agent.nodeSelector=null`, `agent.tolerations=[]`, `agent.capabilities=["BPF"]`,
		`agent.hostPaths.tracing=""`, `agent.hostPaths.security=""`, `agent.maxUnavailable=1`,
		`admission={"budget":"07s199ms","timeoutSeconds":9}`,
		`podDisruptionBudget.enabled=false`, `networkPolicy.enabled=false`, `resourceQuota.enabled=false`, `crds.enabled=false`, `metrics.secure=false`,
	}
	rich = []string{
		`imagePullSecrets=[{"name":"pull"}]`,
		`controller.image.digest="sha256:` + strings.Repeat("a", 64) + `"`, `controller.replicas=3`,
		`controller.cacheVolume={"persistentVolumeClaim":{"claimName":"bytecode"}}`,
		`controller.tolerations=[{"key":"infra","operator":"Exists"}]`, `controller.podAnnotations={"a":"b"}`,
		`controller.env=[{"name":"NO_PROXY","value":".svc"}]`,
		`controller.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"role",` +
			`"operator":"Exists"}]}]}}}`,
		`agent.image.tag="v9"`, `agent.podAnnotations={"a":"b"}`, `agent.exposeMetrics=true`, `agent.port=19092`, `agent.pprofPort=6061`, `controller.pprofPort=6060`,
		`agent.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"role",` +
			`"operator":"Exists"}]}]}}}`,
		`agent.hostPaths.cgroup="/sys/fs/cgroup/unified"`, `agent.maxUnavailable="100%"`,
		`agent.probed=["/usr","/opt/app"]`, `agent.hostPID=true`, `agent.pods.enabled=true`, `agent.mountBPFFS=true`, `agent.namespaceSharePercent=100`,
		`agent.mapMemory="3Gi"`, `csi.enabled=true`, `csi.kubeletDir="/var/lib/k0s/kubelet"`,
		`agent.extraVolumes=[{"name":"bin","hostPath":{"path":"/usr/bin"}}]`, `agent.extraVolumeMounts=[{"name":"bin","mountPath":"/usr/bin","readOnly":true}]`,
		`registries.pullSecret="bytecode"`, `registries.pullSecretNamespaces=["*"]`, `registries.authorities="ca"`, `registries.insecure=["registry.local:5000"]`,
		`registries.allowed=["*","*.example.com","registry.local:5000/team"]`,
		`admission.flowControl.enabled=true`, `admission.flowControl.shares=5`,
		`certificates.certManager=true`, `certificates.path="` + path + `"`, `crds.keep=false`, `uninstall.unload=true`,
		`networkPolicy.webhookFrom=[{"ipBlock":{"cidr":"10.0.0.1/32"}}]`,
		`networkPolicy.metricsFrom=[{"namespaceSelector":{"matchLabels":{"name":"monitoring"}}}]`,
		`cue={"enabled":true,"storage":{"ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"],` +
			`"resources":{"requests":{"storage":"1Gi"}}}}}},"noCrossNamespaceRefs":false,"watchLabelSelector":"a in (b,c)","tagNamespaces":["*"]}`,
		`serviceMonitor.enabled=true`, `serviceMonitor.labels={"release":"prometheus"}`, `prometheusRule={"enabled":true,"labels":{"release":"prometheus"}}`,
		`dashboards={"enabled":true,"labels":{"team":"bpf"},"annotations":{"grafana_folder":"Skep"}}`, `openshift.enabled=true`,
	}
)

// rendered is what helm made of the chart, by its arguments: most tests have it render the same.
var rendered sync.Map

// template is what helm makes of the chart, object by object.
func (s setting) template(t *testing.T) [][]byte {
	t.Helper()
	args := []string{"template", "skep", folder(), "--namespace", cmp.Or(s.namespace, namespace), "--kube-version", "1.30.0"}
	if !s.older {
		args = append(args, "--kube-version", "1.36.3", "--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	}
	for _, v := range s.values {
		args = append(args, "--set-json", v)
	}
	key := strings.Join(args, "\x00")
	out, known := rendered.Load(key)
	if !known {
		made, err := helm.Run(t.Context(), t, args...)
		if err != nil {
			t.Fatal(err)
		}
		out = made
		rendered.Store(key, out)
	}
	var objects [][]byte
	for r := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(out.(string)))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		var any map[string]any
		if err := yaml.UnmarshalStrict(document, &any); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if len(any) > 0 {
			objects = append(objects, document)
		}
	}
}

// objects is template, decoded.
func (s setting) objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, document := range s.template(t) {
		all = append(all, decoded(t, document))
	}
	return all
}

// decoded is a document as an object.
func decoded(t *testing.T, document []byte) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(document, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// one finds an object by kind and name.
func one(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return nil
}

// typed is one as its kind.
func typed[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(one(t, objects, kind, name).Object, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// kinds are those that Kubernetes itself knows.
func kinds(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), apiextensionsv1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHelmFindsNothingToComplainOf(t *testing.T) {
	for name, s := range settings() {
		t.Run(name, func(t *testing.T) {
			args := []string{"lint", "--strict", "--quiet", folder()}
			for _, v := range s.values {
				args = append(args, "--set-json", v)
			}
			if out, err := helm.Run(t.Context(), t, args...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestEveryObjectIsOfItsKindAndTakenByTheAPIServer(t *testing.T) {
	decoder := serializer.NewCodecFactory(kinds(t), serializer.EnableStrict).UniversalDeserializer()
	mutates, err := plane.Mutates()
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range settings() {
		s.older = s.older || !mutates
		t.Run(name, func(t *testing.T) {
			var foreign []string
			for _, document := range s.template(t) {
				_, _, err := decoder.Decode(document, nil, nil)
				o := decoded(t, document)
				switch {
				case runtime.IsNotRegisteredError(err) && o.GetKind() == "APIService":
					// It is Kubernetes' own, of another module.
					err = nil
				case runtime.IsNotRegisteredError(err):
					foreign = append(foreign, o.GetKind())
					continue
				}
				if err == nil {
					// The API server takes it, and forgets it.
					err = admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.DryRunAll, client.FieldOwner("chart"))
				}
				if err != nil {
					t.Errorf("%v:\n%s", err, document)
				}
			}
			slices.Sort(foreign)
			if !slices.Equal(foreign, s.foreign) {
				t.Errorf("these are no kinds of Kubernetes's: %v, want %v", foreign, s.foreign)
			}
		})
	}
}

func TestPullSecretsAreGotWhereTheyMayBe(t *testing.T) {
	for value, want := range map[string]string{
		`[]`: "", `["team-a","team-b"]`: "Role team-a, Role team-b, RoleBinding team-a, RoleBinding team-b",
		`["*"]`: "ClusterRole , ClusterRoleBinding ", `["team-a","*"]`: "ClusterRole , ClusterRoleBinding ",
	} {
		var found []string
		for _, object := range (setting{values: []string{"registries.pullSecretNamespaces=" + value}}).template(t) {
			var o struct {
				Kind     string
				Metadata struct{ Name, Namespace string }
				Rules    []struct{ Resources, Verbs []string }
			}
			if err := yaml.Unmarshal(object, &o); err != nil {
				t.Fatal(err)
			}
			if o.Metadata.Name != "skep-pull-secrets" {
				continue
			}
			found = append(found, o.Kind+" "+o.Metadata.Namespace)
			if len(o.Rules) > 0 && fmt.Sprint(o.Rules) != "[{[secrets] [get]}]" {
				t.Errorf("%s: %s grants %v", value, o.Kind, o.Rules)
			}
		}
		if got := strings.Join(found, ", "); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ value, says string }{
		"a key that is misspelt":               {`controler={}`, "controler"},
		"a key that is misspelt, further in":   {`agent.exposeMetric=true`, "exposeMetric"},
		"a digest that is none":                {`agent.image.digest="sha256:abc"`, "digest"},
		"a capability that BPF does not take":  {`agent.capabilities=["SYS_PTRACE"]`, "capabilities"},
		"a controller without replicas":        {`controller.replicas=0`, "replicas"},
		"a node without a BPF file system":     {`agent.hostPaths.bpffs=""`, "bpffs"},
		"all of the node's files to be probed": {`agent.probed=["/"]`, "probed"},
		"no share of an interface":             {`agent.namespaceSharePercent=0`, "namespaceSharePercent"},
		"a quantity of maps that is none":      {`agent.mapMemory="3 GB"`, "mapMemory"},
		"maps that take all that the agent has": {
			`agent.mapMemory="4Gi"`, "agent.mapMemory 4Gi leaves the agent itself less than 1Gi, or than half, of agent.resources.limits.memory 4Gi",
		},
		"maps that leave the agent too little":      {`agent={"mapMemory":"3073Mi","resources":{"limits":{"memory":4294967296}}}`, "agent.mapMemory 3073Mi leaves"},
		"maps that have more than half of a little": {`agent={"mapMemory":"257Mi","resources":{"limits":{"memory":"512Mi"}}}`, "agent.mapMemory 257Mi leaves"},
		"a runtime that is reached by no socket":    {`agent.pods.runtimeEndpoint="tcp://127.0.0.1:1"`, "runtimeEndpoint"},
		"plug-ins by a relative path":               {`agent.pods.nriSocket="run/nri.sock"`, "nriSocket"},
		"a runtime in the root folder":              {`agent.pods.runtimeEndpoint="/runtime.sock"`, "runtimeEndpoint"},
		"a kubelet without a folder":                {`csi.kubeletDir=""`, "kubeletDir"},
		"a kubelet in a folder with a slash":        {`csi.kubeletDir="/var/lib/kubelet/"`, "kubeletDir"},
		"a relative path":                           {`agent.hostPaths.state="var/lib"`, "state"},
		"artifacts of two replicas in one claim":    {`cue={"enabled":true,"storage":{"persistentVolumeClaim":{"claimName":"artifacts"}}}`, "cue.storage.ephemeral"},
		"renderings that take all of the memory": {
			`cue={"enabled":true,"concurrent":5}`, "cue.concurrent 5 takes 1280 MiB of controller.resources.limits.memory 2Gi",
		},
		"a retention that no duration holds":         {`cue.retentionTTL="999999999h"`, "retentionTTL"},
		"a number where a word is meant":             {`crds.keep=1`, "keep"},
		"a path that can be guessed":                 {`certificates.path="validate"`, "path"},
		"a path that changes with each rendering":    {`certificates.certManager=true`, "needs certificates.path"},
		"a duration without a unit":                  {`admission.budget="2"`, "budget"},
		"a volume whose kind is misspelt":            {`controller.cacheVolume={"persistantVolumeClaim":{"claimName":"a"}}`, "cacheVolume"},
		"a volume of two kinds":                      {`controller.cacheVolume={"hostPath":{"path":"/a"},"nfs":{"server":"a","path":"/"}}`, "cacheVolume"},
		"a variable without a name":                  {`controller.env=[{"value":"a"}]`, "env"},
		"a variable whose value is no word":          {`controller.env=[{"name":"GODEBUG","value":1}]`, "env"},
		"a variable from nowhere":                    {`controller.env=[{"name":"A","valueFrom":{"secretRef":{"name":"a"}}}]`, "env"},
		"a variable that is Skep's":                  {`controller.env=[{"name":"POD_NAMESPACE","value":"a"}]`, "env"},
		"a registry with a scheme":                   {`registries.insecure=["http://registry:5000"]`, "insecure"},
		"an allowed registry with a scheme":          {`registries.allowed=["https://ghcr.io"]`, "allowed"},
		"a namespace that cannot be":                 {`registries.pullSecretNamespaces=["team_a"]`, "pullSecretNamespaces"},
		"an answer the API server does not wait for": {`admission.timeoutSeconds=60`, "timeoutSeconds"},
		"a budget that outlasts the API server": {
			`admission.budget="15s"`, "admission.budget 15s and a quarter of it are not below admission.timeoutSeconds 10",
		},
		"a budget of all the API server waits":      {`admission={"budget":"1m0500ms","timeoutSeconds":30}`, "admission.budget 1m0500ms and a quarter"},
		"a budget that waiting makes too long":      {`admission={"budget":"7s200ms","timeoutSeconds":9}`, "admission.budget 7s200ms and a quarter"},
		"a budget that is none":                     {`admission.budget="0s"`, "budget"},
		"applications evaluated again all the time": {`controller.interval="0m00s"`, "interval"},
		"metrics asked for all the time":            {`serviceMonitor.interval="0s"`, "interval"},
		"an upgrade that comes to no agent":         {`agent.maxUnavailable="0%"`, "maxUnavailable"},
		"an upgrade of more agents than there are":  {`agent.maxUnavailable="101%"`, "maxUnavailable"},
		"profiles where the controller is ready":    {`controller.pprofPort=8081`, "controller.pprofPort 8081 is taken"},
		"profiles where artifacts are served":       {`controller.pprofPort=9790`, "controller.pprofPort 9790 is taken"},
		"CUE rendered by nobody":                    {`cue.concurrent=0`, "concurrent"},
		"artifacts of which none is kept":           {`cue.retentionRecords=0`, "retentionRecords"},
		"artifacts that are gone at once":           {`cue.retentionTTL="0s"`, "retentionTTL"},
		"artifacts on a volume of two kinds":        {`cue.storage={"hostPath":{"path":"/a"},"nfs":{"server":"a","path":"/"}}`, "storage"},
		"tags of a namespace that cannot be":        {`cue.tagNamespaces=["team_a"]`, "tagNamespaces"},
		"bpfman's pods, and volumes without pins":   {`csi={"enabled":true,"bpfman":true}`, "csi.bpfman needs csi.enabled and csi.pins"},
		"bpfman's pods, and no volumes":             {`csi={"pins":true,"bpfman":true}`, "csi.bpfman needs csi.enabled and csi.pins"},
		"profiles where the agent is ready":         {`agent.pprofPort=9092`, "agent.pprofPort 9092 is agent.port too"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := helm.Run(t.Context(), t, "template", "skep", folder(), "--set-json", c.value)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it says %v, and not %q", err, c.says)
			}
		})
	}
}

// TestTheCostOfProgramsIsMeasuredUnlessItIsSwitchedOff renders the agent.
func TestTheCostOfProgramsIsMeasuredUnlessItIsSwitchedOff(t *testing.T) {
	for value, off := range map[string]bool{`agent.programStats=true`: false, `agent.programStats=false`: true} {
		agent := typed[appsv1.DaemonSet](t, setting{values: []string{value}}.objects(t), "DaemonSet", "skep-agent").Spec.Template.Spec.Containers[0]
		if slices.Contains(agent.Args, "--program-stats=false") != off {
			t.Errorf("%s: its arguments are %q", value, agent.Args)
		}
	}
}

// TestMapsHaveALimit renders the agent, whose container the kernel charges for maps.
func TestMapsHaveALimit(t *testing.T) {
	for sentence, c := range map[string]struct {
		values []string
		maps   string
	}{
		"what the container's limit leaves":       {nil, ""},
		"as much as it leaves":                    {[]string{`agent.mapMemory="3Gi"`}, "--map-memory=3Gi"},
		"half of a small limit":                   {[]string{`agent.mapMemory="256Mi"`, `agent.resources.limits.memory="512Mi"`}, "--map-memory=256Mi"},
		"a limit that the agent alone can read":   {[]string{`agent.mapMemory="5Gi"`, `agent.resources.limits.memory="8e9"`}, "--map-memory=5Gi"},
		"what is asked for, without a limit":      {[]string{`agent.mapMemory="64G"`, `agent.resources.limits=null`}, "--map-memory=64G"},
		"without resources at all":                {[]string{`agent.mapMemory="64G"`, `agent.resources=null`}, "--map-memory=64G"},
		"none on purpose, whatever the agent has": {[]string{`agent.mapMemory="0"`}, "--map-memory=0"},
	} {
		t.Run(sentence, func(t *testing.T) {
			agent := typed[appsv1.DaemonSet](t, setting{values: c.values}.objects(t), "DaemonSet", "skep-agent").Spec.Template.Spec.Containers[0]
			maps := ""
			for _, arg := range agent.Args {
				if strings.HasPrefix(arg, "--map-memory") {
					maps = arg
				}
			}
			if maps != c.maps || !slices.Contains(agent.Args, "--memory-limit=$(MEMORY_LIMIT)") {
				t.Errorf("its arguments are %q", agent.Args)
			}
			if i := slices.IndexFunc(agent.Env, func(e corev1.EnvVar) bool { return e.Name == "MEMORY_LIMIT" }); i < 0 ||
				agent.Env[i].ValueFrom.ResourceFieldRef.ContainerName != agent.Name {
				t.Errorf("its variables are %v", agent.Env)
			}
		})
	}
}
