package cueartifact

import (
	archivetar "archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/http/fetch"
	"github.com/fluxcd/pkg/tar"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/text"
)

// The bounds of a source's artifact: bytes of the archive, bytes and files in it, and how
// deep they are nested.
const (
	maxDownload = 50 << 20
	maxUnpacked = 256 << 20
	maxFiles    = 20_000
	maxDepth    = 64
)

// sources are the kinds of sources.
var sources = []string{sourcev1.GitRepositoryKind, sourcev1.OCIRepositoryKind, sourcev1.BucketKind, sourcev1.ExternalArtifactKind}

// fluxObject is an empty object of a kind of Flux as it is cached: not decoded. What Flux's
// schema admits, Go's types may not hold, such as an interval of 99999999999h, and then a list
// of decoded objects would fail as a whole, for all tenants.
func fluxObject(kind string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(sourcev1.GroupVersion.WithKind(kind))
	return o
}

// sourceState is what is read of a source: its status, and nothing of its spec.
type sourceState struct {
	Artifact   *meta.Artifact     `json:"artifact"`
	Conditions []metav1.Condition `json:"conditions"`
	// IncludedArtifacts are of other repositories, and are in the artifact too. The source's
	// signature says nothing of them.
	IncludedArtifacts []meta.Artifact `json:"includedArtifacts"`

	// Generation is that of the source, which is no field of its status.
	Generation int64 `json:"-"`
}

// stateOf decodes what is read of a source.
func stateOf(o *unstructured.Unstructured) (s sourceState, err error) {
	status, _, err := unstructured.NestedMap(o.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(status, &s)
	}
	if err != nil {
		return sourceState{}, fmt.Errorf("decode its status: %w", err)
	}
	s.Generation = o.GetGeneration()
	return s, nil
}

// sourceKey names the source of a CueArtifact in the field index.
func sourceKey(kind string, name types.NamespacedName) string { return kind + "/" + name.String() }

// sourceName is the name of a CueArtifact's source.
func sourceName(o *v1alpha1.CueArtifact) types.NamespacedName {
	ref := o.Spec.SourceRef
	return types.NamespacedName{Namespace: cmp.Or(ref.Namespace, o.Namespace), Name: ref.Name}
}

// source returns the artifact that a CueArtifact is rendered from.
func (r *Reconciler) source(ctx context.Context, o *v1alpha1.CueArtifact) (*meta.Artifact, error) {
	ref, name := o.Spec.SourceRef, sourceName(o)
	what := fmt.Sprintf("%s %s", ref.Kind, name)
	if name.Namespace != o.Namespace && r.NoCrossNamespaceRefs {
		return nil, stalled(ReasonAccessDenied, "get %s: sources of other namespaces are not read (--no-cross-namespace-refs): name one of namespace %s",
			what, o.Namespace)
	}
	if err := r.circular(ctx, o); err != nil {
		return nil, err
	}
	if !r.kinds[ref.Kind] {
		return nil, stalled(ReasonSourceNotReady, "get %s: the cluster had no such kind when the controller started: install it, and restart the controller", what)
	}
	object := fluxObject(ref.Kind)
	switch err := r.Flux.Get(ctx, name, object); {
	case apierrors.IsNotFound(err):
		return nil, retry(ReasonSourceNotReady, "get %s: it is not there: create it, or correct spec.sourceRef", what)
	case err != nil:
		return nil, retry(ReasonSourceNotReady, "get %s: %w", what, err)
	}
	src, err := stateOf(object)
	if err != nil {
		return nil, retry(ReasonSourceNotReady, "get %s: %w", what, err)
	}
	a := src.Artifact
	if a == nil || a.URL == "" || a.Digest == "" {
		return nil, retry(ReasonSourceNotReady, "get %s: it has no artifact yet: its status says why", what)
	}
	if o.Spec.RequireVerifiedSource && len(src.IncludedArtifacts) > 0 {
		return nil, retry(ReasonSourceNotVerified, "get %s: it includes other repositories, whose signatures its spec.verify does not verify, "+
			"and spec.requireVerifiedSource asks for: take them out of its spec.include, and render them by CueArtifacts of their own", what)
	}
	if o.Spec.RequireVerifiedSource && !src.verified() {
		return nil, retry(ReasonSourceNotVerified, "get %s: its condition SourceVerified is not True for its present generation, "+
			"which spec.requireVerifiedSource asks for: give it spec.verify", what)
	}
	return a, nil
}

// maxChain is how many CueArtifacts may be rendered from each other.
const maxChain = 16

// circular denies a source that is rendered, by however many CueArtifacts, from what this one
// publishes: nothing new would ever come into such a circle. What a CueArtifact publishes has its
// name.
func (r *Reconciler) circular(ctx context.Context, o *v1alpha1.CueArtifact) error {
	self, at, what := client.ObjectKeyFromObject(o), o, ""
	for range maxChain {
		if at.Spec.SourceRef.Kind != sourcev1.ExternalArtifactKind {
			return nil
		}
		name := sourceName(at)
		what += " from " + name.String()
		if name == self {
			return stalled(ReasonAccessDenied, "get ExternalArtifact %s: it is what this CueArtifact publishes, which is rendered%s: name another source",
				sourceName(o), what)
		}
		at = &v1alpha1.CueArtifact{}
		if err := r.Client.Get(ctx, name, at); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("get CueArtifact %s: %w", name, err)
		}
	}
	return stalled(ReasonAccessDenied, "get ExternalArtifact %s: more than %d CueArtifacts are rendered from each other: name the source of the first",
		sourceName(o), maxChain)
}

// verified reports whether a source's signature was verified, for its present generation, and is
// about all of the artifact.
func (s sourceState) verified() bool {
	c := apimeta.FindStatusCondition(s.Conditions, sourcev1.SourceVerifiedCondition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == s.Generation && len(s.IncludedArtifacts) == 0
}

// fetchInto downloads a source's artifact, verifies its digest and unpacks it into a folder.
func fetchInto(ctx context.Context, a meta.Artifact, dir string) error {
	const archive = "source.tar.gz"
	fetcher := fetch.New(fetch.WithMaxDownloadSize(maxDownload), fetch.WithFileName(archive))
	if err := fetcher.FetchWithContext(ctx, a.URL, a.Digest, dir); err != nil {
		return fmt.Errorf("fetch revision %s: %w", a.Revision, withoutSecrets(err, a.URL))
	}
	file := filepath.Join(dir, archive)
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open revision %s: %w", a.Revision, errors.Unwrap(err))
	}
	defer f.Close()
	if err := unpack(ctx, f, filepath.Join(dir, "source")); err != nil {
		return fmt.Errorf("unpack revision %s: %w", a.Revision, err)
	}
	return os.Remove(file)
}

// addresses matches the addresses in an error of net/http, which quotes them: that of the source,
// and those that its server redirects to, whose queries are signatures.
var addresses = regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"]+`)

// withoutSecrets takes user, password, query and fragment of each address out of an error.
func withoutSecrets(err error, address string) error {
	if errors.Is(err, fetch.ErrFileNotFound) {
		return errors.New("the source's server has it no longer: the source announces another soon")
	}
	// An address may have spaces and quotes in it.
	message := strings.ReplaceAll(err.Error(), address, safe(address))
	return errors.New(addresses.ReplaceAllStringFunc(message, safe))
}

// safe is an address without user, password, query and fragment.
func safe(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that is none"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// unpack unpacks an archive within bounds, whole: Flux would prune what a part of it lacks.
func unpack(ctx context.Context, from io.Reader, dir string) error {
	bounded := &boundedArchive{ctx: ctx, from: from, files: map[[sha256.Size]byte]bool{}, folders: map[[sha256.Size]byte]bool{}}
	unzipped, err := gzip.NewReader(bounded)
	if err != nil {
		return fmt.Errorf("it is not compressed by gzip: %w", cmp.Or(bounded.err, err))
	}
	content := &wholeArchive{from: unzipped}
	err = tar.Untar(content, dir, tar.WithMaxUntarSize(maxUnpacked), tar.WithSkipGzip(), tar.WithSkipSymlinks(), tar.WithFilter(bounded.filter))
	if bounded.err != nil {
		return bounded.err
	}
	if path := (*os.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return cmp.Or(err, content.end())
}

// wholeArchive is the content of an archive, of which readers of archives do not say whether it
// ends where its author ended it.
type wholeArchive struct {
	from io.Reader
	// cut reports whether the content ended before its reader did.
	cut bool
}

// Read implements io.Reader.
func (w *wholeArchive) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	if n > 0 && errors.Is(err, io.EOF) {
		return n, nil
	}
	w.cut = w.cut || errors.Is(err, io.EOF)
	return n, err
}

// maxPadding is how many bytes of zeros may follow the end of an archive: a record of tar has 10 KiB,
// or what --blocking-factor says.
const maxPadding = 1 << 20

// end returns an error where the archive has no end, or something follows it, such as a second
// archive.
func (w *wholeArchive) end() error {
	if w.cut {
		return errors.New("it has no end-of-archive mark, so it was cut off: have the source make it anew")
	}
	rest, err := io.ReadAll(io.LimitReader(w.from, maxPadding+1))
	switch {
	case err != nil:
		return fmt.Errorf("read what follows the end of the archive: %w", err)
	case len(rest) > maxPadding || len(bytes.Trim(rest, "\x00")) > 0:
		return errors.New("something follows the end of the archive, such as a second one: pack all files in one archive")
	}
	return nil
}

// boundedArchive is an archive that cannot be read on when a bound is passed.
type boundedArchive struct {
	ctx  context.Context
	from io.Reader
	// entries counts what the archive has. files are hashes of the names of its files, and
	// folders of the folders that they are in.
	entries        int
	files, folders map[[sha256.Size]byte]bool
	err            error
}

// Read implements io.Reader.
func (b *boundedArchive) Read(p []byte) (int, error) {
	if err := cmp.Or(b.err, b.ctx.Err()); err != nil {
		return 0, err
	}
	return b.from.Read(p)
}

// filter counts what is unpacked, and passes over all that follows a bound. Nothing that may have
// been a definition is passed over: an application behind it would be left out.
func (b *boundedArchive) filter(name string, info os.FileInfo) bool {
	header, ok := info.Sys().(*archivetar.Header)
	if ok && header.Typeflag == archivetar.TypeXGlobalHeader {
		return true // It is no file, but what git archive says of all files.
	}
	b.entries++
	switch {
	case b.entries > maxFiles:
		b.err = fmt.Errorf("it has more than %d files: leave some out by spec.ignore of the source", maxFiles)
	case strings.Count(name, "/") > maxDepth:
		b.err = fmt.Errorf("it has folders nested deeper than %d: leave them out by spec.ignore of the source", maxDepth)
	case !b.countFolders(name):
		b.err = fmt.Errorf("it has more than %d folders: leave some out by spec.ignore of the source", maxFiles)
	case !ok:
		b.err = fmt.Errorf("%s is of an unknown type", text.Cut(name, maxName))
	default:
		b.err = b.check(header)
	}
	return b.err != nil
}

// check rejects an entry that is neither a file nor a folder, and a file that comes twice.
func (b *boundedArchive) check(header *archivetar.Header) error {
	const left = "or leave it out by spec.ignore of the source"
	name := text.Cut(header.Name, maxName)
	switch header.Typeflag {
	case archivetar.TypeDir:
		return nil
	case archivetar.TypeReg, archivetar.TypeGNUSparse:
	case archivetar.TypeSymlink:
		// Behind one may be definitions, or a folder of them.
		return fmt.Errorf("%s is a symbolic link, and links are not followed: put what it leads to there, %s", name, left)
	case archivetar.TypeLink:
		return fmt.Errorf("%s is a hard link to %s, and links are not followed: pack it as a file of its own (tar --hard-dereference), %s",
			name, text.Cut(header.Linkname, maxName), left)
	default:
		return fmt.Errorf("%s is neither a file nor a folder, but of type %q: put a file there, %s", name, header.Typeflag, left)
	}
	sum := sha256.Sum256([]byte(path.Clean(header.Name)))
	if b.files[sum] {
		return fmt.Errorf("%s is in the archive twice: pack each file once", name)
	}
	b.files[sum] = true
	return nil
}

// maxName bounds how much of a file's name is told, in bytes.
const maxName = 256

// countFolders counts the folders that a file is in; false where there are too many.
func (b *boundedArchive) countFolders(name string) bool {
	for dir := path.Dir(path.Clean(name)); dir != "." && dir != "/"; dir = path.Dir(dir) {
		sum := sha256.Sum256([]byte(dir))
		if b.folders[sum] {
			break
		}
		b.folders[sum] = true
	}
	return len(b.folders) <= maxFiles
}
