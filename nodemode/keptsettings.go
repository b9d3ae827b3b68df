package nodemode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/nodemode/settings"
)

// settingsType is the DSSE type of the signers and policies that were read last. The seal says that this host read them.
const settingsType = "application/vnd.skep.settings.v1+json"

// keptSettings is the file of the signers and policies that were read last: a start at which some cannot be read has those,
// as a run has, and so what can be read takes effect.
type keptSettings struct {
	file   string
	sealer *intent.Sealer
	// dry has the file read and never written.
	dry bool
	// last is what was to be written last.
	last []byte
}

// settingsKept are those of a host's state.
func settingsKept(o Options, sealer *intent.Sealer) keptSettings {
	return keptSettings{file: filepath.Join(o.State, settingsFile), sealer: sealer, dry: o.DryRun}
}

// read has the reader take over what the file has. No file is no error.
func (k *keptSettings) read(ctx context.Context, reader *settings.Reader) error {
	envelope, err := os.ReadFile(k.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	trust, err := intent.NewTrust(k.sealer.Public())
	if err != nil {
		return err
	}
	body, err := trust.Verify(settingsType, envelope)
	if err != nil {
		return fmt.Errorf("open %s: %w", k.file, err)
	}
	k.last = body
	return reader.Restore(ctx, body)
}

// write keeps what the reader read last. Where it cannot, nothing is kept: what an older file has may be revoked by now.
func (k *keptSettings) write(reader *settings.Reader) error {
	if k.dry {
		return nil
	}
	body, err := reader.Record()
	if err != nil || bytes.Equal(body, k.last) {
		return err
	}
	k.last = body
	if err := k.replace(body); err != nil {
		return fmt.Errorf("keep settings: %w", errors.Join(err, os.RemoveAll(k.file)))
	}
	return nil
}

func (k *keptSettings) replace(body []byte) error {
	if len(body) > intent.MaxPayloadBytes {
		return fmt.Errorf("they have %d bytes, and at most %d are kept", len(body), intent.MaxPayloadBytes)
	}
	envelope, err := k.sealer.Sign(settingsType, body)
	if err != nil {
		return err
	}
	return atomicfile.Write(k.file, envelope)
}
