package convert

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// layoutPrefix begins a reference to an OCI layout on disk: image.LayoutPrefix.
const layoutPrefix = "oci:"

// The groups that the kinds were in, newest first.
const (
	groupBpfman = "bpfman.io"
	groupBpfd   = "bpfd.dev"
	groupBpfdIO = "bpfd.io"
)

// Groups are the API groups whose kinds are converted, newest first.
func Groups() []string { return []string{groupBpfman, groupBpfd, groupBpfdIO} }

// kind is one kind of the manifests, whatever its generation.
type kind struct {
	namespaced bool
	// read fills in the draft's spec.
	read func(*draft, *fields)
}

// Kinds are the names of the kinds that are converted.
func Kinds() []string {
	names := []string{"EbpfProgramConfig", "BpfProgramConfig", "ClusterBpfApplication", "BpfNsApplication", "BpfApplication"}
	for _, t := range []string{"Xdp", "Tc", "Tcx", "Tracepoint", "Kprobe", "Uprobe", "Fentry", "Fexit"} {
		names = append(names, t+"Program")
	}
	return append(names, "XdpNsProgram", "TcNsProgram", "TcxNsProgram", "UprobeNsProgram")
}

// kindOf returns the kind of a name, in one of Groups.
func kindOf(name string) (kind, bool) {
	switch name {
	case "EbpfProgramConfig", "BpfProgramConfig":
		return kind{read: (*draft).config}, true
	case "ClusterBpfApplication":
		return kind{read: (*draft).programs}, true
	case "BpfNsApplication", "BpfApplication":
		return kind{namespaced: true, read: (*draft).programs}, true
	}
	short, is := strings.CutSuffix(name, "Program")
	short, namespaced := strings.CutSuffix(short, "Ns")
	hookType := strings.ToLower(short)
	if _, known := typeOf(hookType); !is || !known {
		return kind{}, false
	}
	return kind{namespaced: namespaced, read: func(d *draft, spec *fields) { d.single(spec, hookType) }}, true
}

// isReport reports whether bpfman itself writes objects of a kind.
func isReport(name string) bool {
	switch name {
	case "BpfProgram", "BpfNsProgram", "EbpfProgram", "BpfApplicationNode", "BpfNsApplicationNode":
		return true
	}
	return strings.HasSuffix(name, "State")
}

// read fills in the draft; it returns why the object becomes no document, or nil.
func (d *draft) read() *Note {
	version, name := d.root.text("apiversion"), d.root.text("kind")
	meta := d.root.mapping("metadata", "metadata")
	if meta == nil {
		meta = &fields{d: d, path: "metadata", place: "metadata"}
	}
	d.app.Metadata.Name, d.app.Metadata.Namespace = meta.text("name"), meta.text("namespace")
	d.from = text.Line(text.Cut(fmt.Sprintf("%s %s %s", version, name, identity(d.app.Metadata)), maxNote))
	k, left := d.kind(version, name)
	if left != nil {
		return left
	}
	d.namespaced = k.namespaced && !d.wasClusterWide(name)
	d.app.APIVersion, d.app.Kind = v1alpha1.GroupVersion().String(), v1alpha1.KindClusterBpfApplication
	if d.namespaced {
		d.app.Kind = v1alpha1.KindBpfApplication
	}
	d.metadata(meta)
	spec := d.root.mapping("spec", "spec")
	if spec == nil {
		spec = &fields{d: d, path: "spec", place: "spec"}
		d.app.Spec.Programs = nil
	}
	d.common(spec)
	k.read(d, spec)
	spec.rest()
	if len(d.app.Spec.Programs) == 0 {
		d.missing("spec.programs", "spec.programs", "no program is left, and the application is invalid until one is added")
	}
	d.overSchema()
	d.root.note(d.root.take("status"), "what bpfman reported is left out; Skep writes its own status")
	d.root.rest()
	return nil
}

func identity(m metadata) string {
	return v1alpha1.Identity{Namespace: m.Namespace, Name: m.Name}.String()
}

// kind looks a kind up; it returns why objects of it become no document, or nil.
func (d *draft) kind(version, name string) (kind, *Note) {
	group, _, _ := strings.Cut(version, "/")
	leave := func(todo bool, why string) *Note {
		return &Note{Line: d.line, Path: cmp.Or(strings.TrimSpace(d.from), "object"), Text: why, Todo: todo}
	}
	if group != groupBpfman && group != groupBpfd && group != groupBpfdIO {
		return kind{}, leave(false, "it is none of bpfman's kinds, and is left as it is")
	}
	if isReport(name) {
		return kind{}, leave(false, "bpfman writes these objects itself; Skep reports in the status of applications and in BpfNode")
	}
	if name == "Config" {
		return kind{}, leave(false, "it holds settings of bpfman; those of Skep are values of its chart")
	}
	k, known := kindOf(name)
	if !known {
		return kind{}, leave(true, "the kind is not known here, and is left out; write an application for it by docs/api.md")
	}
	return k, nil
}

// wasClusterWide reports whether the object is of the first generation of BpfApplication, which
// had no namespace. Its fields had no upper case.
func (d *draft) wasClusterWide(name string) bool {
	if name != "BpfApplication" || d.app.Metadata.Namespace != "" {
		return false
	}
	for _, one := range d.root.all {
		if fold(one.name) != "spec" {
			continue
		}
		for i := 0; i < len(one.node.Content); i += 2 {
			if key := one.node.Content[i].Value; key == "bytecode" || key == "nodeselector" {
				d.note(one.node, "kind", "kind", "the first BpfApplication belonged to no namespace, as a ClusterBpfApplication does")
				return true
			}
		}
	}
	return false
}

// metadata keeps what people write, and notes what the API server does.
func (d *draft) metadata(meta *fields) {
	m := &d.app.Metadata
	m.Labels, m.Annotations = meta.labels("labels"), meta.labels("annotations")
	const applied = "kubectl.kubernetes.io/last-applied-configuration"
	delete(m.Annotations, applied)
	d.disown("metadata.labels", m.Labels)
	d.disown("metadata.annotations", m.Annotations)
	if !d.namespaced && m.Namespace != "" {
		d.add(Note{Line: d.line, Path: "metadata.namespace", Text: m.Namespace + ": the kind belongs to no namespace, and so does the application"}, "metadata", "")
		m.Namespace = ""
	}
	for _, name := range []string{"creationtimestamp", "generation", "managedfields", "resourceversion", "selflink", "uid"} {
		meta.take(name)
	}
	meta.note(meta.take("finalizers"), "bpfman's finalizers are left out")
	meta.note(meta.take("ownerreferences"), "owners are left out; whoever makes bpfman's object has to make Skep's")
	meta.rest()
}

// disown takes out, with a note, the marks by which a tool knows objects that it made. It would
// remove an object that bears them and that it does not know of.
func (d *draft) disown(path string, marks map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(marks)) {
		if !isOwnerMark(name) {
			continue
		}
		delete(marks, name)
		d.add(Note{Line: d.line, Path: join(path, name), Text: "the tool that made bpfman's object would take Skep's for its own, and might remove it, " +
			"so this is left out; " +
			"the tool that makes Skep's sets its own"}, path, "")
	}
}

// isOwnerMark reports whether a label or annotation is one of Argo CD's, Flux's, Helm's or
// kubectl's for objects that they made.
func isOwnerMark(name string) bool {
	prefix, _, _ := strings.Cut(name, "/")
	switch prefix {
	case "argocd.argoproj.io", "kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io", "meta.helm.sh", "applyset.kubernetes.io":
		return true
	}
	return name == "app.kubernetes.io/instance" || name == "app.kubernetes.io/managed-by" || name == "config.k8s.io/owning-inventory"
}

// common reads the fields of a spec that every generation has.
func (d *draft) common(spec *fields) {
	d.bytecode(spec)
	if s := spec.selector("nodeselector"); s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
		d.app.Spec.NodeSelector = s
	}
	spec.todo(spec.owner(), "the map of another program is named and not chosen by labels: list this application in sharedWith of "+
		"that one's map, and set maps.MAP.from here (docs/maps.md)")
	d.globalData(spec)
}

// bytecode reads where the object comes from: a URL, an image with its secret, or a path.
func (d *draft) bytecode(spec *fields) {
	const place = "spec.bytecode"
	one := spec.take("bytecode")
	switch {
	case one == nil:
		d.missing("spec.bytecode", place, "no image is given; set spec.bytecode.image")
		return
	case one.node.Kind == yaml.ScalarNode:
		d.location(one, one.node.Value)
		return
	}
	f := d.below(one.path, place, one.node)
	given := f.location("image://", "imageurl")
	if image := f.mapping(place, "image"); image != nil {
		given = image.location("image://", "url") || given
		d.pulling(image)
		image.rest()
	}
	given = f.location("file://", "path") || given
	f.rest()
	if !given {
		d.missing(one.path, place, "no image is given in it; set spec.bytecode.image")
	}
}

// location reads what follows a scheme in a URL of bytecode; false where the field is not there or
// is not text.
func (f *fields) location(scheme string, names ...string) bool {
	one := f.take(names...)
	rest := f.textOf(one)
	if rest != "" {
		f.d.location(one, scheme+rest)
	}
	return rest != ""
}

// location reads a URL of bytecode: image://REFERENCE or file:///PATH.
func (d *draft) location(one *field, url string) {
	const place = "spec.bytecode"
	reference, isImage := strings.CutPrefix(url, "image://")
	if !isImage {
		d.todo(one.node, one.path, place, written(one.node)+": Skep reads no files of nodes; pack the object by skep image build, sign it, "+
			"and set spec.bytecode.image")
		return
	}
	image := strings.TrimPrefix(strings.TrimPrefix(reference, "https://"), "http://")
	if strings.HasPrefix(image, layoutPrefix) && !d.options.Layouts {
		d.todo(one.node, one.path, place, written(one.node)+": it is a folder of the machine that reads it, which no object of a cluster may choose; "+
			"push the image to a registry, and set spec.bytecode.image")
		return
	}
	d.app.Spec.Bytecode.Image = image
}

// pulling reads how an image is pulled.
func (d *draft) pulling(image *fields) {
	if policy := image.take("imagepullpolicy"); policy != nil {
		why := "the tag is resolved by the controller and pulled by digest, once"
		if image.textOf(policy) == "Never" {
			image.todo(policy, "Never: an image that is only on a node is not found; push it to a registry")
		} else {
			image.note(policy, written(policy.node)+": not needed, "+why)
		}
	}
	secret := image.take("imagepullsecret")
	if secret == nil {
		return
	}
	name, namespace := secret.node.Value, ""
	if secret.node.Kind != yaml.ScalarNode {
		f := d.below(secret.path, "spec.bytecode.imagePullSecrets", secret.node)
		name, namespace = f.text("name"), f.text("namespace")
		f.rest()
	}
	if name == "" {
		image.todo(secret, "no Secret is named, so none is used; set spec.bytecode.imagePullSecrets")
		return
	}
	d.app.Spec.Bytecode.ImagePullSecrets = []v1alpha1.LocalSecret{{Name: name}}
	if d.namespaced && (namespace == "" || namespace == d.app.Metadata.Namespace) {
		return
	}
	where := "Skep's own namespace"
	if d.namespaced {
		where = "the application's namespace"
	}
	d.todo(secret.node, secret.path, "spec.bytecode.imagePullSecrets", "the Secret is read in "+where+"; copy it there")
}
