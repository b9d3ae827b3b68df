package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// ErrNoCheckout says that a path lies in no working tree of git.
var ErrNoCheckout = errors.New("it lies in no git repository")

// Checkout is a working tree of git on this host, and a path in it.
type Checkout struct {
	repo *git.Repository
	// sub is the path below the working tree, with the separators of this host.
	sub string
}

// Commit is one commit of a checkout.
type Commit struct {
	Hash string
	// Branch is the one that is checked out; empty where none is, as in many pipelines.
	Branch string
	// Time is the committer's.
	Time time.Time
}

// Revision is the commit as Flux writes it: BRANCH@sha1:HASH, or sha1:HASH without a branch.
func (c Commit) Revision() string {
	revision := "sha1:" + c.Hash
	if c.Branch != "" {
		revision = c.Branch + "@" + revision
	}
	return revision
}

// OpenCheckout finds the working tree that a path lies in; ErrNoCheckout where there is none.
// Symbolic links in the path are followed.
func OpenCheckout(path string) (*Checkout, error) {
	real, err := filepath.Abs(path)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return nil, fmt.Errorf("find git repository of %s: %w", path, err)
	}
	dir := real
	if info, err := os.Stat(real); err == nil && !info.IsDir() {
		dir = filepath.Dir(real)
	}
	repo, err := openRepository(dir, true)
	if errors.Is(err, git.ErrRepositoryNotExists) {
		return nil, fmt.Errorf("find git repository of %s: %w", path, ErrNoCheckout)
	}
	if err != nil {
		return nil, fmt.Errorf("find git repository of %s: %w", path, err)
	}
	tree, err := repo.Worktree()
	if err != nil {
		return nil, fmt.Errorf("find working tree of %s: %w", path, err)
	}
	sub, err := filepath.Rel(tree.Filesystem.Root(), real)
	if err != nil {
		return nil, fmt.Errorf("find %s in its working tree: %w", path, err)
	}
	return &Checkout{repo, sub}, nil
}

// Head is the commit that is checked out.
func (c *Checkout) Head() (Commit, error) {
	head, err := c.repo.Head()
	if err != nil {
		return Commit{}, fmt.Errorf("read HEAD: %w; make a first commit", err)
	}
	commit, err := c.repo.CommitObject(head.Hash())
	if err != nil {
		return Commit{}, fmt.Errorf("read commit %s: %w", head.Hash(), err)
	}
	at := commitOf(commit)
	if head.Name().IsBranch() {
		at.Branch = head.Name().Short()
	}
	return at, nil
}

// hashAtEnd is the hash, or seven digits of it at least, that a revision such as main@sha1:HASH ends in.
var hashAtEnd = regexp.MustCompile(`(?:^|[^0-9A-Za-z])([0-9a-f]{7,40})$`)

// Named is the commit whose hash a revision such as main@sha1:HASH ends in; false where the
// repository has none such.
func (c *Checkout) Named(revision string) (Commit, bool) {
	found := hashAtEnd.FindStringSubmatch(revision)
	if found == nil {
		return Commit{}, false
	}
	hash, err := c.repo.ResolveRevision(plumbing.Revision(found[1]))
	if err != nil {
		return Commit{}, false
	}
	commit, err := c.repo.CommitObject(*hash)
	if err != nil {
		return Commit{}, false
	}
	return commitOf(commit), true
}

func commitOf(c *object.Commit) Commit { return Commit{Hash: c.Hash.String(), Time: c.Committer.When} }

// Uncommitted are the files of the working tree that neither HEAD has nor .gitignore names,
// sorted, with slashes.
func (c *Checkout) Uncommitted() ([]string, error) {
	tree, err := c.repo.Worktree()
	if err != nil {
		return nil, fmt.Errorf("find working tree: %w", err)
	}
	status, err := tree.Status()
	if err != nil {
		return nil, fmt.Errorf("compare working tree with its commit: %w", err)
	}
	var all []string
	for name, s := range status {
		if s.Worktree == git.Untracked || s.Staging == git.Added {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all, nil
}

// Remote is the address of the remote origin, or of the only remote, without secrets; empty
// where there is none.
func (c *Checkout) Remote() (string, error) {
	remotes, err := c.repo.Remotes()
	if err != nil {
		return "", fmt.Errorf("list remotes: %w", err)
	}
	i := slices.IndexFunc(remotes, func(r *git.Remote) bool { return r.Config().Name == git.DefaultRemoteName })
	if len(remotes) == 1 {
		i = 0
	}
	if i < 0 || len(remotes[i].Config().URLs) == 0 {
		return "", nil
	}
	return Redact(remotes[i].Config().URLs[0]), nil
}

// MergeBase is the newest commit that HEAD and another revision both descend from, as
// git diff REV... has it: HEAD itself if that is the revision. A revision is a branch, a tag,
// a hash, or what git makes of those, such as HEAD~1.
func (c *Checkout) MergeBase(revision string) (Commit, error) {
	other, err := resolveRef(c.repo, revision)
	if err != nil {
		return Commit{}, fmt.Errorf("%w; fetch it first", err)
	}
	head, err := resolveRef(c.repo, "")
	if err != nil {
		return Commit{}, err
	}
	var both []*object.Commit
	for _, hash := range []plumbing.Hash{head, other} {
		commit, err := c.repo.CommitObject(hash)
		if err != nil {
			return Commit{}, fmt.Errorf("read commit %s: %w", hash, err)
		}
		both = append(both, commit)
	}
	bases, err := both[0].MergeBase(both[1])
	if err != nil || len(bases) == 0 {
		return Commit{}, fmt.Errorf("find merge base of HEAD and %s: no common commit is in this clone; fetch more of the history (fetch-depth: 0, GIT_DEPTH: 0)",
			revision)
	}
	return commitOf(bases[0]), nil
}

// Export writes what the path holds at a commit, and the CUE files around it, below a new
// folder within dir, and returns the path there. Nothing need be there: at that commit the
// path may not have existed.
func (c *Checkout) Export(ctx context.Context, at Commit, dir string) (string, error) {
	commit, err := c.repo.CommitObject(plumbing.NewHash(at.Hash))
	if err != nil {
		return "", fmt.Errorf("read commit %s: %w", at.Hash, err)
	}
	to := filepath.Join(dir, at.Hash)
	if err := export(ctx, commit, c.sub, to); err != nil {
		return "", err
	}
	return filepath.Join(to, c.sub), nil
}
