package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	gitssh "github.com/go-git/go-git/v5/plumbing/transport/ssh"
	"github.com/go-git/go-git/v5/storage"
	"github.com/go-git/go-git/v5/storage/memory"

	imagetransport "github.com/skep-dev/skep/image/transport"
)

// gitSource takes the tree of one ref out of a repository that open brings up
// to date.
type gitSource struct {
	ref   string
	sub   string
	trees string
	open  func(context.Context) (*git.Repository, error)
	last  Tree
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

// Fetch implements Source.
func (g *gitSource) Fetch(ctx context.Context) (Tree, error) {
	repo, err := g.open(ctx)
	if err != nil {
		return g.last, err
	}
	head, err := resolveRef(repo, g.ref)
	if err != nil {
		return g.last, err
	}
	if head == g.head && g.last.Dir != "" {
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
	t := Tree{Dir: dir, Revision: head.String(), State: head.String(), Author: commit.Committer.Email, Rewritten: g.rewritten(repo, commit)}
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
	repo, err := openRepository(dir, false)
	if err != nil {
		return nil, fmt.Errorf("open git repository %s: %w", dir, err)
	}
	return repo, nil
}

// openRepository opens the repository of a folder, or of the nearest one above it. The folder may be
// a further working tree of a repository, as git worktree add makes it.
func openRepository(dir string, above bool) (*git.Repository, error) {
	return git.PlainOpenWithOptions(dir, &git.PlainOpenOptions{DetectDotGit: above, EnableDotGitCommonDir: true})
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
	// denied is a commit that exceeds a bound, and why; it is not fetched again.
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

// told is a server's rejection for people who may see no secret. Of one that go-git knows
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
	if imagetransport.Repeats(err.Error(), secrets...) {
		return errors.New("the server's answer repeats a secret; its words are left out")
	}
	return err
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
		return nil, nil, errors.New("read source address: over http, others on the way could read the password; use https or ssh")
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
