package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/mirror"
	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/lifecycle"
	"github.com/skep-dev/skep/test/fixture/programs"
	"github.com/skep-dev/skep/test/harness/command"
	"github.com/skep-dev/skep/test/harness/recommended"
)

// gated is a cluster's registry behind a door that asks for a password, and that
// repeats to whom it turns away what they showed.
type gated struct {
	host string
	mu   sync.Mutex
	// passwords are those of the users let in.
	passwords map[string]string
}

func (c *cluster) gated() *gated {
	c.t.Helper()
	g := &gated{passwords: map[string]string{}}
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Registry})
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		g.mu.Lock()
		known := user != "" && g.passwords[user] == password
		g.mu.Unlock()
		if !known {
			w.Header().Set("WWW-Authenticate", `Basic realm="gated"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"%s may not, with %s"}]}`, user, password)
			return
		}
		behind.ServeHTTP(w, r)
	}))
	c.t.Cleanup(door.Close)
	g.host = strings.TrimPrefix(door.URL, "http://")
	return g
}

func (g *gated) set(user, password string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passwords[user] = password
}

// pullSecret is a Secret as kubectl create secret docker-registry makes it.
func pullSecret(namespace, name, host, user, password string) *corev1.Secret {
	config, _ := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]string{
		"username": user, "password": password, "auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password)),
	}}})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: config},
	}
}

// asks is a namespaced application that names pull Secrets.
func asks(namespace, name, image string, secrets ...string) *v1alpha1.BpfApplication {
	o := &v1alpha1.BpfApplication{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.Bytecode.Image = image
	for _, s := range secrets {
		o.Spec.Bytecode.ImagePullSecrets = append(o.Spec.Bytecode.ImagePullSecrets, v1alpha1.LocalSecret{Name: s})
	}
	o.Spec.Programs = []v1alpha1.Program{{Name: "count_packets", Attach: []v1alpha1.Attachment{{
		Hook: "xdp", Pods: &v1alpha1.Pods{},
	}}}}
	return o
}

// book keeps what controllers log while somebody reads it.
type book struct {
	mu   sync.Mutex
	open bool
	text bytes.Buffer
}

// logs is what TestMain has controllers log to.
var logs book

func (b *book) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.open {
			fmt.Fprintln(&b.text, prefix, args)
		}
	}, funcr.Options{})
}

// read opens the book until the test ends; the text so far is what it returns.
func (b *book) read(t *testing.T) func() string {
	t.Helper()
	set := func(open bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open = open
		b.text.Reset()
	}
	set(true)
	t.Cleanup(func() { set(false) })
	return func() string {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.text.String()
	}
}

// private is the common ground of tests of pull Secrets: two namespaces, a
// registry that lets in one user, and an image there.
type private struct {
	*cluster
	*gated
	image, digest, byDigest string
}

func newPrivate(t *testing.T) *private {
	t.Helper()
	c := newCluster(t)
	p := &private{cluster: c, gated: c.gated()}
	for _, name := range []string{"team-a", "team-b"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := client.IgnoreAlreadyExists(c.Create(t.Context(), ns)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, name := range []string{"team-a", "team-b"} {
			for _, o := range []client.Object{&v1alpha1.BpfApplication{}, &corev1.Secret{}} {
				if err := c.DeleteAllOf(context.Background(), o, client.InNamespace(name)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	c.create(c.Signer("team-a"))
	ref, digest := c.Push("private:v1", programs.Object("xdp_count"), "team-a")
	p.image = strings.Replace(ref, c.Registry, p.host, 1)
	p.digest, p.byDigest = digest, strings.TrimSuffix(p.image, ":v1")+"@"+digest
	p.set("robot", "robots-password")
	return p
}

// again has an application evaluated anew.
func (p *private) again(app *v1alpha1.BpfApplication) {
	p.t.Helper()
	p.change(app, func() {
		metav1.SetMetaDataAnnotation(&app.ObjectMeta, gate.AnnotationRequestedAt, fmt.Sprint(app.Annotations[gate.AnnotationRequestedAt], "."))
	})
}

// unknown waits until nothing is known of an application's image, and returns why.
func (p *private) unknown(app *v1alpha1.BpfApplication, says ...string) string {
	p.t.Helper()
	var why metav1.Condition
	p.until("it to say why", func() error {
		why = p.condition(app, v1alpha1.ConditionVerified, metav1.ConditionUnknown, lifecycle.ReasonEvaluationFailed)
		for _, want := range says {
			if !strings.Contains(why.Message, want) {
				return fmt.Errorf("%s does not say %q", why.Message, want)
			}
		}
		return nil
	})
	return why.Message
}

// nothing holds that an application got nothing of the image.
func (p *private) nothing(app *v1alpha1.BpfApplication) {
	p.t.Helper()
	if sealed := p.opened(app); sealed != nil {
		p.t.Errorf("%s: sealed %+v", app.Name, sealed)
	}
	if s := app.Status; len(s.Signers) > 0 || s.Serial != 0 {
		p.t.Errorf("%s: the status says %+v", app.Name, s)
	}
}

func TestPullSecretsOpenAnImageToTheirNamespaceAlone(t *testing.T) {
	log := logs.read(t)
	p := newPrivate(t)
	p.control()
	p.create(pullSecret("team-a", "pull", p.host, "robot", "robots-password"), asks("team-a", "right", p.image, "pull"))
	right := asks("team-a", "right", "")
	p.condition(right, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	if s := p.opened(right); s == nil || s.ImageDigest != p.digest {
		t.Fatalf("sealed %+v", s)
	}

	// In another namespace none of that counts, however the image is named.
	p.create(
		pullSecret("team-b", "wrong", p.host, "robot", "guessed-password"),
		pullSecret("team-b", "elsewhere", "registry.invalid", "robot", "robots-password"),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "opaque"}},
	)
	for name, c := range map[string]struct {
		secrets []string
		says    string
	}{
		"none":      {nil, "name a Secret that may pull it in spec.bytecode.imagePullSecrets"},
		"wrong":     {[]string{"wrong"}, "Secret team-b/wrong was not taken"},
		"elsewhere": {[]string{"elsewhere"}, "Secret team-b/elsewhere holds nothing for " + p.host},
		"missing":   {[]string{"pull"}, "get Secret team-b/pull: it is not there: create it"},
		"opaque":    {[]string{"opaque"}, "read Secret team-b/opaque: it is of type Opaque"},
	} {
		for way, image := range map[string]string{"tag": p.image, "digest": p.byDigest} {
			app := asks("team-b", name+"-"+way, image, c.secrets...)
			p.create(app)
			p.unknown(app, c.says)
			p.nothing(app)
		}
	}
	missing := asks("team-b", "missing-digest", "")
	p.create(pullSecret("team-b", "pull", p.host, "robot", "robots-password"))
	if err := p.Get(t.Context(), client.ObjectKeyFromObject(missing), missing); err != nil {
		t.Fatal(err)
	}
	p.again(missing)
	p.condition(missing, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	p.showsNoCredential(log())
	var described v1alpha1.BpfImage
	if err := p.Get(t.Context(), client.ObjectKey{Name: strings.Replace(p.digest, ":", "-", 1)}, &described); !apierrors.IsNotFound(err) {
		t.Errorf("whoever may read BpfImages reads of a private image: %+v, %v", described.Spec, err)
	}
}

func TestAPullSecretThatChangesIsFollowed(t *testing.T) {
	p := newPrivate(t)
	p.control()
	secret := pullSecret("team-a", "pull", p.host, "robot", "robots-password")
	app := asks("team-a", "app", p.image, "pull")
	p.create(secret, app)
	p.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	serial := p.opened(app).Serial

	// The right is withdrawn: what runs is kept, and nothing new is told.
	p.set("robot", "second-password")
	p.change(secret, func() { secret.Data = pullSecret("", "", p.host, "robot", "stale-password").Data })
	p.again(app)
	p.unknown(app, "Secret team-a/pull was not taken")
	if s := p.opened(app); s == nil || s.Tombstone || s.Serial != serial {
		t.Errorf("sealed %+v", s)
	}
	// One that is no configuration is made anew by the command of the message.
	config := pullSecret("", "", p.host, "robot", "second-password").Data[corev1.DockerConfigJsonKey]
	p.change(secret, func() { secret.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths": 1}`) })
	p.again(app)
	why := p.unknown(app, "it holds no Docker configuration: delete it, and make it with")
	if err := p.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	file, kubeconfig := filepath.Join(home, "config.json"), filepath.Join(home, "kubeconfig")
	err := errors.Join(os.WriteFile(file, config, 0o600), p.plane.WriteKubeconfig(kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", kubeconfig)
	t.Setenv("PATH", filepath.Dir(p.plane.Kubectl)+":"+os.Getenv("PATH"))
	recommended.Run(t, strings.ReplaceAll(why, "CONFIG", file),
		"kubectl create secret docker-registry %s --namespace %s --from-file=.dockerconfigjson=CONFIG")
	// The command of hosts asks the cluster of the kubeconfig, where no host is meant.
	asked, err := exec.CommandContext(t.Context(), command.Build(t, "skep"), "status", "--kubeconfig", kubeconfig).CombinedOutput()
	if err != nil || !strings.Contains(string(asked), "team-a/app") {
		t.Errorf("%v: it shows %s", err, asked)
	}
	p.again(app)
	p.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")

	// What was shown a moment ago holds with the registry away, for this namespace
	// and these credentials.
	p.Down.Store(true)
	second := asks("team-a", "second", p.byDigest, "pull")
	p.create(second, pullSecret("team-b", "pull", p.host, "robot", "third-password"))
	p.condition(second, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	other := asks("team-b", "other", p.byDigest, "pull")
	p.create(other)
	p.unknown(other, "401")
	p.nothing(other)

	// A policy is heeded for what runs, though its Secret is gone.
	if err := p.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	p.again(app)
	p.unknown(app, "get Secret team-a/pull: it is not there")
	p.create(clusterPolicy("nothing", `deny contains "no" if input.application.metadata.name == "app"`, v1alpha1.RunningUnload))
	p.unloaded(app, "running: Unload")
}

func TestTheMirrorFetchesAgainWithPullSecrets(t *testing.T) {
	p := newPrivate(t)
	cache := t.TempDir()
	served, _ := p.serve(cache)
	app := application("app", p.image)
	app.Spec.Programs = asks("", "", "").Spec.Programs
	app.Spec.Bytecode.ImagePullSecrets = []v1alpha1.LocalSecret{{Name: "skep-pull"}}
	secret := pullSecret("default", "skep-pull", p.host, "robot", "robots-password")
	t.Cleanup(func() { _ = p.Delete(context.Background(), secret) })
	p.create(secret, app)
	p.condition(app, v1alpha1.ConditionAllowed, metav1.ConditionTrue, "Allowed")
	digest := p.opened(app).ObjectDigest
	lose(t, cache)
	if status, body := served.get(t, digest, p.token("skep-agent", mirror.Audience)); status != http.StatusOK || !bytes.Equal(body, programs.Object("xdp_count")) {
		t.Errorf("%d, %d bytes", status, len(body))
	}
}

// showsNoCredential looks for passwords in all that people can read but Secrets.
func (p *private) showsNoCredential(log string) {
	p.t.Helper()
	everything := bytes.NewBufferString(log)
	for _, list := range []client.ObjectList{
		&v1alpha1.BpfApplicationList{}, &v1alpha1.BpfIntentList{}, &v1alpha1.BpfImageList{},
		&corev1.EventList{}, &eventsv1.EventList{}, &corev1.ConfigMapList{},
	} {
		if err := p.List(p.t.Context(), list); err != nil {
			p.t.Fatal(err)
		}
		_ = apimeta.EachListItem(list, func(o runtime.Object) error {
			return json.NewEncoder(everything).Encode(o)
		})
	}
	if !strings.Contains(everything.String(), "was not taken") || log == "" {
		p.t.Error("nothing was found to look through")
	}
	for _, password := range []string{"robots-password", "guessed-password"} {
		for _, shown := range []string{password, base64.StdEncoding.EncodeToString([]byte("robot:" + password))} {
			if at := strings.Index(everything.String(), shown); at >= 0 {
				p.t.Errorf("a password is shown: …%s…", everything.String()[max(0, at-200):at+20])
			}
		}
	}
}
