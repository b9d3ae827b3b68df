package cueartifact

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/controller/cueartifact/archives"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/text"
)

// The bounds of what is rendered: how long at most, bytes of memory, applications, bytes of a
// tag's value, and how many problems are named.
const (
	maxRenderTime = 30 * time.Second
	renderBytes   = 256 << 20
	maxRendered   = 5000
	maxTagValue   = 4096
	maxProblems   = 5
	maxProblem    = 1024
)

// MemoryBytes is how much memory so many renderings at once take at most, beside this process.
func MemoryBytes(concurrent int) int64 { return int64(places(concurrent)) * renderBytes }

// ScratchBytes is how much room sources take while they are fetched and unpacked, where so many are
// rendered at once; zero means 2.
func ScratchBytes(concurrent int) int64 {
	return int64(places(concurrent)) * (maxDownload + archives.MaxUnpacked)
}

// tagValues are the tags of a CueArtifact with their values.
type tagValues struct {
	// args are as schemas.Options.Tags takes them.
	args []string
	// secret says that a value comes from a Secret.
	secret bool
}

// tags gets the values of a CueArtifact's tags. Those of Secrets are in no error.
func (r *Reconciler) tags(ctx context.Context, o *v1alpha1.CueArtifact) (t tagValues, err error) {
	keys := objectKeys{live: r.Live, namespace: o.Namespace, read: map[string]map[string][]byte{}}
	for _, tag := range o.Spec.Tags {
		switch {
		case tag.Value != nil:
			t.args = append(t.args, tag.Name+"="+*tag.Value)
		case tag.ValueFrom == nil:
			t.args = append(t.args, tag.Name)
		default:
			value, err := keys.value(ctx, *tag.ValueFrom)
			if err != nil {
				return tagValues{}, retry(ReasonTagsFailed, "get the value of tag %s: %w", tag.Name, err)
			}
			t.args = append(t.args, tag.Name+"="+value)
			t.secret = t.secret || tag.ValueFrom.SecretKeyRef != nil
		}
	}
	return t, nil
}

// objectKeys reads keys of ConfigMaps and Secrets of a namespace past the cache, each object
// once: no right to list them is needed.
type objectKeys struct {
	live      client.Reader
	namespace string
	// read are the keys of objects that were read, by kind and name.
	read map[string]map[string][]byte
}

// value is what a key has.
func (k objectKeys) value(ctx context.Context, from v1alpha1.CueTagSource) (string, error) {
	kind, ref := "ConfigMap", from.ConfigMapKeyRef
	if ref == nil {
		kind, ref = "Secret", from.SecretKeyRef
	}
	if ref == nil {
		return "", errors.New("valueFrom names neither a ConfigMap nor a Secret")
	}
	name := types.NamespacedName{Namespace: k.namespace, Name: ref.Name}
	keys, ok := k.read[kind+"/"+ref.Name]
	if !ok {
		var err error
		if keys, err = k.get(ctx, kind, name); err != nil {
			return "", whyNot(kind, name, err)
		}
		k.read[kind+"/"+ref.Name] = keys
	}
	value, ok := keys[ref.Key]
	return string(value), usable(kind, name, ref.Key, len(value), ok)
}

// get reads an object.
func (k objectKeys) get(ctx context.Context, kind string, name types.NamespacedName) (map[string][]byte, error) {
	if kind == "Secret" {
		var s corev1.Secret
		err := k.live.Get(ctx, name, &s)
		return s.Data, err
	}
	var m corev1.ConfigMap
	err := k.live.Get(ctx, name, &m)
	keys := map[string][]byte{}
	for key, value := range m.Data {
		keys[key] = []byte(value)
	}
	return keys, err
}

// whyNot says why an object of a tag cannot be read.
func whyNot(kind string, name types.NamespacedName, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("get %s %s: it is not there: create it, or correct valueFrom", kind, name)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("get %s %s: Skep may not read it: let it by a Role for this %s", kind, name, kind)
	}
	return fmt.Errorf("get %s %s: %w", kind, name, err)
}

// usable says why a key of an object gives no value.
func usable(kind string, name types.NamespacedName, key string, size int, ok bool) error {
	switch {
	case !ok:
		return fmt.Errorf("read %s %s: it has no key %s: add it, or correct valueFrom", kind, name, key)
	case size > maxTagValue:
		return fmt.Errorf("read %s %s: key %s has more than %d bytes: give it a shorter value", kind, name, key, maxTagValue)
	}
	return nil
}

// inputs is a hash of whose and what is rendered. It is kept in memory alone. Equal content of
// another's is rendered anew: nobody is to be answered by what another's Secrets gave.
func inputs(o *v1alpha1.CueArtifact, a meta.Artifact, t tagValues) string {
	data, _ := json.Marshal([]any{o.UID, a.Digest, o.Spec.Path, o.Spec.Package, o.Spec.Expressions, t.args})
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// rendering is what a source was rendered to.
type rendering struct {
	objects []schemas.Object
	yaml    []byte
	// digest is that of yaml, in hexadecimal digits.
	digest string
}

// size is how much memory a rendering takes, in bytes.
func (r *rendering) size() int {
	n := len(r.yaml)
	for _, o := range r.objects {
		n += len(o.JSON) + 512
	}
	return n
}

// render fetches a source's artifact and renders it, until ctx ends.
func (r *Reconciler) render(ctx context.Context, o *v1alpha1.CueArtifact, a meta.Artifact, t tagValues) (*rendering, error) {
	dir, remove, err := r.Store.Scratch()
	if err != nil {
		return nil, retry(ReasonStorageFailed, "make a folder for the source: %w", err)
	}
	defer remove()
	if err := fetchInto(ctx, a, dir); waited(ctx) {
		return nil, retry(ReasonFetchFailed, "fetch revision %s: it takes longer than %s (spec.timeout)", a.Revision, timeout(o.Spec))
	} else if err != nil {
		return nil, retry(ReasonFetchFailed, "%w", err)
	}
	objects, problems, err := schemas.Render(ctx, schemas.Options{
		Root: filepath.Join(dir, "source"), Path: strings.TrimPrefix(path.Clean("/"+o.Spec.Path), "/"),
		Package: o.Spec.Package, Expressions: o.Spec.Expressions, Tags: t.args, Timeout: min(timeout(o.Spec), maxRenderTime), MemoryBytes: renderBytes,
	})
	switch {
	case waited(ctx):
		return nil, retry(ReasonRenderFailed, "render revision %s: it takes longer than %s (spec.timeout)", a.Revision, timeout(o.Spec))
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, t.notRendered(a.Revision, err)
	}
	decoded := schemas.Decode(objects)
	problems = append(append(problems, decoded.Problems...), decoded.Unjudged...)
	if len(problems) > 0 {
		return nil, stalled(ReasonRenderFailed, "render revision %s: %s", a.Revision, t.describe(problems))
	}
	if err := fewEnough(len(decoded.Applications), a.Revision); err != nil {
		return nil, err
	}
	return rendered(objects, a.Revision, o.Spec.Path)
}

// fewEnough says why so many applications are too many for one CueArtifact.
func fewEnough(applications int, revision string) error {
	if applications > maxRendered {
		return stalled(ReasonRenderFailed, "render revision %s: it defines %d applications, and %d is the most that one CueArtifact may: "+
			"split it into several CueArtifacts",
			revision, applications, maxRendered)
	}
	return nil
}

// rendered writes what was rendered as YAML.
func rendered(objects []schemas.Object, revision, at string) (*rendering, error) {
	if len(objects) == 0 {
		return nil, stalled(ReasonRenderFailed, "render revision %s: nothing is defined at %s, and Flux would remove all it applied: "+
			"correct spec.path, or delete the Kustomization", revision, at)
	}
	var out bytes.Buffer
	if err := schemas.Write(&out, objects, schemas.YAML); err != nil {
		return nil, stalled(ReasonRenderFailed, "render revision %s: %w", revision, err)
	}
	if out.Len() > archives.MaxContent {
		return nil, stalled(ReasonRenderFailed, "render revision %s: it renders to more than %d MiB: split it into several CueArtifacts",
			revision, archives.MaxContent>>20)
	}
	sum := sha256.Sum256(out.Bytes())
	return &rendering{objects: objects, yaml: out.Bytes(), digest: hex.EncodeToString(sum[:])}, nil
}

// describe names the first problems with file, line and column. What CUE says of a fault may
// repeat values, however the author split or encoded them: if a tag's value comes from a
// Secret, only the places are named.
func (t tagValues) describe(problems []schemas.Problem) string {
	var all []string
	for _, p := range problems[:min(len(problems), maxProblems)] {
		line := p.Error()
		if t.secret {
			line = p.Source.String() + ": the problem is not shown, since a tag has its value from a Secret (run skep vet with another value to see it)"
		}
		all = append(all, text.Cut(line, maxProblem))
	}
	all = slices.Compact(all)
	if more := len(problems) - maxProblems; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}

// notRendered is why a revision is not rendered. What is of this machine may pass.
func (t tagValues) notRendered(revision string, err error) error {
	if schemas.OfMachine(err) {
		return retry(ReasonRenderFailed, "render revision %s: the controller cannot at present, and tries again: %s", revision, t.whatOf(err))
	}
	return stalled(ReasonRenderFailed, "render revision %s: %s", revision, t.whatOf(err))
}

// whatOf is what is told of an error of rendering.
func (t tagValues) whatOf(err error) string {
	if t.secret {
		return "why is not shown, since a tag has its value from a Secret (run skep vet with another value to see it)"
	}
	return err.Error()
}
