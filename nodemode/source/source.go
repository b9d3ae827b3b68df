// Package source brings definitions from a git repository or a folder of this host.
//
// It bounds what it fetches, keeps the files of one commit, and says where they are.
// It reads no definition.
package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-git/go-git/v5"
)

// Tree is a source at one revision, as a folder to read.
type Tree struct {
	// Dir holds the files.
	Dir string
	// Revision is ref@commit for git and empty for a folder, whose content may
	// change under the same name.
	Revision string
	// State is equal for trees of equal content: the commit for git, a
	// fingerprint for a folder.
	State string
	// Author is the committer's e-mail address; empty for a folder.
	Author string
	// Rewritten tells that the commit does not descend from the one before, as far as
	// its history was fetched.
	Rewritten bool
	// quiet reports that the folder had been left alone before.
	quiet bool
}

// IsFolder reports whether files may change while they are read.
func (t Tree) IsFolder() bool { return t.Revision == "" }

// IsStale reports whether files of a folder that was left alone changed since it was fetched. One that is written to all the time is
// not read again.
func (t Tree) IsStale() bool { return t.quiet && Fingerprint(t.Dir) != t.State }

// Source brings definitions in. Fetch is called from one goroutine; an error
// leaves the tree it returned last as it was.
type Source interface {
	Fetch(ctx context.Context) (Tree, error)
}

// Options name a source.
type Options struct {
	// Address is a git URL (https, ssh, file) or a folder. Needed.
	Address string
	// Ref is a branch, a tag or a full commit hash; empty means the repository's
	// HEAD. It is not for folders.
	Ref string
	// Path is the folder of the definitions within the source.
	Path string
	// Auth tells a git server who asks.
	Auth GitAuth
	// State is a folder for the copy of a repository. Needed for git.
	State string
}

// GitAuth is how a git server is told who asks. Its secrets are read when they
// are used and kept nowhere.
type GitAuth struct {
	// Username and PasswordFile are for https; a token goes into the file.
	Username, PasswordFile string
	// IdentityFile is an ssh private key; empty means the ssh agent.
	IdentityFile string
	// KnownHostsFile lists the ssh servers' keys; empty means the user's own. A
	// server that is not listed is rejected.
	KnownHostsFile string
	// CAFile is a PEM bundle the server's certificate may be signed by.
	CAFile string
}

// New opens a source. An address with a scheme is git, file:// included, and so is
// user@host:path; anything else is a folder.
func New(o Options) (Source, error) {
	if !strings.Contains(o.Address, "://") && !isSCP(o.Address) {
		if info, err := os.Stat(o.Address); err == nil && !info.IsDir() {
			return nil, fmt.Errorf("open source %s: not a folder; name a folder or a git URL", o.Address)
		}
		return Folder(o.Address), nil
	}
	trees := filepath.Join(o.State, "trees")
	if local, ok := strings.CutPrefix(o.Address, "file://"); ok {
		return newGitSource(o.Ref, o.Path, trees, func(context.Context) (*git.Repository, error) { return openLocal(local) })
	}
	remote := &gitRemote{url: o.Address, ref: o.Ref, dir: filepath.Join(o.State, "git"), auth: o.Auth, bounds: defaultPackBounds}
	return newGitSource(fetchedRef, o.Path, trees, remote.open)
}

// isSCP recognises git's user@host:path.
func isSCP(where string) bool {
	host, _, ok := strings.Cut(where, ":")
	return ok && strings.Contains(host, "@") && !strings.Contains(host, "/")
}
