// Package seals seals intents for tests, in the place of the gate, which is the
// only room that seals any outside them. Its keys are made up and kept nowhere.
package seals

import (
	"crypto/ed25519"
	"encoding/json"
	"testing"

	"github.com/skep-dev/skep/intent"
)

// Key is a controller's key and the agents' trust in it.
type Key struct {
	Sealer *intent.Sealer
	// Trust opens what the key sealed.
	Trust *intent.Trust
}

// New makes a key.
func New(t testing.TB) Key {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatalf("make key: %v", err)
	}
	sealer, err := intent.NewSealer(private)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := intent.NewTrust(sealer.Public())
	if err != nil {
		t.Fatal(err)
	}
	return Key{Sealer: sealer, Trust: trust}
}

// Public is what agents are to trust.
func (k Key) Public() ed25519.PublicKey { return k.Sealer.Public() }

// Seal seals a payload that package intent takes.
func (k Key) Seal(t testing.TB, p intent.Payload) intent.Envelope {
	t.Helper()
	envelope, err := k.Sealer.Seal(p)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// Open seals a payload and opens it as an agent does.
func (k Key) Open(t testing.TB, p intent.Payload) intent.Opened {
	t.Helper()
	opened, err := k.Trust.Open(k.Seal(t, p))
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// Later seals a payload in the format after the one that this build knows, as
// a newer controller may.
func (k Key) Later(t testing.TB, p intent.Payload) intent.Envelope {
	t.Helper()
	return Later(t, k.Sealer, p)
}

// Later is Key.Later for whoever has a sealer alone.
func Later(t testing.TB, by *intent.Sealer, p intent.Payload) intent.Envelope {
	t.Helper()
	p.Format = intent.FormatVersion + 1
	body, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := by.Sign(intent.PayloadType, body)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}
