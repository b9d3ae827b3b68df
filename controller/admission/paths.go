package admission

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// An API server shows no certificate unless somebody configures it to, so what it
// shows is where it asks: a path that ends in 32 random bytes, which stand in a
// Secret and in the webhook configurations, and nowhere else. Who merely reaches
// the port is told 404.

// keyPaths is the Secret's key for those ends, one a line, the newest first;
// filePath is the file of the one that is kept beside somebody else's certificate.
const (
	keyPaths = "paths"
	filePath = "path"
)

// keyPathsAt is the Secret's key for the time since when the newest is there.
const keyPathsAt = "paths-since"

// pathAge is how long one is the newest. An API server that cannot reach the webhook,
// or is answered too late, says the path to whoever writes an object: what they
// read is of no use an overlap or two after the next one came.
const pathAge = time.Hour

// maxPaths bounds those that are served at one time.
const maxPaths = 3

// wholePath is one that can be served: nobody comes upon it.
var wholePath = regexp.MustCompile(`^[0-9a-f]{64}$`)

// newPath is one that nobody knows.
func newPath() string {
	end := make([]byte, 32)
	_, _ = rand.Read(end) // It never fails.
	return hex.EncodeToString(end)
}

// parsePaths reads what is stored, and is an error where nothing can be served.
func parsePaths(stored []byte) ([]string, error) {
	paths := slices.DeleteFunc(strings.Fields(string(stored)), func(p string) bool { return !wholePath.MatchString(p) })
	if len(paths) == 0 {
		return nil, fmt.Errorf("no path is stored")
	}
	return paths, nil
}

// joinPaths is a new one and those before it, each once, as they are stored.
func joinPaths(newest string, before []string) []byte {
	all := []string{newest}
	for _, p := range before {
		if len(all) < maxPaths && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return []byte(strings.Join(all, "\n"))
}

// turned gives the Secret's data another path where the newest is too old, and a
// time where it has none; it reports whether there is something to write.
func turned(data map[string][]byte, stored pair, now time.Time) bool {
	switch {
	case stored.pathsAt.IsZero():
		// Replicas of the version before serve the newest alone, as they would.
		since := now.Add(-2 * overlap)
		if stored.issuedAt.After(since) {
			since = stored.issuedAt
		}
		data[keyPathsAt] = []byte(since.UTC().Format(time.RFC3339))
	case now.Before(stored.pathsAt.Add(pathAge)):
		return false
	default:
		data[keyPaths] = joinPaths(newPath(), stored.served(now))
		data[keyPathsAt] = []byte(now.UTC().Format(time.RFC3339))
	}
	return true
}

// folderPath is the one in a folder that somebody else keeps.
func folderPath(folder string) ([]string, error) {
	stored, err := os.ReadFile(filepath.Join(folder, filePath))
	if err != nil {
		return nil, fmt.Errorf("read path: %w", err)
	}
	return parsePaths(stored)
}

// told hands on requests at a path that was told the API server, and answers any
// other with 404.
func (c *Certificates) told(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.RLock()
		served := c.paths
		c.mu.RUnlock()
		asked := []byte(r.PathValue("path"))
		if !slices.ContainsFunc(served, func(p string) bool { return subtle.ConstantTimeCompare([]byte(p), asked) == 1 }) {
			http.NotFound(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// point has a client configuration call one of the paths below a prefix. One that
// every replica serves stays until all of them had time to learn of the newest.
// It reports whether that changed anything.
func point(config *admissionregistrationv1.WebhookClientConfig, prefix string, served []string, settled bool) (changed bool, err error) {
	calls, at := "", &url.URL{}
	switch {
	case config.Service != nil && config.Service.Path != nil:
		calls = *config.Service.Path
	case config.URL != nil:
		if at, err = url.Parse(*config.URL); err != nil {
			return false, fmt.Errorf("read address of the webhook: %w", err)
		}
		calls = at.Path
	}
	end, below := strings.CutPrefix(calls, prefix)
	wanted := served[0]
	if !settled {
		wanted = served[len(served)-1]
	}
	if below && (end == wanted || !settled && slices.Contains(served, end)) {
		return false, nil
	}
	path := prefix + wanted
	if config.Service != nil {
		config.Service.Path = &path
		return true, nil
	}
	at.Path = path
	address := at.String()
	config.URL = &address
	return true, nil
}
