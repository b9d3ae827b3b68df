package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

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

// absolute are the options whatever folder a process is in.
func (o Options) absolute() Options {
	for _, paths := range []*[]string{&o.Policies, &o.Signers} {
		*paths = slices.Clone(*paths)
		for i, path := range *paths {
			if full, err := filepath.Abs(path); err == nil {
				(*paths)[i] = full
			}
		}
	}
	return o
}

// Record returns what was read last, for Restore.
func (r *Reader) Record() ([]byte, error) {
	now := record{Options: r.options.absolute()}
	for _, s := range r.signers {
		now.Signers = append(now.Signers, recordedSigner{s.path, s.file, s.signer})
	}
	for _, p := range r.policies {
		now.Policies = append(now.Policies, recordedPolicy{p.where, p.file, p.Policy})
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(now); err != nil {
		return nil, fmt.Errorf("record settings: %w", err)
	}
	return body.Bytes(), nil
}

// Restore takes over what Record returned, before the first Load: what cannot be read then stays as it was. One of other
// options is no error, and changes nothing.
func (r *Reader) Restore(ctx context.Context, body []byte) error {
	var last record
	decoder := json.NewDecoder(bytes.NewReader(body))
	// What an older Skep does not know may be what restricts a signer.
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&last); err != nil {
		return fmt.Errorf("restore settings: %w", err)
	}
	if !reflect.DeepEqual(last.Options, r.options.absolute()) {
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
	r.restored, r.policies = true, before
	return nil
}
