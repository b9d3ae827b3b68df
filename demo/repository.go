package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// repository is a local git repository of definitions.
type repository struct {
	dir  string
	repo *git.Repository
}

func initRepository(dir string) (*repository, error) {
	repo, err := git.PlainInit(dir, false)
	if err != nil {
		return nil, fmt.Errorf("make repository: %w", err)
	}
	r := &repository{dir: dir, repo: repo}
	_, err = r.commit("Begin", map[string]string{"README.md": "Definitions of eBPF programs.\n"})
	return r, err
}

// commit writes files, removes those with no content, and commits. It returns
// the first digits of the commit's hash.
func (r *repository) commit(message string, files map[string]string) (string, error) {
	tree, err := r.repo.Worktree()
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	for name, body := range files {
		path := filepath.Join(r.dir, name)
		if body == "" {
			err = os.Remove(path)
		} else {
			err = os.WriteFile(path, []byte(body), 0o600)
		}
		if err == nil {
			_, err = tree.Add(name)
		}
		if err != nil {
			return "", fmt.Errorf("commit %s: %w", name, err)
		}
	}
	hash, err := tree.Commit(message, &git.CommitOptions{
		Author: &object.Signature{Name: "Net Team", Email: "net-team@example.com", When: time.Now()},
	})
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	return hash.String()[:8], nil
}
