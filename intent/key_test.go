package intent_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/skep-dev/skep/intent"
)

func TestKeysSurviveWritingAndReading(t *testing.T) {
	private, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := intent.ParseKey(private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := s.MarshalPublic()
	if err != nil {
		t.Fatal(err)
	}
	other, err := sealer(t, 3).MarshalPublic()
	if err != nil {
		t.Fatal(err)
	}
	tr, err := intent.ParseTrust(append(other, public...))
	if err != nil {
		t.Fatal(err)
	}
	for name, by := range map[string]*intent.Sealer{"the key made": s, "the other key of the bundle": sealer(t, 3)} {
		if _, err := tr.Open(seal(t, by, payload())); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeysThatAreNotAreRefused(t *testing.T) {
	private, err := intent.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	secret := strings.Split(string(private), "\n")[1]
	for name, data := range map[string][]byte{
		"nothing":              nil,
		"a text":               []byte("key"),
		"a public key":         []byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
		"a damaged key":        bytes.Replace(private, []byte(secret), []byte("A"+secret[1:]), 1),
		"a key of another art": []byte("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"),
	} {
		_, err := intent.ParseKey(data)
		if err == nil {
			t.Errorf("%s: read as a key", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error holds the key: %v", name, err)
		}
		if _, err := intent.ParseTrust(data); err == nil {
			t.Errorf("%s: read as trust", name)
		}
	}
}
