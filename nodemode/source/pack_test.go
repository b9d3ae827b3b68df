package source

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	"crypto/sha1" // A pack ends with it.
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/skep-dev/skep/test/fixture/gitrepo"
)

// remoteStage is a repository behind a git server, and a source that fetches it.
type remoteStage struct {
	t *testing.T
	*gitrepo.Repository
	source *gitSource
	remote *gitRemote
	// packs counts how often a pack was asked for.
	packs atomic.Int64
}

func newRemoteStage(t *testing.T, ref string) *remoteStage {
	t.Helper()
	s := &remoteStage{t: t, Repository: gitrepo.New(t)}
	server := countingGitServer(t, filepath.Dir(s.Dir), "", &s.packs)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	s.remote = &gitRemote{url: server.URL + "/" + filepath.Base(s.Dir), ref: ref, dir: filepath.Join(state, "git"), bounds: defaultPackBounds}
	s.remote.auth.CAFile = ca
	var err error
	if s.source, err = newGitSource(fetchedRef, "apps", filepath.Join(state, "trees"), s.remote.open); err != nil {
		t.Fatal(err)
	}
	return s
}

// copied is the size in bytes of everything in the copy and beside it.
func (s *remoteStage) copied() (bytes int64) {
	s.t.Helper()
	err := filepath.WalkDir(filepath.Dir(s.remote.dir), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return bytes
}

// noise is text that does not compress, of so many bytes.
func noise(t testing.TB, size int) string {
	t.Helper()
	raw := make([]byte, size*3/4)
	if _, err := rand.Read(raw); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func TestNoHistoryPilesUpInTheGitCopy(t *testing.T) {
	s := newRemoteStage(t, "main")
	s.Commit(map[string]string{"apps/a.cue": "one"})
	mustFetch(t, s.source)
	const size = 1 << 20
	for i := range 4 {
		// Without the branch, the next commit has no parent.
		if err := s.Repo.Storer.RemoveReference(plumbing.Main); err != nil {
			t.Fatal(err)
		}
		want := s.Commit(map[string]string{"apps/a.cue": fmt.Sprint(i), "noise": noise(t, size)})
		if tr := mustFetch(t, s.source); tr.Revision != want || !tr.Rewritten || gitrepo.Content(t, tr.Dir)["apps/a.cue"] != fmt.Sprint(i) {
			t.Errorf("after an orphan commit: %+v", tr)
		}
	}
	if got := s.copied(); got > 2*size {
		t.Errorf("after four commits of %d bytes without a parent, the copy has %d bytes", size, got)
	}
}

func TestTheGitCopyIsShallow(t *testing.T) {
	s := newRemoteStage(t, "")
	for i := range fetchDepth + 10 {
		s.Commit(map[string]string{"apps/a.cue": fmt.Sprint(i)})
	}
	last := mustFetch(t, s.source)
	commits := func() (n int) {
		repo, err := git.PlainOpen(s.remote.dir)
		if err != nil {
			t.Fatal(err)
		}
		for hash := plumbing.NewHash(last.Revision); ; n++ {
			c, err := repo.CommitObject(hash)
			if errors.Is(err, plumbing.ErrObjectNotFound) {
				return n
			}
			if err != nil {
				t.Fatal(err)
			}
			hash = c.ParentHashes[0]
		}
	}
	if got := commits(); got != fetchDepth {
		t.Errorf("the copy holds %d commits, want %d", got, fetchDepth)
	}
	for range fetchDepth {
		s.Commit(map[string]string{"apps/a.cue": last.Revision})
	}
	if last = mustFetch(t, s.source); last.Rewritten {
		t.Errorf("%d commits on top count as rewritten", fetchDepth)
	}
	if got := commits(); got != fetchDepth {
		t.Errorf("the copy holds %d commits, want %d", got, fetchDepth)
	}
}

func TestWhatIsThereIsNotFetchedAgain(t *testing.T) {
	for _, kind := range []string{"the default branch", "a branch", "a tag", "an annotated tag", "a commit"} {
		t.Run(kind, func(t *testing.T) {
			s := newRemoteStage(t, map[string]string{"a branch": "main", "a tag": "v1", "an annotated tag": "v1"}[kind])
			want := s.Commit(map[string]string{"apps/a.cue": "one"})
			var options *git.CreateTagOptions
			if kind == "an annotated tag" {
				options = &git.CreateTagOptions{Message: "the first", Tagger: &object.Signature{Name: "a", Email: "a@example.com", When: time.Unix(1, 0)}}
			}
			if _, err := s.Repo.CreateTag("v1", plumbing.NewHash(want), options); err != nil {
				t.Fatal(err)
			}
			if kind == "a commit" {
				s.remote.ref = want
			}
			if tr := mustFetch(t, s.source); tr.Revision != want {
				t.Errorf("revision %s, want %s", tr.Revision, want)
			}
			asked := s.packs.Load()
			if tr := mustFetch(t, s.source); tr.Revision != want || asked == 0 || s.packs.Load() != asked {
				t.Errorf("revision %s; a pack was asked for %d times, then %d", tr.Revision, asked, s.packs.Load())
			}
			// A copy that is damaged is made anew.
			if err := os.RemoveAll(filepath.Join(s.remote.dir, "objects", "pack")); err != nil {
				t.Fatal(err)
			}
			if tr := mustFetch(t, s.source); tr.Revision != want || s.packs.Load() == asked {
				t.Errorf("after the objects were lost: revision %s, asked %d times", tr.Revision, s.packs.Load())
			}
		})
	}
}

func TestARemoteRepositoryHasBounds(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*packBounds)
		file   string
		want   string
	}{
		"an object of many zeros": {file: strings.Repeat("\x00", maxTreeBytes+1), want: "33554432 bytes in one object"},
		"a large pack":            {file: noise(t, 64<<10), change: func(b *packBounds) { b.bytes = 32 << 10 }, want: "32768 bytes in its pack"},
		"much of many objects": {
			file: strings.Repeat("0", 64<<10), change: func(b *packBounds) { b.unpacked = 32 << 10 }, want: "32768 bytes once it is unpacked",
		},
		"many objects": {file: "few", change: func(b *packBounds) { b.objects = 3 }, want: "3 objects"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRemoteStage(t, "main")
			first := s.Commit(map[string]string{"apps/a.cue": "one"})
			mustFetch(t, s.source)
			if c.change != nil {
				c.change(&s.remote.bounds)
			}
			s.Commit(map[string]string{"zeros": c.file, "apps/a.cue": "two"})
			before := gitrepo.Content(t, s.source.last.Dir)
			for range 2 {
				tr, err := s.source.Fetch(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "keep definitions in a repository of their own") {
					t.Fatalf("fetch: %v; want %s", err, c.want)
				}
				if tr.Revision != first || len(before) != 1 || len(gitrepo.Content(t, tr.Dir)) != 1 {
					t.Errorf("the last tree did not stay: %+v", tr)
				}
			}
			// Once for the first commit, and for the other one with and without its history.
			if got := s.packs.Load(); got != 3 {
				t.Errorf("a pack was asked for %d times, want 3", got)
			}
			s.remote.bounds.objects = defaultPackBounds.objects
			want := s.Commit(map[string]string{"zeros": "", "apps/a.cue": "three"})
			if tr := mustFetch(t, s.source); tr.Revision != want || gitrepo.Content(t, tr.Dir)["apps/a.cue"] != "three" {
				t.Errorf("once the newest commit is within bounds: %+v", tr)
			}
		})
	}
}

func TestAFetchThatEndsReadsNoMoreOfItsPack(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	if _, err := git.PlainInit(dir, true); err != nil {
		t.Fatal(err)
	}
	w, err := newBoundedStorage(ctx, dir, defaultPackBounds).PackfileWriter()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(pack(packed{kind: plumbing.BlobObject, content: []byte("a")})); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := w.Close(); !errors.Is(err, context.Canceled) {
		t.Errorf("the pack was taken after the end: %v", err)
	}
}

// packed is an object of a pack; says is the size in its header where that is another.
type packed struct {
	kind    plumbing.ObjectType
	content []byte
	says    int
}

// pack is a pack of objects, whatever they say of themselves. A delta is made from the
// object before it.
func pack(objects ...packed) []byte {
	out := append([]byte("PACK"), 0, 0, 0, 2)
	out = binary.BigEndian.AppendUint32(out, uint32(len(objects)))
	before := 0
	for _, o := range objects {
		at, size := len(out), max(o.says, len(o.content))
		first := byte(o.kind)<<4 | byte(size&15)
		if size >>= 4; size > 0 {
			out = binary.AppendUvarint(append(out, first|128), uint64(size))
		} else {
			out = append(out, first)
		}
		if o.kind == plumbing.OFSDeltaObject {
			out = append(out, byte(at-before)&127)
		}
		var body bytes.Buffer
		z := zlib.NewWriter(&body)
		_, _ = z.Write(o.content)
		_ = z.Close()
		out, before = append(out, body.Bytes()...), at
	}
	sum := sha1.Sum(out)
	return append(out, sum[:]...)
}

// delta is one from a base of some size to a result of another.
func delta(base, result uint64) []byte {
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, base), result), 0x90, 1)
}

func TestPackBounds(t *testing.T) {
	bounds := packBounds{objects: 3, object: 1000, unpacked: 2000}
	blob, empty := packed{kind: plumbing.BlobObject, content: make([]byte, 900)}, packed{kind: plumbing.BlobObject}
	for name, c := range map[string]struct {
		objects []packed
		want    string
	}{
		"small objects":                {[]packed{blob, {kind: plumbing.OFSDeltaObject, content: delta(900, 1000)}}, ""},
		"too many objects":             {[]packed{empty, empty, empty, empty}, "3 objects"},
		"an object that is too large":  {[]packed{{kind: plumbing.BlobObject, content: make([]byte, 1001)}}, "1000 bytes in one object"},
		"one that says it is":          {[]packed{{kind: plumbing.BlobObject, says: 1 << 40}}, "1000 bytes in one object"},
		"a delta of what is too large": {[]packed{blob, {kind: plumbing.OFSDeltaObject, content: delta(900, 1001)}}, "1000 bytes in one object"},
		"a delta that is too large": {
			[]packed{blob, {kind: plumbing.OFSDeltaObject, content: append(delta(900, 10), make([]byte, 1000)...)}}, "1000 bytes in one object",
		},
		"a delta with a size beyond all":  {[]packed{blob, {kind: plumbing.OFSDeltaObject, content: delta(900, 1<<63)}}, "1000 bytes in one object"},
		"together too much":               {[]packed{blob, blob, blob}, "2000 bytes once it is unpacked"},
		"a delta, together too much":      {[]packed{blob, blob, {kind: plumbing.OFSDeltaObject, content: delta(900, 900)}}, "2000 bytes once it is unpacked"},
		"a delta without sizes":           {[]packed{blob, {kind: plumbing.OFSDeltaObject, content: []byte{5}}}, "a delta without sizes"},
		"a delta with a size of no end":   {[]packed{blob, {kind: plumbing.OFSDeltaObject, content: bytes.Repeat([]byte{255}, 30)}}, "a delta without sizes"},
		"no pack at all, as far as it is": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := bounds.check(bytes.NewReader(pack(c.objects...)))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("check: %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzPackBounds: whatever a server sends, it is checked without a panic, and what
// passes has no object beyond the bound.
func FuzzPackBounds(f *testing.F) {
	blob := packed{kind: plumbing.BlobObject, content: []byte("content")}
	f.Add(pack(blob))
	f.Add(pack(blob, packed{kind: plumbing.OFSDeltaObject, content: delta(7, 7)}))
	f.Add(pack(packed{kind: plumbing.BlobObject, says: 1 << 40}))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = packBounds{bytes: 1 << 20, objects: 100, object: 1 << 10, unpacked: 1 << 12}.check(bytes.NewReader(data))
	})
}
