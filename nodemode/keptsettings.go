package nodemode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/skep-dev/skep/atomicfile"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/nodemode/settings"
)

// settingsType is the DSSE type of the signers and policies that were read last. The seal says that this host read them.
const settingsType = "application/vnd.skep.settings.v1+json"

// keptSettings is the file of the signers and policies that were read last: a start at which some cannot be read has those,
// as a run has, and so what can be read takes effect. A nil one keeps nothing.
type keptSettings struct {
	file   string
	sealer *intent.Sealer
	// last is what the file has.
	last []byte
}

// read has the reader take over what the file has. No file is no error.
func (k *keptSettings) read(ctx context.Context, reader *settings.Reader) error {
	if k == nil {
		return nil
	}
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

// write keeps what the reader read last.
func (k *keptSettings) write(reader *settings.Reader) error {
	if k == nil {
		return nil
	}
	body, err := reader.Record()
	if err != nil || bytes.Equal(body, k.last) {
		return err
	}
	if len(body) > intent.MaxPayloadBytes {
		return fmt.Errorf("keep settings: they have %d bytes, and at most %d are kept", len(body), intent.MaxPayloadBytes)
	}
	envelope, err := k.sealer.Sign(settingsType, body)
	if err != nil {
		return fmt.Errorf("keep settings: %w", err)
	}
	if err := atomicfile.Write(k.file, envelope); err != nil {
		return fmt.Errorf("keep settings: %w", err)
	}
	k.last = body
	return nil
}
