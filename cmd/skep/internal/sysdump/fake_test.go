package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fake answers as an API server by paths: a string is a log, and a slice a list.
type fake struct {
	objects map[string]any
	// readable are the prefixes of what the caller may read; nil is all.
	readable []string
}

// ServeHTTP answers one request.
func (f fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, known := f.objects[r.URL.Path]
	code, reason := int32(http.StatusNotFound), metav1.StatusReasonNotFound
	if f.readable != nil && !slices.ContainsFunc(f.readable, func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }) {
		code, reason, known = http.StatusForbidden, metav1.StatusReasonForbidden, false
	}
	w.Header().Set("Content-Type", "application/json")
	switch v := found.(type) {
	case logText:
		if known {
			_, _ = io.WriteString(w, string(v))
			return
		}
	case []any:
		found = map[string]any{"metadata": map[string]any{}, "items": v}
	}
	if known {
		_ = json.NewEncoder(w).Encode(found)
		return
	}
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: code, Reason: reason})
}

// logText is the text of a log.
type logText string

// kubeconfigFile is one of a caller in a namespace.
const kubeconfigFile = `apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "SERVER"}}]
users: [{name: u, user: {token: SECRET-kubeconfig}}]
contexts: [{name: c, context: {cluster: c, user: u, namespace: team-a}}]
`

// dumped runs the command and returns the files of the archive by their names, and what the command said.
func (f fake) dumped(t *testing.T, args ...string) (files map[string]string, said string) {
	t.Helper()
	server := httptest.NewServer(f)
	defer server.Close()
	dir := t.TempDir()
	config, out := filepath.Join(dir, "config"), filepath.Join(dir, "out.tar.gz")
	if err := os.WriteFile(config, []byte(strings.Replace(kubeconfigFile, "SERVER", server.URL, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	root := &cobra.Command{Use: "skep", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(New())
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(append([]string{"sysdump", "--kubeconfig", config, "-o", out}, args...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(out)
	if err != nil || info.Mode().Perm() != 0o600 || stdout.String() != out+"\n" {
		t.Errorf("%v, %v, it says %q, want a file that its owner alone reads", info, err, &stdout)
	}
	return unpack(t, out), stderr.String()
}

// unpack reads an archive, whose files lie in one folder.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for all := tar.NewReader(plain); ; {
		header, err := all.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(all)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(body)
	}
}

// lacks fails for each text that a file has and should not.
func lacks(t *testing.T, files map[string]string, texts ...string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, text := range texts {
			if at := strings.Index(files[name], text); at >= 0 {
				t.Errorf("%s has %s: …%s…", name, text, files[name][max(0, at-80):min(len(files[name]), at+80)])
			}
		}
	}
}

// has fails for each text that a file lacks.
func has(t *testing.T, files map[string]string, name string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(files[name], text) {
			t.Errorf("%s is:\n%s\nwant %q in it", name, files[name], text)
		}
	}
}
