package source

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/skep-dev/skep/test/fixture/gitrepo"
	"github.com/skep-dev/skep/test/harness/need"
)

func mustSource(t *testing.T, where, ref string, auth GitAuth) Source {
	t.Helper()
	s, err := New(Options{Address: where, Ref: ref, Path: "", State: t.TempDir(), Auth: auth})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustFetch(t *testing.T, s Source) Tree {
	t.Helper()
	tr, err := s.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestAFolderIsQuietWhereItsLinkLeads: files behind a link to the folder are waited for as well.
func TestAFolderIsQuietWhereItsLinkLeads(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "current")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "app.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tree := mustFetch(t, Folder(link))
	if idle := time.Since(lastChange(dir)); idle < Quiet || tree.IsStale() {
		t.Errorf("it was read %s after a change, stale %v", idle, tree.IsStale())
	}
	if err := os.WriteFile(filepath.Join(dir, "app.yaml"), []byte("more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !tree.IsStale() {
		t.Error("what was read is not stale after another change")
	}
}

func TestALocalRepositoryIsReadAtItsRef(t *testing.T) {
	r := gitrepo.New(t)
	first := r.Commit(map[string]string{"apps/a.cue": "one"})
	if _, err := r.Repo.CreateTag("v1", plumbing.NewHash(first), nil); err != nil {
		t.Fatal(err)
	}
	second := r.Commit(map[string]string{"apps/a.cue": "two", "b.yaml": "b"})
	for ref, want := range map[string]struct {
		revision string
		files    map[string]string
	}{
		"":     {second, map[string]string{"apps/a.cue": "two", "b.yaml": "b"}},
		"main": {second, map[string]string{"apps/a.cue": "two", "b.yaml": "b"}},
		"v1":   {first, map[string]string{"apps/a.cue": "one"}},
		first:  {first, map[string]string{"apps/a.cue": "one"}},
	} {
		tr := mustFetch(t, mustSource(t, "file://"+r.Dir, ref, GitAuth{}))
		if tr.Revision != want.revision || tr.Author != "dev@example.com" {
			t.Errorf("ref %q: revision %s by %s, want %s", ref, tr.Revision, tr.Author, want.revision)
		}
		if diff := cmp.Diff(want.files, gitrepo.Content(t, tr.Dir)); diff != "" {
			t.Errorf("ref %q: files (-want +got):\n%s", ref, diff)
		}
	}
	if _, err := mustSource(t, "file://"+r.Dir, "nope", GitAuth{}).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("a ref that is not there: %v", err)
	}
}

func TestOnlyWhatLiesBelowThePathCounts(t *testing.T) {
	r := gitrepo.New(t)
	files := map[string]string{"apps/a.cue": "a", "apps/limits.json": "{}", "appsbeside/x.yaml": "x", "lib/l.cue": "l", "cue.mod/module.cue": "m"}
	// One blob, which the tree has five times: together more than its bound.
	video := strings.Repeat("0", 8<<20)
	for i := range 5 {
		files[fmt.Sprintf("video/%d.json", i)] = video
	}
	r.Commit(files)
	fetch := func(sub string) (Tree, error) {
		s, err := New(Options{Address: "file://" + r.Dir, Ref: "", Path: sub, State: t.TempDir(), Auth: GitAuth{}})
		if err != nil {
			t.Fatal(err)
		}
		return s.Fetch(t.Context())
	}
	for _, sub := range []string{"", ".", "video"} {
		if _, err := fetch(sub); err == nil || !strings.Contains(err.Error(), "name it with --path") {
			t.Errorf("path %q: %v", sub, err)
		}
	}
	got, err := fetch("./apps/")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"apps/a.cue": "a", "apps/limits.json": "{}", "lib/l.cue": "l", "cue.mod/module.cue": "m"}
	if diff := cmp.Diff(want, gitrepo.Content(t, got.Dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	r.Commit(map[string]string{"lib/large.cue": strings.Repeat("//\n", maxTreeBytes/3+1)})
	if _, err := fetch("apps"); err == nil || !strings.Contains(err.Error(), "of CUE around apps") {
		t.Errorf("CUE without bounds: %v", err)
	}
}

func TestARepositoryThatGoesLeavesTheLastTree(t *testing.T) {
	r := gitrepo.New(t)
	r.Commit(map[string]string{"a.cue": "one"})
	s := mustSource(t, "file://"+r.Dir, "", GitAuth{})
	before := mustFetch(t, s)
	if err := os.Rename(r.Dir, r.Dir+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(r.Dir + ".away") })
	after, err := s.Fetch(t.Context())
	if err == nil {
		t.Error("a repository that is gone was read")
	}
	if after.Dir != before.Dir || len(gitrepo.Content(t, after.Dir)) != 1 {
		t.Error("the last tree is gone with it")
	}
	if err := os.Rename(r.Dir+".away", r.Dir); err != nil {
		t.Fatal(err)
	}
	if got := mustFetch(t, s); got.Revision != before.Revision {
		t.Errorf("back again at %s, want %s", got.Revision, before.Revision)
	}
}

func TestRewrittenHistoryIsNoticed(t *testing.T) {
	r := gitrepo.New(t)
	first := r.Commit(map[string]string{"a.cue": "one"})
	r.Commit(map[string]string{"a.cue": "two"})
	s := mustSource(t, "file://"+r.Dir, "", GitAuth{})
	mustFetch(t, s)
	r.Commit(map[string]string{"a.cue": "three"})
	if tr := mustFetch(t, s); tr.Rewritten {
		t.Error("a commit on top counts as rewritten")
	}
	tree, err := r.Repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Reset(&git.ResetOptions{Commit: plumbing.NewHash(first), Mode: git.HardReset}); err != nil {
		t.Fatal(err)
	}
	r.Commit(map[string]string{"a.cue": "four"})
	tr := mustFetch(t, s)
	if !tr.Rewritten || gitrepo.Content(t, tr.Dir)["a.cue"] != "four" {
		t.Errorf("rewritten %v, files %v", tr.Rewritten, gitrepo.Content(t, tr.Dir))
	}
}

func TestLinksOfACommitAreLeftOut(t *testing.T) {
	r := gitrepo.New(t)
	if err := os.Symlink("/etc/passwd", filepath.Join(r.Dir, "link.yaml")); err != nil {
		t.Fatal(err)
	}
	tree, err := r.Repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Add("link.yaml"); err != nil {
		t.Fatal(err)
	}
	r.Commit(map[string]string{"a.cue": "one"})
	got := gitrepo.Content(t, mustFetch(t, mustSource(t, "file://"+r.Dir, "", GitAuth{})).Dir)
	if diff := cmp.Diff(map[string]string{"a.cue": "one"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// gitServer is git's own HTTP server, asking for a password.
func gitServer(t testing.TB, root, password string) *httptest.Server {
	t.Helper()
	return countingGitServer(t, root, password, new(atomic.Int64))
}

// countingGitServer is one that counts how often a pack was asked for.
func countingGitServer(t testing.TB, root, password string, packs *atomic.Int64) *httptest.Server {
	t.Helper()
	backend := gitrepo.Handler(t, root)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, got, _ := r.BasicAuth(); got != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasSuffix(r.URL.Path, "/git-upload-pack") {
			packs.Add(1)
		}
		backend.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestARepositoryOverHTTPS(t *testing.T) {
	r := gitrepo.New(t)
	r.Commit(map[string]string{"a.cue": "one"})
	const password = "correct-horse"
	server := gitServer(t, filepath.Dir(r.Dir), password)
	ca, secret := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	where := server.URL + "/" + filepath.Base(r.Dir)
	auth := GitAuth{Username: "skep", PasswordFile: secret, CAFile: ca}

	s := mustSource(t, where, "main", auth)
	if got := gitrepo.Content(t, mustFetch(t, s).Dir); got["a.cue"] != "one" {
		t.Errorf("files %v", got)
	}
	second := r.Commit(map[string]string{"a.cue": "two"})
	if tr := mustFetch(t, s); tr.Revision != second || tr.Rewritten || gitrepo.Content(t, tr.Dir)["a.cue"] != "two" {
		t.Errorf("second fetch: %+v", tr)
	}
	server.Close()
	if tr, err := s.Fetch(t.Context()); err == nil || tr.Revision != second {
		t.Errorf("a server that is down: %v, %s", err, tr.Revision)
	}
}

// sshServer lets one key run git-upload-pack, as a git host does, and returns
// its address and its line for known_hosts.
func sshServer(t *testing.T, client ssh.PublicKey) (address, known string) {
	t.Helper()
	need.Program(t, "git-upload-pack", "git")
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(offered.Marshal(), client.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(signer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveSSH(conn, config)
		}
	}()
	return l.Addr().String(), knownhosts.Line([]string{l.Addr().String()}, signer.PublicKey())
}

// serveSSH runs the command of every session that asks for git-upload-pack.
func serveSSH(conn net.Conn, config *ssh.ServerConfig) {
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		for r := range requests {
			var command struct{ Text string }
			if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil {
				_ = r.Reply(false, nil)
				continue
			}
			_ = r.Reply(true, nil)
			dir := strings.Trim(strings.TrimPrefix(command.Text, "git-upload-pack "), "'")
			run := exec.Command("git", "-c", "safe.directory=*", "upload-pack", dir)
			run.Stdin, run.Stdout = channel, channel
			status := struct{ Code uint32 }{}
			if run.Run() != nil {
				status.Code = 1
			}
			_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(status))
			_ = channel.Close()
		}
	}
}

func TestARepositoryOverSSH(t *testing.T) {
	r := gitrepo.New(t)
	want := r.Commit(map[string]string{"a.cue": "one"})
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	client, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	address, line := sshServer(t, client)
	dir := t.TempDir()
	identity, known, other := filepath.Join(dir, "id"), filepath.Join(dir, "known"), filepath.Join(dir, "other")
	stranger := knownhosts.Line([]string{address}, client)
	for path, body := range map[string][]byte{identity: pem.EncodeToMemory(block), known: []byte(line + "\n"), other: []byte(stranger + "\n")} {
		if err := os.WriteFile(path, body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	where := "ssh://git@" + address + r.Dir
	if tr := mustFetch(t, mustSource(t, where, "main", GitAuth{IdentityFile: identity, KnownHostsFile: known})); tr.Revision != want {
		t.Errorf("revision %s, want %s", tr.Revision, want)
	}
	if _, err := mustSource(t, where, "main", GitAuth{IdentityFile: identity, KnownHostsFile: other}).Fetch(t.Context()); err == nil {
		t.Error("a server with another key than the known one was believed")
	}
}

func TestAGitPasswordNeverShows(t *testing.T) {
	r := gitrepo.New(t)
	r.Commit(map[string]string{"a.cue": "one"})
	server := gitServer(t, filepath.Dir(r.Dir), "right")
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User, u.Path = url.UserPassword("skep", "hunter2"), "/"+filepath.Base(r.Dir)
	_, err = mustSource(t, u.String(), "", GitAuth{}).Fetch(t.Context())
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("fetch with a wrong password over a certificate nobody knows: %v", err)
	}
	u.RawQuery = "token=abc"
	_, err = mustSource(t, u.String(), "", GitAuth{}).Fetch(t.Context())
	if err == nil || strings.Contains(err.Error(), "abc") {
		t.Errorf("fetch with a token in the query: %v", err)
	}
	u.User, u.RawQuery = url.User("tok3n"), ""
	_, err = mustSource(t, u.String(), "", GitAuth{}).Fetch(t.Context())
	if err == nil || strings.Contains(err.Error(), "tok3n") {
		t.Errorf("fetch with a token for a user: %v", err)
	}
}

// TestAGitServerRepeatsThePassword answers with the password that it was shown.
func TestAGitServerRepeatsThePassword(t *testing.T) {
	const password = "correct-horse"
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTeapot, http.StatusOK} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, got, _ := r.BasicAuth()
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			w.WriteHeader(status)
			line := fmt.Sprintf("ERR no: %s %q %s\x1b[31mred", got, got, r.Header.Get("Authorization"))
			fmt.Fprintf(w, "%04x%s", len(line)+4, line)
		}))
		t.Cleanup(server.Close)
		_, err := mustSource(t, server.URL+"/b.git", "", GitAuth{Username: "skep", PasswordFile: secret}).Fetch(t.Context())
		if err == nil || strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "\x1b") || strings.Contains(err.Error(), "Basic") {
			t.Errorf("%d: %v", status, err)
		}
	}
}

func TestAPasswordIsShownToNobodyOnTheWay(t *testing.T) {
	for _, where := range []string{"http://skep:hunter2@git.example.com/b.git", "http://tok3n@192.0.2.1/b.git"} {
		_, err := mustSource(t, where, "", GitAuth{}).Fetch(t.Context())
		if err == nil || !strings.Contains(err.Error(), "use https or ssh") {
			t.Errorf("%s: %v", Redact(where), err)
		}
	}
}

func TestAnAddressIsShownWithoutItsSecrets(t *testing.T) {
	for where, want := range map[string]string{
		"https://git.example.com/bpf.git":               "https://git.example.com/bpf.git",
		"https://u:hunter2@git.example.com/b?token=c#d": "https://git.example.com/b",
		"https://tok3n@git.example.com/bpf.git":         "https://git.example.com/bpf.git",
		"https://u:hunter%zz@git.example.com/bpf.git":   "https://git.example.com/bpf.git",
		"ssh://git:hunter2@git.example.com/bpf.git":     "ssh://git:xxxxx@git.example.com/bpf.git",
		"git@git.example.com:bpf.git":                   "git@git.example.com:bpf.git",
		"file:///srv/bpf.git":                           "file:///srv/bpf.git",
		"./definitions":                                 "./definitions",
	} {
		if got := Redact(where); got != want {
			t.Errorf("Redact(%s) = %s, want %s", where, got, want)
		}
	}
}

func TestSourcesThatAreNoneAreRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.cue")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Address: file, Ref: "", Path: "", State: t.TempDir(), Auth: GitAuth{}}); err == nil {
		t.Error("a file was opened as a folder")
	}
	if _, err := mustSource(t, "/nowhere", "", GitAuth{}).Fetch(t.Context()); err == nil {
		t.Error("a folder that is not there was read")
	}
}

func TestNoTreeIsLeftBehind(t *testing.T) {
	r := gitrepo.New(t)
	state := t.TempDir()
	trees := filepath.Join(state, "trees")
	left := func() (names []string) {
		entries, err := os.ReadDir(trees)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	open := func() Source {
		s, err := New(Options{Address: "file://" + r.Dir, State: state})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := r.Commit(map[string]string{"a.cue": "one"})
	mustFetch(t, open())
	lay(t, filepath.Join(trees, ".export-1", "a.cue"))
	s := open()
	if names := left(); len(names) != 0 {
		t.Errorf("at the start there are %v", names)
	}
	mustFetch(t, s)
	lay(t, filepath.Join(trees, ".export-2", "a.cue"))
	want := r.Commit(map[string]string{"a.cue": "two"})
	mustFetch(t, s)
	if names := left(); fmt.Sprint(names) != fmt.Sprint([]string{want}) || want == before {
		t.Errorf("after a commit there are %v, want %s", names, want)
	}
}

// lay writes a small file in a folder that it makes.
func lay(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}
