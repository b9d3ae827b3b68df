package nodemode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/skep-dev/skep/image"
)

// Bounds of what is taken out of a git commit: of the files below the path, and
// once more of the CUE files around it, which may be imported.
const (
	maxTreeFiles = 10_000
	maxTreeBytes = 32 << 20
)

// maxWaits bounds, in times of quiet, how long a folder that is written to all
// the time is waited for.
const maxWaits = 25

// tree is a source at one revision, as a folder to read.
type tree struct {
	// dir holds the files.
	dir string
	// revision is ref@commit for git and empty for a folder, whose content may
	// change under the same name.
	revision string
	// state is equal for trees of equal content: the commit for git, a
	// fingerprint for a folder.
	state string
	// author is the committer's e-mail address; empty for a folder.
	author string
	// rewritten tells that the commit does not descend from the one before, as far as
	// its history was fetched.
	rewritten bool
}

// source brings definitions in. fetch is called from one goroutine; an error
// leaves the tree it returned last as it was.
type source interface {
	fetch(ctx context.Context) (tree, error)
}

// GitAuth is how a git server is told who asks. Its secrets are read when they
// are used and kept nowhere.
type GitAuth struct {
	// Username and PasswordFile are for https; a token goes into the file.
	Username, PasswordFile string
	// IdentityFile is an ssh private key; empty means the ssh agent.
	IdentityFile string
	// KnownHostsFile lists the ssh servers' keys; empty means the user's own. A
	// server that is not listed is refused.
	KnownHostsFile string
	// CAFile is a PEM bundle the server's certificate may be signed by.
	CAFile string
}

// newSource tells a git URL from a folder. An URL with a scheme is git, file://
// included; anything else is a folder. sub is where in it the definitions are.
func newSource(where, ref, sub, state string, auth GitAuth) (source, error) {
	if !strings.Contains(where, "://") && !isSCP(where) {
		if info, err := os.Stat(where); err == nil && !info.IsDir() {
			return nil, fmt.Errorf("open source %s: not a folder; name a folder or a git URL", where)
		}
		return folder(where), nil
	}
	trees := filepath.Join(state, "trees")
	if local, ok := strings.CutPrefix(where, "file://"); ok {
		return newGitSource(ref, sub, trees, func(context.Context) (*git.Repository, error) { return openLocal(local) })
	}
	remote := &gitRemote{url: where, ref: ref, dir: filepath.Join(state, "git"), auth: auth, bounds: defaultPackBounds}
	return newGitSource(fetchedRef, sub, trees, remote.open)
}

// isSCP recognises git's user@host:path.
func isSCP(where string) bool {
	host, _, ok := strings.Cut(where, ":")
	return ok && strings.Contains(host, "@") && !strings.Contains(host, "/")
}

// Redact returns a source's address without its password, query and fragment,
// and over http without its user either, which may be a token.
func Redact(where string) string {
	scheme, rest, isURL := strings.Cut(where, "://")
	u, err := url.Parse(where)
	switch {
	case !isURL:
		return where
	case err != nil:
		// Where the secrets are cannot be told; they end before the last @.
		return scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
	}
	u.RawQuery, u.Fragment = "", ""
	if strings.HasPrefix(u.Scheme, "http") {
		u.User = nil
	}
	return u.Redacted()
}

// folder is a source that is read where it lies.
type folder string

// fetch waits until nobody has written for a while: a file that an editor has
// just emptied must not be taken for one that was taken out.
func (f folder) fetch(ctx context.Context) (tree, error) {
	if _, err := os.ReadDir(string(f)); err != nil {
		return tree{}, fmt.Errorf("read source: %w", err)
	}
	for range maxWaits {
		idle := time.Since(lastChange(string(f)))
		if idle >= quiet || idle < 0 {
			break
		}
		select {
		case <-ctx.Done():
			return tree{}, ctx.Err()
		case <-time.After(quiet - idle):
		}
	}
	return tree{dir: string(f), state: fingerprint(string(f))}, nil
}

// gitSource takes the tree of one ref out of a repository that open brings up
// to date.
type gitSource struct {
	ref   string
	sub   string
	trees string
	open  func(context.Context) (*git.Repository, error)
	last  tree
	head  plumbing.Hash
}

// newGitSource makes the folder of the trees, or empties it: what a process before this
// one left in it is exported again.
func newGitSource(ref, sub, trees string, open func(context.Context) (*git.Repository, error)) (*gitSource, error) {
	if err := keepOnly(trees, ""); err != nil {
		return nil, fmt.Errorf("open source: %w", err)
	}
	if err := os.MkdirAll(trees, 0o700); err != nil {
		return nil, fmt.Errorf("open source: %w", err)
	}
	return &gitSource{ref: ref, sub: sub, trees: trees, open: open}, nil
}

// keepOnly removes everything from a folder but what has the name.
func keepOnly(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != name {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (g *gitSource) fetch(ctx context.Context) (tree, error) {
	repo, err := g.open(ctx)
	if err != nil {
		return g.last, err
	}
	head, err := resolveRef(repo, g.ref)
	if err != nil {
		return g.last, err
	}
	if head == g.head && g.last.dir != "" {
		return g.last, nil
	}
	commit, err := repo.CommitObject(head)
	if err != nil {
		return g.last, fmt.Errorf("read commit %s: %w", head, err)
	}
	dir := filepath.Join(g.trees, head.String())
	if err := export(ctx, commit, g.sub, dir); err != nil {
		return g.last, err
	}
	t := tree{dir: dir, revision: head.String(), state: head.String(), author: commit.Committer.Email, rewritten: g.rewritten(repo, commit)}
	g.last, g.head = t, head
	_ = keepOnly(g.trees, filepath.Base(dir))
	return t, nil
}

// rewritten reports whether the last head is neither the commit nor among its
// ancestors, as far as the repository holds them: a shallow one ends somewhere.
func (g *gitSource) rewritten(repo *git.Repository, commit *object.Commit) bool {
	if g.head.IsZero() {
		return false
	}
	seen := map[plumbing.Hash]bool{commit.Hash: true}
	for next := []plumbing.Hash{commit.Hash}; len(next) > 0; next = next[1:] {
		if next[0] == g.head {
			return false
		}
		c, err := repo.CommitObject(next[0])
		if err != nil {
			continue
		}
		for _, parent := range c.ParentHashes {
			if !seen[parent] {
				seen[parent] = true
				next = append(next, parent)
			}
		}
	}
	return true
}

// resolveRef finds the commit of a branch, a tag, a full hash, or HEAD where
// ref is empty.
func resolveRef(repo *git.Repository, ref string) (plumbing.Hash, error) {
	if ref == "" {
		ref = "HEAD"
	}
	for _, name := range []string{ref, "refs/heads/" + ref, "refs/tags/" + ref} {
		h, err := repo.ResolveRevision(plumbing.Revision(name))
		if err == nil {
			return *h, nil
		}
	}
	return plumbing.ZeroHash, fmt.Errorf("resolve ref %s: the repository has no such branch, tag or commit", ref)
}

// openLocal opens a repository on this host, bare or not, and writes nothing
// to it.
func openLocal(dir string) (*git.Repository, error) {
	repo, err := git.PlainOpen(dir)
	if err != nil {
		return nil, fmt.Errorf("open git repository %s: %w", dir, err)
	}
	return repo, nil
}

// fetchedRef is where a remote's commit is kept in the node's own repository.
const fetchedRef = "refs/skep/head"

// fetchDepth is how many commits of a remote's history are fetched, the newest among
// them: what is asked of those before the newest is whether it descends from the last.
const fetchDepth = 50

// gitRemote keeps a bare copy of one ref of a remote repository. The copy is shallow,
// and made anew for a new commit: no history piles up in it.
type gitRemote struct {
	url, ref, dir string
	auth          GitAuth
	bounds        packBounds
	// refused is a commit that exceeds a bound, and why; it is not fetched again.
	refused struct {
		commit plumbing.Hash
		err    error
	}
}

func (r *gitRemote) open(ctx context.Context) (*git.Repository, error) {
	auth, ca, err := r.credentials()
	if err != nil {
		return nil, err
	}
	wanted, spec, err := r.wanted(ctx, auth, ca)
	if err != nil {
		return nil, err
	}
	if repo, ok := r.copied(wanted); ok {
		return repo, nil
	}
	if r.refused.commit == wanted {
		return nil, r.refused.err
	}
	fetch := func(depth int) error {
		return r.fetch(ctx, &git.FetchOptions{RefSpecs: []config.RefSpec{spec}, Auth: auth, CABundle: ca, Tags: git.NoTags, Depth: depth})
	}
	var large *tooLargeError
	if err = fetch(fetchDepth); errors.As(err, &large) {
		// What was too large may be gone from the newest commit.
		err = fetch(1)
	}
	if err == nil {
		return openLocal(r.dir)
	}
	refused := errors.As(err, &large)
	err = fmt.Errorf("fetch %s: %w", Redact(r.url), r.told(err, auth))
	if refused {
		r.refused.commit, r.refused.err = wanted, err
	}
	return nil, err
}

// copied opens the copy where it holds the commit, or the tag, that is wanted.
func (r *gitRemote) copied(wanted plumbing.Hash) (*git.Repository, bool) {
	repo, err := openLocal(r.dir)
	if err != nil {
		return nil, false
	}
	held, err := repo.Reference(fetchedRef, false)
	if err != nil || held.Hash() != wanted {
		return nil, false
	}
	head, err := resolveRef(repo, fetchedRef)
	if err == nil {
		_, err = repo.CommitObject(head)
	}
	return repo, err == nil
}

// fetch makes a copy beside the one there is, and puts it into its place once it is
// whole.
func (r *gitRemote) fetch(ctx context.Context, o *git.FetchOptions) error {
	fresh := r.dir + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(fresh) }()
	if _, err := git.PlainInit(fresh, true); err != nil {
		return err
	}
	remote := r.remote(newBoundedStorage(ctx, fresh, r.bounds))
	if err := remote.FetchContext(ctx, o); err != nil {
		return err
	}
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	return os.Rename(fresh, r.dir)
}

func (r *gitRemote) remote(s storage.Storer) *git.Remote {
	return git.NewRemote(s, &config.RemoteConfig{Name: "source", URLs: []string{r.url}})
}

// wanted asks the remote what the ref stands for now, and how to fetch it. A full hash
// stands for itself.
func (r *gitRemote) wanted(ctx context.Context, auth transport.AuthMethod, ca []byte) (plumbing.Hash, config.RefSpec, error) {
	if plumbing.IsHash(r.ref) {
		return plumbing.NewHash(r.ref), config.RefSpec(r.ref + ":" + fetchedRef), nil
	}
	listed, err := r.remote(memory.NewStorage()).ListContext(ctx, &git.ListOptions{Auth: auth, CABundle: ca})
	if err != nil {
		return plumbing.ZeroHash, "", fmt.Errorf("list %s: %w", Redact(r.url), r.told(err, auth))
	}
	refs := make(map[plumbing.ReferenceName]*plumbing.Reference, len(listed))
	for _, ref := range listed {
		refs[ref.Name()] = ref
	}
	names := []plumbing.ReferenceName{plumbing.NewBranchReferenceName(r.ref), plumbing.NewTagReferenceName(r.ref), plumbing.ReferenceName(r.ref)}
	if r.ref == "" {
		names = []plumbing.ReferenceName{plumbing.HEAD}
	}
	for _, name := range names {
		ref := refs[name]
		if ref != nil && ref.Type() == plumbing.SymbolicReference {
			ref = refs[ref.Target()]
		}
		if ref != nil {
			return ref.Hash(), config.RefSpec("+" + name.String() + ":" + fetchedRef), nil
		}
	}
	return plumbing.ZeroHash, "", fmt.Errorf("list %s: no branch or tag %q", Redact(r.url), r.ref)
}

// told is a server's refusal for people who may see no secret. Of one that go-git knows
// it is that alone: go-git adds the whole answer.
func (r *gitRemote) told(err error, auth transport.AuthMethod) error {
	for _, known := range []error{transport.ErrAuthenticationRequired, transport.ErrAuthorizationFailed, transport.ErrRepositoryNotFound} {
		if errors.Is(err, known) {
			return known
		}
	}
	err = scrub(err, r.url)
	secrets := secretsOf(r.url)
	if basic, ok := auth.(*githttp.BasicAuth); ok {
		secrets = append(secrets, basic.Password)
	}
	if image.Repeats(err.Error(), secrets...) {
		return errors.New("the server's answer repeats a secret; its words are left out")
	}
	return err
}

// secretsOf are the password, query and fragment of an URL.
func secretsOf(where string) []string {
	u, err := url.Parse(where)
	if err != nil {
		return nil
	}
	password, given := u.User.Password()
	if !given && strings.HasPrefix(u.Scheme, "http") {
		// A user without a password is a token.
		password = u.User.Username()
	}
	return slices.DeleteFunc([]string{password, url.QueryEscape(password), u.RawQuery, u.Fragment}, func(secret string) bool { return secret == "" })
}

// scrub takes the secrets of an URL out of an error's text.
func scrub(err error, where string) error {
	said := err.Error()
	for _, secret := range secretsOf(where) {
		said = strings.ReplaceAll(said, secret, "xxxxx")
	}
	if said == err.Error() {
		return err
	}
	return errors.New(said)
}

// credentials reads the secrets for one fetch.
func (r *gitRemote) credentials() (transport.AuthMethod, []byte, error) {
	var ca []byte
	if r.auth.CAFile != "" {
		var err error
		if ca, err = os.ReadFile(r.auth.CAFile); err != nil {
			return nil, nil, fmt.Errorf("read git CA bundle: %w", err)
		}
	}
	endpoint, err := transport.NewEndpoint(r.url)
	if err != nil {
		return nil, nil, fmt.Errorf("read source address: %w", scrub(err, r.url))
	}
	shows := r.auth.PasswordFile != "" || endpoint.User != "" || endpoint.Password != ""
	switch {
	case endpoint.Protocol == "http" && shows && !onThisMachine(endpoint.Host):
		return nil, nil, errors.New("read source address: over http, whoever is on the way could read the password; use https or ssh")
	case endpoint.Protocol == "ssh":
		auth, err := r.sshAuth(endpoint.User)
		return auth, ca, err
	case r.auth.PasswordFile != "":
		secret, err := os.ReadFile(r.auth.PasswordFile)
		if err != nil {
			return nil, nil, fmt.Errorf("read git password: %w", err)
		}
		return &githttp.BasicAuth{Username: r.auth.Username, Password: strings.TrimSpace(string(secret))}, ca, nil
	}
	return nil, ca, nil
}

// onThisMachine reports whether a host is this machine by its name or address.
func onThisMachine(host string) bool {
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// sshAuth checks the server's key against the known hosts, always.
func (r *gitRemote) sshAuth(user string) (transport.AuthMethod, error) {
	if user == "" {
		user = gitssh.DefaultUsername
	}
	var files []string
	if r.auth.KnownHostsFile != "" {
		files = []string{r.auth.KnownHostsFile}
	}
	known, err := gitssh.NewKnownHostsCallback(files...)
	if err != nil {
		return nil, fmt.Errorf("read known hosts: %w", err)
	}
	if r.auth.IdentityFile == "" {
		auth, err := gitssh.NewSSHAgentAuth(user)
		if err != nil {
			return nil, fmt.Errorf("ask ssh agent: %w", err)
		}
		auth.HostKeyCallback = known
		return auth, nil
	}
	auth, err := gitssh.NewPublicKeysFromFile(user, r.auth.IdentityFile, "")
	if err != nil {
		return nil, fmt.Errorf("read ssh identity: %w", err)
	}
	auth.HostKeyCallback = known
	return auth, nil
}

// export writes a commit's regular files below sub, and the CUE files around
// it, below dir, whole or not at all. Links and submodules are left out.
func export(ctx context.Context, commit *object.Commit, sub, dir string) error {
	root, err := commit.Tree()
	if err != nil {
		return fmt.Errorf("read commit %s: %w", commit.Hash, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".export-*")
	if err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := exportTree(ctx, root, path.Clean(filepath.ToSlash(sub)), tmp); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("export commit %s: %w", commit.Hash, err)
	}
	return nil
}

// exportTree writes what export does. What is neither below sub nor CUE is not
// even looked up: a repository may be large around the definitions.
func exportTree(ctx context.Context, root *object.Tree, sub, dir string) error {
	type budget struct {
		files int
		bytes int64
	}
	inside, outside := &budget{maxTreeFiles, maxTreeBytes}, &budget{maxTreeFiles, maxTreeBytes}
	entries := object.NewTreeWalker(root, true, nil)
	defer entries.Close()
	for ctx.Err() == nil {
		name, entry, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		left, of, fix := inside, "below "+sub, "keep definitions in a folder of their own and name it with --path"
		if sub != "." && name != sub && !strings.HasPrefix(name, sub+"/") {
			left, of, fix = outside, "of CUE around "+sub, "keep definitions in a repository of their own"
		}
		if entry.Mode != filemode.Regular && entry.Mode != filemode.Executable || left == outside && path.Ext(name) != ".cue" {
			continue
		}
		f, err := root.TreeEntryFile(&entry)
		if err != nil {
			return err
		}
		f.Name = name
		if left.files, left.bytes = left.files-1, left.bytes-f.Size; left.files < 0 || left.bytes < 0 {
			return fmt.Errorf("more than %d files or %d bytes %s; %s", maxTreeFiles, maxTreeBytes, of, fix)
		}
		if err := exportFile(dir, f); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func exportFile(root string, f *object.File) error {
	if !fs.ValidPath(f.Name) || path.Base(f.Name) == ".git" {
		return fmt.Errorf("file name %q leads out of the tree", f.Name)
	}
	to := filepath.Join(root, filepath.FromSlash(f.Name))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	from, err := f.Reader()
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(from, f.Size))
	return errors.Join(err, out.Close())
}
