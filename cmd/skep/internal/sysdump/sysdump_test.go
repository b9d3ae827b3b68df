package sysdump

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// world is a cluster where each place that may have a secret has one that begins with SECRET, and what a report needs begins with kept.
const world = `
/version: {gitVersion: kept-version}
/apis/skep.dev/v1alpha1/bpfapplications:
- metadata:
    name: app
    namespace: team-a
    labels: {app: kept-label}
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"variables":{"key":"SECRET-variable"}}}'
      reconcile.fluxcd.io/requestedAt: kept-requested
      skep.dev/requester: kept-requester
      example.com/token: SECRET-annotation
    managedFields: [{manager: SECRET-manager}]
  spec:
    bytecode: {image: "https://user:SECRET-image@r.example.com/kept-image:v1@sha256:12", imagePullSecrets: [{name: kept-pull}]}
    variables: {kept_variable: SECRET-variable, nested: {a: [SECRET-nested, 4711471147]}, short: 70000, port: "0xfeedfacecafe",
      wide: 1234605616436508552, negative: -4711471148}
    maps: {kept_map: {maxEntries: 7, contents: [{key: SECRET-key, value: {"a": "SECRET-value"}}]}}
    programs: [{name: kept_program, attach: [{binary: {path: /kept/path}}]}]
    unknown: SECRET-unknown
  status:
    conditions:
    - type: Ready
      status: "False"
      message: |
        kept-message: GET https://user:SECRET-registry@r.example.com/v2/?sig=SECRET-query: 401; the key is SECRET-variable, not SECRET-nested
        set variables of team-a/app: variables.short: 70000 is not of u16; it is 4711471147
    history: [{version: 3, changes: [variable kept_changed], message: "maps.kept_map.contents[0].key: \"x1\" is not hex: SECRET-key"}]
/apis/skep.dev/v1alpha1/clusterbpfapplications: []
/apis/skep.dev/v1alpha1/bpfpolicies: []
/apis/skep.dev/v1alpha1/clusterbpfpolicies:
- {metadata: {name: kept-policy}, spec: {mode: Enforce, rego: "package SECRETrego", parameters: {kept_parameter: SECRET-parameter}}}
/apis/skep.dev/v1alpha1/bpfsigners:
- {metadata: {name: kept-signer}, spec: {key: {publicKey: kept-public}, annotations: {team: SECRET-demand}}}
/apis/skep.dev/v1alpha1/bpfnodes:
- {metadata: {name: good}, status: {counts: {failed: 0}}}
- {metadata: {name: bad}, status: {counts: {failed: 1}, agent: {version: kept-agent},
    applications: [{name: app, message: "it says SECRET-variable kept-said"}]}}
/apis/skep.dev/v1alpha1/bpfintents:
- {metadata: {name: kept-intent}, spec: {serial: 7, application: {name: app}}}
/apis/skep.dev/v1alpha1/bpfimages:
- {metadata: {name: kept-bpfimage}, spec: {memory: {a: SECRET-memory}, programs: [kept_image_program]}}
/apis/skep.dev/v1alpha1/cueartifacts:
- {metadata: {name: kept-cue, namespace: team-a}, spec: {tags: [{name: kept_tag, value: SECRET-tag}], expressions: [SECRET-expression]}}
/api/v1/events:
- {metadata: {name: kept-event, namespace: team-a}, reason: kept-reason,
    message: "pull with Bearer SECRETabcdefghijklmnop of https://user:SECRET-event@r.example.com"}
/api/v1/namespaces/skep-system/events: []
/apis/apps/v1/namespaces/skep-system/deployments:
- metadata: {name: skep-controller, namespace: skep-system}
  spec:
    template:
      spec:
        imagePullSecrets: [{name: kept-secret-name}]
        volumes: [{name: kept-volume, secret: {secretName: kept-secret-volume}}]
        containers:
        - name: kept-container
          args: [--kept-flag=30s, --other=SECRET-argument, --third, SECRET-positional]
          env: [{name: KEPT_ENV, value: SECRET-environment}, {name: REF, valueFrom: {secretKeyRef: {name: kept-reference, key: k}}}]
          livenessProbe: {httpGet: {httpHeaders: [{name: Authorization, value: SECRET-header}]}}
/apis/apps/v1/namespaces/skep-system/daemonsets: []
/api/v1/namespaces/skep-system/secrets: [{metadata: {name: s}, data: {a: SECRET-data}}]
/api/v1/namespaces/skep-system/configmaps/skep-trust: {data: {trust.pem: SECRET-config}}
/api/v1/namespaces/skep-system/pods:
- metadata: {name: skep-agent-1, namespace: skep-system}
  spec: {containers: [{name: agent, env: [{name: KEPT_POD_ENV, value: SECRET-environment}]}]}
  status: {containerStatuses: [{name: agent, restartCount: 2, lastState: {terminated: {message: "kept-last of variables.x: SECRET-last"}}}]}
- {metadata: {name: skep-controller-1, namespace: skep-system}, spec: {containers: [{name: controller}]}}
/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/skep:
  {metadata: {name: skep}, webhooks: [{name: validate.skep.dev, failurePolicy: Fail, clientConfig: {service: {namespace: skep-system, name: kept-service}}}]}
/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.view.skep.dev:
  {metadata: {name: v1alpha1.view.skep.dev}, spec: {group: view.skep.dev}, status: {conditions: [{type: Available, message: kept-available}]}}
/apis/view.skep.dev/v1alpha1/nodeviews/bad:
  metadata: {name: bad}
  applications: [{name: app, verifierLog: "kept-log R1=4711471147 R2=0x118d3582b and R3=0xfeedfacecafe
    R4=1234605616436508552 R5=0x1122334455667788 R6=-4711471148 R7=0xfffffffee72ca7d4 R8=17293822569102704640", error: "variables.short: 70000 is too much"}]
/apis/view.skep.dev/v1alpha1/nodeviews/good: {metadata: {name: good}}
/apis/view.skep.dev/v1alpha1/namespaces/team-a/bpfapplications/app/view: [{metadata: {name: kept-seen}}]
`

// cluster is the world, with logs.
func inWorld(t *testing.T) fake {
	t.Helper()
	f := fake{objects: map[string]any{}}
	body, err := yaml.YAMLToJSON([]byte(world))
	if err != nil {
		t.Fatal(err)
	}
	numbers := json.NewDecoder(bytes.NewReader(body))
	numbers.UseNumber()
	if err := numbers.Decode(&f.objects); err != nil {
		t.Fatal(err)
	}
	// The version on nodes, and the version before it, have other values than the definition.
	payload := base64.StdEncoding.EncodeToString([]byte(
		`{"variables":{"key":"OLDVALUE1","wide":17293822569102704640},"previous":{"variables":{"key":"OLDVALUE2"}}}`))
	f.objects["/apis/skep.dev/v1alpha1/bpfintents"].([]any)[0].(map[string]any)["spec"].(map[string]any)["envelope"] =
		base64.StdEncoding.EncodeToString([]byte(`{"payload":"` + payload + `"}`))
	line := `level=ERROR msg="kept-line" error="git https://user:SECRET-git@git.example.com/x?token=SECRET-token" ` +
		`said="is SECRET-value, it was OLDVALUE1, and OLDVALUE2"` + "\n"
	f.objects["/api/v1/namespaces/skep-system/pods/skep-agent-1/log"] = logText(line)
	f.objects["/api/v1/namespaces/skep-system/pods/skep-controller-1/log"] = logText(line +
		"password=SECRET-password eyJhbGciOiJSUzI1NiJ9.SECRETpayload.SECRETsignature\n")
	return f
}

// TestAnArchiveOfAClusterHasNoSecrets: each place that may have one has one.
func TestAnArchiveOfAClusterHasNoSecrets(t *testing.T) {
	files, _ := inWorld(t).dumped(t)
	lacks(t, files, "SECRET", "OLDVALUE", "envelope\"", "70000", "4711471147", "118d3582b", "feedface",
		"1234605616436508552", "1122334455667788", "4711471148", "fffffffee72", "17293822569102704640", `\"x1`)
	for name, texts := range map[string]string{
		"README.txt": "MANIFEST.txt", "versions.json": `"skep"`, "kubernetes.json": "kept-version", "health.json": `"webhook"`,
		"bpfapplications.json": "kept-label kept-requested kept-requester r.example.com/kept-image:v1@sha256:12 kept-pull kept_variable kept_map kept_program " +
			"/kept/path kept-message: https://r.example.com/v2/ kept_changed",
		"clusterbpfpolicies.json": "kept-policy Enforce kept_parameter", "bpfsigners.json": "kept-signer kept-public team", "bpfnodes.json": "kept-agent kept-said",
		"bpfintents.json": "kept-intent", "bpfimages.json": "kept-bpfimage kept_image_program", "cueartifacts.json": "kept-cue kept_tag",
		"events.json":           "kept-event kept-reason",
		"skep/deployments.json": "kept-secret-name kept-volume kept-secret-volume kept-container --kept-flag=30s --other= --third KEPT_ENV kept-reference",
		"skep/pods.json":        "KEPT_POD_ENV kept-last", "skep/validatingwebhookconfigurations-skep.json": "kept-service",
		"skep/apiservices-v1alpha1.view.skep.dev.json": "kept-available", "nodes/bad.json": "kept-log", "nodes/good.json": "good",
		"skep/logs/skep-agent-1-agent.log": "kept-line https://git.example.com/x", "skep/logs/skep-agent-1-agent.previous.log": "kept-line",
		"skep/logs/skep-controller-1-controller.log": "kept-line",
		"MANIFEST.txt": "bpfapplications.json 1&nbsp;objects skep/mutatingwebhookconfigurations-skep.json  NOT&nbsp;READ:",
	} {
		for text := range strings.FieldsSeq(texts) {
			has(t, files, name, strings.ReplaceAll(text, "&nbsp;", " "))
		}
	}
	files, _ = inWorld(t).dumped(t, "--include-policies")
	has(t, files, "clusterbpfpolicies.json", "package SECRETrego", "SECRET-parameter")
}

// TestACallerOfANamespaceGetsThatAlone, and reads which rights are missing.
func TestACallerOfANamespaceGetsThatAlone(t *testing.T) {
	f := inWorld(t)
	f.readable = []string{"/version", "/apis/skep.dev/v1alpha1/namespaces/team-a/",
		"/apis/view.skep.dev/v1alpha1/namespaces/team-a/", "/api/v1/namespaces/team-a/"}
	f.objects["/apis/skep.dev/v1alpha1/namespaces/team-a/bpfapplications"] = f.objects["/apis/skep.dev/v1alpha1/bpfapplications"]
	files, said := f.dumped(t)
	has(t, files, "bpfapplications.json", "kept-label")
	has(t, files, "applications/team-a_app.json", "kept-seen")
	has(t, files, "MANIFEST.txt", "bpfapplications.json of every namespace  NOT READ: it needs the right to list bpfapplications.skep.dev\n",
		"bpfnodes.json  NOT READ: it needs the right to list bpfnodes.skep.dev\n",
		"skep/pods.json  NOT READ: it needs the right to list pods in namespace skep-system\n",
		"clusterbpfpolicies.json  NOT READ: it needs the right to list clusterbpfpolicies.skep.dev\n")
	lacks(t, files, "SECRET", "kept-policy", "kept-signer", "kept-agent", "skep-agent-1")
	if !strings.Contains(said, "parts could not be read; MANIFEST.txt says why") {
		t.Errorf("it says %q", said)
	}
}

// TestAFileThatExistsStays, and nothing is left of an archive that cannot be made.
func TestAFileThatExistsStays(t *testing.T) {
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	path := filepath.Join(t.TempDir(), "file")
	broken := errors.New("broken")
	if err := write(cmd, path, func(*os.File) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v, want what broke it", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, want no file", err)
	}
	if err := os.WriteFile(path, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := write(cmd, path, func(*os.File) error { return nil })
	const want = "exists and is not overwritten: name another file by -o"
	if body, _ := os.ReadFile(path); err == nil || !strings.Contains(err.Error(), want) || string(body) != "before" {
		t.Errorf("%v, and the file is %q", err, body)
	}
}

// TestAClusterThatIsAwayIsNoArchive: each of its parts would take half a minute to be away.
func TestAClusterThatIsAwayIsNoArchive(t *testing.T) {
	dir := t.TempDir()
	config, out := filepath.Join(dir, "config"), filepath.Join(dir, "out.tar.gz")
	if err := os.WriteFile(config, []byte(strings.Replace(kubeconfigFile, "SERVER", "http://127.0.0.1:1", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := New()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--kubeconfig", config, "-o", out})
	err := cmd.ExecuteContext(t.Context())
	if _, missing := os.Stat(out); err == nil || !strings.Contains(err.Error(), "cluster c, context c cannot be reached") || missing == nil {
		t.Errorf("%v, %v, want no file of a cluster that is away", err, missing)
	}
}

// TestAnArchiveIsBounded in each file and in all.
func TestAnArchiveIsBounded(t *testing.T) {
	f := inWorld(t)
	var many []any
	for i := range 300 {
		many = append(many, map[string]any{"metadata": map[string]any{"name": fmt.Sprint("image-", i)},
			"spec": map[string]any{"repository": strings.Repeat("r", 20_000)}})
	}
	f.objects["/apis/skep.dev/v1alpha1/bpfimages"] = many
	files, _ := f.dumped(t)
	for name, body := range files {
		if len(body) > maxFile {
			t.Errorf("%s has %d bytes", name, len(body))
		}
	}
	has(t, files, "MANIFEST.txt", "bpfimages.json  ", "objects; more are left out: a file has at most 4194304 bytes")

	path := filepath.Join(t.TempDir(), "all.tar.gz")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	a := newArchive(out, "folder", time.Now())
	for i := range 20 {
		a.tail(fmt.Sprint(i), []byte(strings.Repeat("first\n", maxFile/6)+"last\n"), strings.ToUpper)
	}
	if err := errors.Join(a.close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	files, size := unpack(t, path), 0
	for _, body := range files {
		size += len(body)
	}
	if !strings.HasPrefix(files["0"], "FIRST\n") || !strings.HasSuffix(files["0"], "\nLAST\n") || size > maxAll+1<<20 || a.left < 0 {
		t.Errorf("all files have %d bytes, and the first begins with %.20s", size, files["0"])
	}
	has(t, files, "MANIFEST.txt", "0  4194299 bytes  the first 6 bytes are left out")
}
