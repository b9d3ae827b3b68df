package settings

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
)

// record is what was read last, for a start at which some of it cannot be read. What was read with other
// options says nothing.
type record struct {
	Options  Options          `json:"options"`
	Signers  []recordedSigner `json:"signers"`
	Policies []recordedPolicy `json:"policies"`
}

type recordedSigner struct {
	Path   string             `json:"path"`
	File   string             `json:"file"`
	Signer v1alpha1.BpfSigner `json:"signer"`
}

type recordedPolicy struct {
	Where  string          `json:"where"`
	File   string          `json:"file"`
	Policy policies.Policy `json:"policy"`
}

// Record returns what was read last, for Restore.
func (r *Reader) Record() ([]byte, error) {
	now := record{Options: r.options}
	for _, s := range r.signers {
		now.Signers = append(now.Signers, recordedSigner{s.path, s.file, s.signer})
	}
	for _, p := range r.policies {
		now.Policies = append(now.Policies, recordedPolicy{p.where, p.file, p.Policy})
	}
	body, err := json.Marshal(now)
	if err != nil {
		return nil, fmt.Errorf("record settings: %w", err)
	}
	return body, nil
}

// Restore takes over what Record returned, before the first Load: what cannot be read then stays as it was. One of other
// options is no error, and changes nothing.
func (r *Reader) Restore(ctx context.Context, body []byte) error {
	var last record
	if err := json.Unmarshal(body, &last); err != nil {
		return fmt.Errorf("restore settings: %w", err)
	}
	if !reflect.DeepEqual(last.Options, r.options) {
		return nil
	}
	before := make([]lastPolicy, len(last.Policies))
	for i, p := range last.Policies {
		before[i] = lastPolicy{Policy: p.Policy, where: p.Where, file: p.File}
	}
	before, _, err := r.compiled(ctx, before)
	if err != nil {
		return fmt.Errorf("restore settings: %w", err)
	}
	for _, s := range last.Signers {
		r.signers = append(r.signers, lastSigner{path: s.Path, file: s.File, signer: s.Signer})
	}
	r.whole, r.policies = true, before
	return nil
}
