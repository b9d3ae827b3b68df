// Package archives stores what CueArtifacts publish as archives, and serves them. It unpacks those of sources.
//
// It owns the folder: how archives are named, how many there are and how much room they take.
// It knows neither what is in an archive nor who asks for it.
package archives

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxcd/pkg/apis/meta"
	"github.com/fluxcd/pkg/artifact/config"
	"github.com/fluxcd/pkg/artifact/storage"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skep-dev/skep/api/v1alpha1"
)

// Options say where archives are stored, and how many.
type Options struct {
	// Dir is a folder of the store's own. Needed.
	Dir string
	// Address is where the archives are served. Advertised is the host[:port] that clients
	// reach it at, which the URLs of artifacts have; an IP address alone has the port of
	// Address. Empty means Address, on localhost where that names no host.
	Address, Advertised string
	// RetentionRecords is how many archives of a CueArtifact are kept, and RetentionTTL how
	// long those are that a newer one replaced; zero means 2 and a minute.
	RetentionRecords int
	RetentionTTL     time.Duration
	// MaxBytes is the room for all archives, of which one namespace has half, and the last quarter is for namespaces
	// that have less than a sixty-fourth; zero means 1 GiB.
	MaxBytes int64
}

// Store keeps the archives of CueArtifacts on disk.
type Store struct {
	storage  *storage.Storage
	maxBytes int64

	// storing is held from asking for room until it is taken.
	storing sync.Mutex
	// mu guards what follows.
	mu sync.Mutex
	// scratch are the folders of what is being rendered.
	scratch map[string]bool
}

// maxOfNamespace is how many archives one namespace has at most.
const maxOfNamespace = 2000

// MaxContent is how many bytes of content an archive has at most.
const MaxContent = 16 << 20

// The names in the store: the one file of an archive, the suffix of archives, and the folder
// of what is not an archive yet.
const (
	archived      = "definitions.yaml"
	archiveSuffix = ".tar.gz"
	scratchDir    = "tmp"
)

// collectTimeout bounds how long old archives of one CueArtifact are looked for.
const collectTimeout = 5 * time.Second

// New opens a store, and makes its folder.
func New(o Options) (*Store, error) {
	if err := os.MkdirAll(filepath.Join(o.Dir, scratchDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of artifacts: %w", err)
	}
	s, err := storage.New(&config.Options{
		StoragePath: o.Dir, StorageAddress: o.Address, StorageAdvAddress: o.advertised(),
		ArtifactRetentionTTL: orDefault(o.RetentionTTL, time.Minute), ArtifactRetentionRecords: orDefault(o.RetentionRecords, 2),
	})
	if err != nil {
		return nil, fmt.Errorf("open the folder of artifacts: %w", err)
	}
	return &Store{storage: s, maxBytes: orDefault(o.MaxBytes, 1<<30), scratch: map[string]bool{}}, nil
}

// advertised is what URLs have for a host.
func (o Options) advertised() string {
	_, port, err := net.SplitHostPort(o.Address)
	if err != nil || net.ParseIP(o.Advertised) == nil {
		return o.Advertised
	}
	return net.JoinHostPort(o.Advertised, port)
}

// orDefault is a value, or what stands for none.
func orDefault[T int | int64 | time.Duration](value, otherwise T) T {
	if value <= 0 {
		return otherwise
	}
	return value
}

// Scratch makes a folder for what is being rendered, which remove removes. No sweep does.
func (s *Store) Scratch() (dir string, remove func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, err = os.MkdirTemp(filepath.Join(s.storage.BasePath, scratchDir), "")
	if err != nil {
		return "", nil, err
	}
	s.scratch[dir] = true
	return dir, func() {
		_ = os.RemoveAll(dir)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.scratch, dir)
	}, nil
}

// revisionMark stands in a revision between the source's and the digest of the content.
const revisionMark = "/sha256:"

// origin is the source's part of a revision.
func origin(revision string) string {
	before, _, _ := cutLast(revision, revisionMark)
	return before
}

// cutLast cuts at the last mark.
func cutLast(s, mark string) (before, after string, found bool) {
	i := strings.LastIndex(s, mark)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(mark):], true
}

// artifact is what is announced of the content with a digest, in hexadecimal digits.
func (s *Store) artifact(o *v1alpha1.CueArtifact, revision, digest string) meta.Artifact {
	a := s.storage.NewArtifactFor(v1alpha1.KindCueArtifact, o, revision, digest+archiveSuffix)
	a.Metadata = map[string]string{"org.opencontainers.image.revision": origin(revision)}
	return a
}

// Stored is what is announced of the archive that a status says is published; nil where there
// is none, or it is not what the status says. Nothing else of the status is believed.
func (s *Store) Stored(o *v1alpha1.CueArtifact) *meta.Artifact {
	former := o.Status.Artifact
	if former == nil {
		return nil
	}
	_, digest, ok := cutLast(former.Revision, revisionMark)
	if !ok || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
		return nil
	}
	a := s.artifact(o, former.Revision, digest)
	a.Digest, a.LastUpdateTime = former.Digest, former.LastUpdateTime
	info, err := os.Stat(s.storage.LocalPath(a))
	if err != nil || s.storage.VerifyArtifact(a) != nil {
		return nil
	}
	size := info.Size()
	a.Size = &size
	return &a
}

// Has reports whether an archive is stored.
func (s *Store) Has(a *meta.Artifact) bool { return a != nil && s.storage.ArtifactExist(*a) }

// Put stores content with a digest, in hexadecimal digits, as an archive. Content that the status says is published keeps its
// revision, also where its archive was lost.
func (s *Store) Put(o *v1alpha1.CueArtifact, sourceRevision string, content []byte, digest string) (meta.Artifact, error) {
	former, revision := o.Status.Artifact, sourceRevision+revisionMark+digest
	same := former != nil && strings.HasSuffix(former.Revision, revisionMark+digest)
	if same {
		if a := s.Stored(o); a != nil {
			return *a, nil
		}
		revision = former.Revision
	}
	s.storing.Lock()
	defer s.storing.Unlock()
	if err := s.hasRoom(o.Namespace, int64(len(content))); err != nil {
		return meta.Artifact{}, err
	}
	if err := s.replace(o); err != nil {
		return meta.Artifact{}, err
	}
	a := s.artifact(o, revision, digest)
	if err := s.archive(&a, content); err != nil {
		return meta.Artifact{}, err
	}
	if same && former.Digest == a.Digest {
		a.LastUpdateTime = former.LastUpdateTime
	}
	return a, nil
}

// replace has the time for which what is published is kept count from now: clients may have
// learned of it just before.
func (s *Store) replace(o *v1alpha1.CueArtifact) error {
	former := s.Stored(o)
	if former == nil {
		return nil
	}
	now := time.Now()
	return os.Chtimes(s.storage.LocalPath(*former), now, now)
}

// archive writes an archive.
func (s *Store) archive(a *meta.Artifact, content []byte) error {
	dir, remove, err := s.Scratch()
	if err != nil {
		return err
	}
	defer remove()
	if err := os.WriteFile(filepath.Join(dir, archived), content, 0o600); err != nil {
		return err
	}
	if err := s.storage.MkdirAll(*a); err != nil {
		return err
	}
	if err := s.storage.Archive(a, dir, nil); err != nil {
		return err
	}
	// As an API server stores it.
	a.LastUpdateTime = a.LastUpdateTime.Rfc3339Copy()
	return nil
}

// root is the folder of the archives.
func (s *Store) root() string {
	return filepath.Join(s.storage.BasePath, strings.ToLower(v1alpha1.KindCueArtifact))
}

// usage is how many bytes archives have, and how many they are.
type usage struct {
	bytes int64
	count int
}

// used is the usage of all archives in a folder; none where there is no such folder.
func used(dir string) (u usage, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !strings.HasSuffix(e.Name(), archiveSuffix) {
			return err
		}
		if info, err := e.Info(); err == nil {
			u.bytes, u.count = u.bytes+info.Size(), u.count+1
		}
		return nil
	})
	return u, err
}

// hasRoom says why so many bytes more of a namespace cannot be stored. One namespace has half
// of the room, and the last quarter is a reserve for those that have little: so neither one namespace
// nor two leave others without room. The caller holds storing.
func (s *Store) hasRoom(namespace string, more int64) error {
	all, err := used(s.root())
	if err != nil {
		return err
	}
	own, err := used(filepath.Join(s.root(), namespace))
	switch {
	case err != nil:
		return err
	case all.bytes+more > s.maxBytes:
		return fmt.Errorf("the artifacts of all CueArtifacts have %d MiB, and %d MiB is the room there is: delete some, "+
			"keep fewer (--artifact-retention-records), or give more room (--artifact-storage-size)",
			all.bytes>>20, s.maxBytes>>20)
	case own.bytes+more > s.maxBytes/2:
		return fmt.Errorf("the artifacts of namespace %s have %d MiB, and %d MiB is the share of one namespace: delete some CueArtifacts of it, "+
			"or have an admin give more room (--artifact-storage-size)",
			namespace, own.bytes>>20, s.maxBytes>>21)
	case all.bytes+more > s.maxBytes/4*3 && own.bytes+more > s.maxBytes/64:
		return fmt.Errorf("the artifacts of all CueArtifacts have %d MiB, those of namespace %s %d MiB, and of %d MiB the last quarter is the share "+
			"of namespaces that have less than %d MiB: delete some CueArtifacts, or have an admin give more room (--artifact-storage-size)",
			all.bytes>>20, namespace, own.bytes>>20, s.maxBytes>>20, s.maxBytes>>26)
	case own.count >= maxOfNamespace:
		return fmt.Errorf("namespace %s has %d artifacts, and %d are the share of one namespace: delete some CueArtifacts of it, "+
			"or have an admin keep fewer of each (--artifact-retention-records)",
			namespace, own.count, maxOfNamespace)
	}
	return nil
}

// Read reads what an archive has.
func (s *Store) Read(a meta.Artifact) ([]byte, error) {
	f, err := os.Open(s.storage.LocalPath(a))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err != nil {
			return nil, err
		}
		if header.Name == archived {
			return io.ReadAll(io.LimitReader(files, MaxContent))
		}
	}
}

// Collect removes what a CueArtifact published before, except the last of it.
func (s *Store) Collect(ctx context.Context, a meta.Artifact) error {
	_, err := s.storage.GarbageCollect(ctx, a, collectTimeout)
	return err
}

// Remove removes all archives of the CueArtifact of a name.
func (s *Store) Remove(name types.NamespacedName) error {
	o := &v1alpha1.CueArtifact{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	_, err := s.storage.RemoveAll(s.artifact(o, "", "any"))
	return err
}

// Sweep removes what was being rendered when a process ended, and the archives of CueArtifacts
// that are not there. list lists those that are there; it is called once the archives are
// listed, so that none is removed which is stored meanwhile.
func (s *Store) Sweep(list func() (exist map[types.NamespacedName]bool, err error)) error {
	errs := []error{s.sweepScratch()}
	dirs, err := filepath.Glob(filepath.Join(s.root(), "*", "*"))
	errs = append(errs, err)
	exist, err := list()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, dir := range dirs {
		if !exist[types.NamespacedName{Namespace: filepath.Base(filepath.Dir(dir)), Name: filepath.Base(dir)}] {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}

// sweepScratch removes the folders of what nothing renders any more.
func (s *Store) sweepScratch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirs, err := filepath.Glob(filepath.Join(s.storage.BasePath, scratchDir, "*"))
	errs := []error{err}
	for _, dir := range dirs {
		if !s.scratch[dir] {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	return errors.Join(errs...)
}
