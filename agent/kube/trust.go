package kube

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/skep-dev/skep/intent"
)

// maxTrustBytes bounds the file of keys; one takes about 120.
const maxTrustBytes = 64 << 10

// trust is what the file held.
type trust struct {
	body   []byte
	parsed *intent.Trust
}

// readTrust reads the keys. The path leads wherever its links do now, so a
// ConfigMap that the kubelet swapped is read anew.
func readTrust(path string) (trust, error) {
	body, err := readFile(path, maxTrustBytes)
	if err != nil {
		return trust{}, fmt.Errorf("read seal trust: %w", err)
	}
	parsed, err := intent.ParseTrust(body)
	if err != nil {
		return trust{body: body}, fmt.Errorf("%w: %s", err, path)
	}
	return trust{body: body, parsed: parsed}, nil
}

// readFile reads a file of at most so many bytes.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, fmt.Errorf("%s has %d bytes, and at most %d are read", path, info.Size(), most)
	}
	return os.ReadFile(path)
}

// retrust replaces the keys that count.
func (a *Agent) retrust(t *intent.Trust) {
	a.trust.Store(t)
	a.holder.Retrust(t)
}

// followTrust reads the keys again where they changed. Where they cannot be
// read, those active stay.
func (a *Agent) followTrust(ctx context.Context) {
	look := time.NewTicker(a.opts.TrustInterval)
	defer look.Stop()
	var (
		last []byte
		said string
	)
	for {
		now, err := readTrust(a.opts.TrustFile)
		switch {
		case err != nil && err.Error() != said:
			said = err.Error()
			a.opts.Log.Error("cannot read the keys that count; those before do", "error", err)
		case err == nil && !bytes.Equal(now.body, last):
			a.retrust(now.parsed)
			if last != nil {
				a.opts.Log.Info("the keys that count changed", "path", a.opts.TrustFile)
			}
			last, said = now.body, ""
			a.intents.rekey()
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}
