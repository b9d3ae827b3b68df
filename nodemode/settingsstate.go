package nodemode

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/nodemode/settings"
	"github.com/skep-dev/skep/signing"
)

// settingsState is the gate active, and what is wrong with the files that
// were to replace it.
type settingsState struct {
	reader *settings.Reader
	// kept is what a start knows of them.
	kept kept
	// gate are the options of the evaluator, without what is read.
	gate gate.Options
	log  *slog.Logger
	now  func() time.Time

	evaluator *gate.Evaluator
	trust     *signing.Trust
	// cautions are what the author of the policies may not have meant.
	cautions []string
	// read is when all of them could be read last; zero where that was before the start.
	read time.Time
	// err is why some could not be read last time, and what is active instead.
	err error
}

// fail notes that settings could not be read.
func (s *settingsState) fail(err error) {
	if s.evaluator == nil {
		s.err = fmt.Errorf("%w; no signers and policies are active and nothing of the source is evaluated until this is fixed; what runs is kept", err)
		return
	}
	s.err = fmt.Errorf("%w; signers and policies stay as they were read last, at %s; no change since then, revocations included, is active until this is fixed",
		err, s.lastRead())
}

// lastRead is when all of them could be read last, for people.
func (s *settingsState) lastRead() string {
	if s.read.IsZero() {
		return "an earlier run"
	}
	return s.read.UTC().Format(time.RFC3339)
}

// restore has what cannot be read at the start stay as the last run read it.
func (s *settingsState) restore(ctx context.Context) {
	body, err := s.kept.read()
	if err == nil && body != nil {
		err = s.reader.Restore(ctx, body)
	}
	if err != nil {
		s.log.Error("what the last run read of signers and policies is not known", "error", err)
	}
}

// open reads the settings for the first time.
func (s *settingsState) open(ctx context.Context) error {
	now, err := s.reader.Load(ctx)
	if err != nil {
		return err
	}
	s.gate.Trust, s.gate.Policies = now.Trust, now.Policies
	evaluator, err := gate.New(s.gate)
	if err != nil {
		return err
	}
	s.evaluator = evaluator
	s.settle(now)
	return nil
}

// refresh reads policies and signers again. What cannot be read stays as it
// was; the rest becomes active. All is read every time: nothing short of
// reading tells that a file behind a link, or a package that is imported, did
// not change, and a revocation must not be missed.
func (s *settingsState) refresh(ctx context.Context) {
	if s.evaluator == nil {
		if err := s.open(ctx); err != nil {
			s.fail(err)
		}
		return
	}
	now, err := s.reader.Load(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.fail(err)
		}
		return
	}
	s.evaluator.SetTrust(now.Trust)
	s.evaluator.SetPolicies(now.Policies)
	s.settle(now)
}

// settle notes settings that are active now, and logs what their author may not have
// meant where that is new.
func (s *settingsState) settle(now settings.Settings) {
	for _, caution := range now.Cautions {
		if !slices.Contains(s.cautions, caution) {
			s.log.Warn(caution)
		}
	}
	body, err := s.reader.Record()
	if err == nil {
		err = s.kept.write(body)
	}
	if err != nil {
		s.log.Error("the next start does not know these signers and policies, if it cannot read some of them", "error", err)
	}
	s.trust, s.cautions, s.err = now.Trust, now.Cautions, nil
	if now.Unread == nil {
		s.read = s.now()
		return
	}
	s.err = fmt.Errorf("%w; what that held stays as it was read last, and every other change since %s is active",
		now.Unread, s.lastRead())
}
