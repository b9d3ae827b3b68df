// Package seals seals intents for tests, in the place of the gate, which is the
// only room that seals any outside them. Its keys are made up and kept nowhere.
package seals

import (
	"crypto/ed25519"
	"testing"

	"github.com/skep-dev/skep/intent"
)

// Key is a controller's key and the agents' trust in it.
type Key struct {
	sealer *intent.Sealer
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
	return Key{sealer: sealer, Trust: trust}
}

// Public is what agents are to trust.
func (k Key) Public() ed25519.PublicKey { return k.sealer.Public() }

// Seal seals a payload that package intent takes.
func (k Key) Seal(t testing.TB, p intent.Payload) intent.Envelope {
	t.Helper()
	envelope, err := k.sealer.Seal(p)
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
