package source

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/google/go-cmp/cmp"

	"github.com/skep-dev/skep/test/fixture/gitrepo"
)

func mustCheckout(t *testing.T, path string) *Checkout {
	t.Helper()
	c, err := OpenCheckout(path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestACheckoutKnowsWhatIsNotCommitted(t *testing.T) {
	r := gitrepo.New(t)
	r.Commit(map[string]string{"apps/a.cue": "one", ".gitignore": "*.key\n"})
	for _, name := range []string{"apps/a.cue", "apps/staged.cue", "apps/own.key", "b.cue"} {
		if err := os.WriteFile(filepath.Join(r.Dir, name), []byte("two"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := r.Repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Add("apps/staged.cue"); err != nil {
		t.Fatal(err)
	}
	got, err := mustCheckout(t, filepath.Join(r.Dir, "apps")).Uncommitted()
	if diff := cmp.Diff([]string{"apps/staged.cue", "b.cue"}, got); diff != "" || err != nil {
		t.Errorf("%s, %v", diff, err)
	}
}

func TestACheckoutKnowsItsCommit(t *testing.T) {
	r := gitrepo.New(t)
	if _, err := mustCheckout(t, r.Dir).Head(); err == nil || !strings.Contains(err.Error(), "make a first commit") {
		t.Errorf("head without a commit: %v", err)
	}
	hash := r.Commit(map[string]string{"apps/a.cue": "one"})
	head, err := mustCheckout(t, filepath.Join(r.Dir, "apps", "a.cue")).Head()
	if err != nil || head.Revision() != "main@sha1:"+hash || head.Time.IsZero() {
		t.Errorf("head is %+v, %v", head, err)
	}
	tree, err := r.Repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Checkout(&git.CheckoutOptions{Hash: plumbing.NewHash(hash)}); err != nil {
		t.Fatal(err)
	}
	if head, err = mustCheckout(t, r.Dir).Head(); err != nil || head.Revision() != "sha1:"+hash {
		t.Errorf("a commit without branch is %+v, %v", head, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(r.Dir, "apps"), link); err != nil {
		t.Fatal(err)
	}
	mustCheckout(t, link)
	if _, err := OpenCheckout(t.TempDir()); !errors.Is(err, ErrNoCheckout) {
		t.Errorf("a folder without repository: %v", err)
	}
}

func TestARemoteIsToldWithoutSecrets(t *testing.T) {
	for name, c := range map[string]struct {
		remotes map[string]string
		want    string
	}{
		"none": {nil, ""},
		"origin among others": {
			map[string]string{"fork": "https://a.example.com/x", "origin": "https://t0ken@b.example.com/x.git"}, "https://b.example.com/x.git",
		},
		"only one":                {map[string]string{"upstream": "git@example.com:bpf.git"}, "git@example.com:bpf.git"},
		"several, none is origin": {map[string]string{"a": "https://a.example.com/x", "b": "https://b.example.com/x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := gitrepo.New(t)
			for remote, url := range c.remotes {
				if _, err := r.Repo.CreateRemote(&config.RemoteConfig{Name: remote, URLs: []string{url}}); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := mustCheckout(t, r.Dir).Remote(); err != nil || got != c.want {
				t.Errorf("remote %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestTheMergeBaseIsWhereABranchBegan(t *testing.T) {
	r := gitrepo.New(t)
	base := r.Commit(map[string]string{"apps/a.cue": "one", "lib/b.cue": "lib", "other/c.yaml": "c"})
	tree, err := r.Repo.Worktree()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Checkout(&git.CheckoutOptions{Branch: "refs/heads/feature", Create: true}); err != nil {
		t.Fatal(err)
	}
	r.Commit(map[string]string{"apps/a.cue": "two"})
	if err := tree.Checkout(&git.CheckoutOptions{Branch: "refs/heads/main"}); err != nil {
		t.Fatal(err)
	}
	head := r.Commit(map[string]string{"apps/d.cue": "later"})
	c := mustCheckout(t, filepath.Join(r.Dir, "apps"))
	for revision, want := range map[string]string{"feature": base, "HEAD": head, "HEAD~1": base, base: base} {
		if got, err := c.MergeBase(revision); err != nil || got.Hash != want {
			t.Errorf("merge base with %s is %s, %v, want %s", revision, got.Hash, err, want)
		}
	}
	if _, err := c.MergeBase("nowhere"); err == nil || !strings.Contains(err.Error(), "fetch it first") {
		t.Errorf("merge base with nowhere: %v", err)
	}
	at, err := c.MergeBase("feature")
	if err != nil {
		t.Fatal(err)
	}
	path, err := c.Export(t.Context(), at, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"apps/a.cue": "one", "lib/b.cue": "lib"}
	if diff := cmp.Diff(want, gitrepo.Content(t, filepath.Dir(path))); diff != "" {
		t.Errorf("exported (-want +got):\n%s", diff)
	}
}

// TestUnrelatedHistoriesHaveNoMergeBase is what a shallow clone sees, too.
func TestUnrelatedHistoriesHaveNoMergeBase(t *testing.T) {
	r := gitrepo.New(t)
	r.Commit(map[string]string{"a.cue": "one"})
	if err := r.Repo.Storer.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, "refs/heads/orphan")); err != nil {
		t.Fatal(err)
	}
	r.Commit(map[string]string{"a.cue": "two"})
	if _, err := mustCheckout(t, r.Dir).MergeBase("main"); err == nil || !strings.Contains(err.Error(), "fetch-depth: 0") {
		t.Errorf("merge base: %v", err)
	}
}
