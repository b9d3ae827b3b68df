package intent

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/hook"
)

// MaxEnvelopeBytes bounds what Open reads, of which envelopeRest are left for
// all that is not payload. MaxPayloadBytes bounds a payload, which an envelope holds
// as base64: in four bytes for three.
const (
	MaxEnvelopeBytes = 1 << 20
	envelopeRest     = 1 << 10
	MaxPayloadBytes  = (MaxEnvelopeBytes - envelopeRest) / 4 * 3
)

// Errors that callers tell apart.
var (
	// ErrSeal: no trusted key made the envelope's signature, or its bytes were
	// changed after it was made.
	ErrSeal = errors.New("seal does not hold")
	// ErrFormat: the payload is of a version this build does not know. What
	// runs is kept.
	ErrFormat = errors.New("intent format not known")
	// ErrOlder: a newer intent of the same application was seen before.
	ErrOlder = errors.New("intent is older than the last one seen")
	// ErrConflict: another intent of the same application was seen under this
	// serial. What runs is kept.
	ErrConflict = errors.New("another intent was seen under the same serial")
)

// Envelope is a sealed intent: a DSSE envelope as JSON.
type Envelope []byte

// Opened is an intent whose seal held. Only Trust.Open makes one.
type Opened struct {
	payload  Payload
	revision string
	// beside are the revisions of Payload.Beside; held tells that For chose the
	// version before.
	beside []string
	held   bool
	// evidence is next to the payload, and trust is in who may have sealed it. It is verified
	// where it is read: agents do not.
	evidence json.RawMessage
	trust    *Trust
}

// Payload returns what was sealed. It is shared and must not be changed.
func (o Opened) Payload() Payload { return o.payload }

// Revision names what is to be loaded, without where it attaches: two intents
// of one application with equal revisions need no reload. It is lower-case hex.
func (o Opened) Revision() string { return o.revision }

// Sealer signs intents with one ed25519 key.
type Sealer struct{ key signer }

// NewSealer returns a Sealer for the key.
func NewSealer(key ed25519.PrivateKey) (*Sealer, error) {
	if len(key) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("seal key: want an ed25519 private key of %d bytes, have %d", ed25519.PrivateKeySize, len(key))
	}
	return &Sealer{key: signer{private: key, public: key.Public().(ed25519.PublicKey)}}, nil
}

// Public returns the key agents are to trust.
func (s *Sealer) Public() ed25519.PublicKey { return s.key.public }

// Seal signs the payload, after setting its format. Package gate is the only
// caller outside tests: it seals verdicts that allow, and tombstones.
func (s *Sealer) Seal(p Payload) (Envelope, error) {
	p.Format = FormatVersion
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("seal intent of %s: %w", p.Application, err)
	}
	body, err := p.marshal()
	if err != nil {
		return nil, fmt.Errorf("seal intent of %s: %w", p.Application, err)
	}
	if len(body) > MaxPayloadBytes {
		return nil, fmt.Errorf("seal intent of %s: it has %d bytes%s, at most %d are read: make the definition smaller",
			p.Application, len(body), p.sizeBeside(len(body)), MaxPayloadBytes)
	}
	e, err := s.Sign(PayloadType, body)
	if err == nil {
		e, err = s.addEvidence(e, p)
	}
	if err != nil {
		return nil, fmt.Errorf("seal intent of %s: %w", p.Application, err)
	}
	return e, nil
}

// sizeBeside says how many of the bytes are those of versions beside the payload's own; nothing where there are none.
func (p Payload) sizeBeside(all int) string {
	own, err := p.Alone().Size()
	if err != nil || len(p.Beside()) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d of them of other versions that nodes may still run", all-own)
}

// marshal is the payload as it is sealed. Nothing is escaped for HTML: that would make
// six bytes of one.
func (p Payload) marshal() ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(p); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

// Size is how many bytes the payload has when it is sealed.
func (p Payload) Size() (int, error) {
	body, err := p.marshal()
	return len(body), err
}

// Sign seals what is no intent: bytes of another type than PayloadType, which
// Open takes for none.
func (s *Sealer) Sign(payloadType string, body []byte) (Envelope, error) {
	es, err := dsse.NewEnvelopeSigner(s.key)
	if err != nil {
		return nil, err
	}
	env, err := es.SignPayload(context.Background(), payloadType, body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(env)
}

// Trust is the set of keys whose seals hold. During a key rotation it holds
// the old and the new.
type Trust struct{ verifiers []dsse.Verifier }

// NewTrust returns a Trust in the keys; at least one is needed.
func NewTrust(keys ...ed25519.PublicKey) (*Trust, error) {
	if len(keys) == 0 {
		return nil, errors.New("seal trust: no key given")
	}
	t := &Trust{}
	for _, k := range keys {
		if len(k) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("seal trust: want ed25519 public keys of %d bytes, have %d", ed25519.PublicKeySize, len(k))
		}
		t.verifiers = append(t.verifiers, signer{public: k})
	}
	return t, nil
}

// Open checks the seal and returns the intent. It fails with ErrSeal or
// ErrFormat, and reads at most MaxEnvelopeBytes.
func (t *Trust) Open(e Envelope) (Opened, error) {
	body, evidence, err := t.verify(PayloadType, e)
	if err != nil {
		return Opened{}, fmt.Errorf("open intent: %w", err)
	}
	o, err := decode(body)
	o.evidence, o.trust = evidence, t
	return o, err
}

// Verify returns what Sign sealed as that type. It fails with ErrSeal, and reads
// at most MaxEnvelopeBytes.
func (t *Trust) Verify(payloadType string, e Envelope) ([]byte, error) {
	body, _, err := t.verify(payloadType, e)
	return body, err
}

// verify is Verify with the evidence next to the payload, which is not verified.
func (t *Trust) verify(payloadType string, e Envelope) (body, evidence []byte, err error) {
	if len(e) > MaxEnvelopeBytes {
		return nil, nil, fmt.Errorf("%d bytes, at most %d are read: %w", len(e), MaxEnvelopeBytes, ErrSeal)
	}
	var env withEvidence
	if err := json.Unmarshal(e, &env); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSeal, err)
	}
	if env.PayloadType != payloadType {
		return nil, nil, fmt.Errorf("payload type %q: %w", env.PayloadType, ErrSeal)
	}
	if body, err = base64.StdEncoding.DecodeString(env.Payload); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSeal, err)
	}
	ev, err := dsse.NewEnvelopeVerifier(t.verifiers...)
	if err != nil {
		return nil, nil, err
	}
	if _, err := ev.Verify(context.Background(), &env.Envelope); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrSeal, err)
	}
	return body, env.Evidence, nil
}

// decode reads a payload whose seal held.
func decode(body []byte) (Opened, error) {
	var format struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(body, &format); err != nil {
		return Opened{}, fmt.Errorf("open intent: %w: %w", ErrFormat, err)
	}
	if format.Format != FormatVersion {
		return Opened{}, fmt.Errorf("open intent: format %d, this build knows %d: %w", format.Format, FormatVersion, ErrFormat)
	}
	var p Payload
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return Opened{}, fmt.Errorf("open intent: %w: %w", ErrFormat, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Opened{}, fmt.Errorf("open intent: %w: more than one document", ErrFormat)
	}
	if err := p.check(); err != nil {
		return Opened{}, fmt.Errorf("open intent of %s: %w: %w", p.Application, ErrFormat, err)
	}
	o := Opened{payload: p}
	for _, v := range p.Versions() {
		revision, err := v.revision()
		if err != nil {
			return Opened{}, fmt.Errorf("open intent of %s: %w", p.Application, err)
		}
		o.beside = append(o.beside, revision)
	}
	o.revision, o.beside = o.beside[0], o.beside[1:]
	return o, nil
}

// check rejects payloads that no honest sealer makes.
func (p *Payload) check() error {
	switch {
	case p.Application.Kind == "" || p.Application.Name == "":
		return errors.New("no application named")
	case p.UID == "":
		return errors.New("no uid")
	case p.Serial <= 0:
		return fmt.Errorf("serial %d", p.Serial)
	case p.Created < 0:
		return fmt.Errorf("created at %d", p.Created)
	case p.Tombstone:
		return nil
	case len(p.Programs) == 0:
		return errors.New("no programs")
	case p.ObjectDigest == "":
		return errors.New("no object digest")
	}
	if _, err := metav1.LabelSelectorAsSelector(p.NodeSelector); err != nil {
		return fmt.Errorf("node selector: %w", err)
	}
	return p.checkRollout()
}

// revision hashes what decides the loaded bytes: the object, the values set in
// it, and per program what the kernel is told at load time.
func (p *Payload) revision() (string, error) {
	type target struct {
		Hook, Function, Tracepoint string
		Optional                   bool `json:",omitempty"`
	}
	type program struct {
		Name     string
		Targets  []target
		Optional bool `json:",omitempty"`
	}
	programs := make([]program, 0, len(p.Programs))
	for _, pr := range p.Programs {
		one := program{Name: pr.Name, Optional: pr.Optional}
		for _, a := range pr.Attach {
			one.Targets = append(one.Targets, target{a.Hook, loadedFor(a), a.Tracepoint, a.Optional})
		}
		programs = append(programs, one)
	}
	body, err := json.Marshal(struct {
		Object       string
		Variables    any
		Maps         map[string]v1alpha1.Map
		Programs     []program
		Alternatives []v1alpha1.Alternative `json:",omitempty"`
	}{p.ObjectDigest, p.Variables, p.loadedMaps(), programs, p.Alternatives})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16]), nil
}

// loadedMaps is what the intent says of maps, without readers and without whom they are shared with:
// no program is loaded again for one more. That a map is named counts, since it is made then.
func (p *Payload) loadedMaps() map[string]v1alpha1.Map {
	all := v1alpha1.WithoutReaders(p.Maps)
	for name, m := range all {
		m.SharedWith = nil
		all[name] = m
	}
	return all
}

// loadedFor are the functions that the kernel is told when it loads the program.
func loadedFor(a v1alpha1.Attachment) string {
	if h, ok := hook.Lookup(a.Hook); !ok || !h.LoadsForTarget() || a.Functions == nil {
		return ""
	}
	return strings.Join(a.Functions.Names, ",")
}

// signer is an ed25519 key as the dsse package wants it.
type signer struct {
	private ed25519.PrivateKey
	public  ed25519.PublicKey
}

// KeyID implements dsse.Verifier: the first eight bytes of the key's sha256.
func (s signer) KeyID() (string, error) {
	sum := sha256.Sum256(s.public)
	return hex.EncodeToString(sum[:8]), nil
}

// Public implements dsse.Verifier.
func (s signer) Public() crypto.PublicKey { return s.public }

// Sign implements dsse.Signer.
func (s signer) Sign(_ context.Context, data []byte) ([]byte, error) {
	return ed25519.Sign(s.private, data), nil
}

// Verify implements dsse.Verifier.
func (s signer) Verify(_ context.Context, data, sig []byte) error {
	if !ed25519.Verify(s.public, data, sig) {
		return errors.New("ed25519 signature does not match")
	}
	return nil
}
