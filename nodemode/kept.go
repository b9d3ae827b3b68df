package nodemode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
)

// The DSSE types of what was read last. The seal says that this host read it.
const (
	settingsType    = "application/vnd.skep.settings.v1+json"
	definitionsType = "application/vnd.skep.definitions.v1+json"
)

// kept is a file of what was read last, for a start at which it cannot be read, or not yet.
type kept struct {
	file, kind string
	sealer     *intent.Sealer
	// dry has the file read and never written.
	dry bool
	// last is what the file has, as far as that is known; reason is why it could not be written last time.
	last   []byte
	reason string
}

// keptIn is a file of a host's state.
func keptIn(o Options, name, kind string, sealer *intent.Sealer) kept {
	return kept{file: filepath.Join(o.State, name), kind: kind, sealer: sealer, dry: o.DryRun}
}

// read returns what the file has, nil if there is none.
func (k *kept) read() ([]byte, error) {
	envelope, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	trust, err := intent.NewTrust(k.sealer.Public())
	if err != nil {
		return nil, err
	}
	if k.last, err = trust.Verify(k.kind, envelope); err != nil {
		return nil, fmt.Errorf("open %s: %w", k.file, err)
	}
	return k.last, nil
}

// write keeps what was read last. Where it cannot, nothing is kept: what an older file has may not be so by now. Each write tries
// again, and returns an error where the reason is another than the last time.
func (k *kept) write(body []byte) error {
	if k.dry || bytes.Equal(body, k.last) {
		return nil
	}
	err := k.replace(body)
	if err == nil {
		k.last, k.reason = body, ""
		return nil
	}
	before := k.reason
	k.last, k.reason = nil, reasonOf(err)
	if err = errors.Join(err, os.RemoveAll(k.file)); k.reason == before {
		return nil
	}
	return fmt.Errorf("keep %s: %w", k.file, err)
}

// reasonOf is an error without the names of files that are being written, which are others each time.
func reasonOf(err error) string {
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}

func (k *kept) replace(body []byte) error {
	if len(body) > intent.MaxPayloadBytes {
		return fmt.Errorf("it has %d bytes, and at most %d are kept", len(body), intent.MaxPayloadBytes)
	}
	envelope, err := k.sealer.Sign(k.kind, body)
	if err != nil {
		return err
	}
	return atomicfile.Write(k.file, envelope)
}
