// Package settings reads the admins' side of node mode: policies, and signers.
//
// What cannot be read keeps its last state, and the rest takes effect. It decides nothing
// by them.
package settings

import (
	"context"
	"errors"
	"fmt"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
)

// Settings are the admins' side of the pipeline: whose signatures count and
// which policies decide.
type Settings struct {
	Trust    *signing.Trust
	Policies *policies.Set
	// Cautions are those of policies and signers: what their author may not have meant.
	Cautions []string
	// Unread is why some of them are as they were read last; nil where none is.
	Unread error
}

// Options say where settings are read from.
type Options struct {
	// Policies are folders that policies.Load reads, and names of profiles that ship
	// with Skep. The built-in baseline is added to them.
	Policies []string
	// Replaces names the built-in policies that the .rego files and the profiles of
	// Policies replace; an object says so itself.
	Replaces []string
	// Signers are files and folders of BpfSigner objects.
	Signers []string
}

// Load reads them whole or not at all. The Set is of use until engine is
// closed.
func Load(ctx context.Context, engine *policies.Engine, o Options) (Settings, error) {
	return NewReader(o, engine).Load(ctx)
}

// Reader reads settings again and again, and remembers what it read last.
type Reader struct {
	options Options
	engine  *policies.Engine
	// whole is true once all could be read, and restored where Restore knew what an earlier Reader read.
	whole, restored bool
	// strange is what could not be read, and was not read before either: what it holds may be what is missing elsewhere.
	strange  []error
	signers  []lastSigner
	policies []lastPolicy
	rendered schemas.Memory
}

// NewReader returns a Reader that has read nothing yet. Its Settings are of use until
// engine is closed.
func NewReader(o Options, engine *policies.Engine) *Reader {
	return &Reader{options: o, engine: engine}
}

// Load reads them. What cannot be read, or is of no use, keeps the state in which it was
// read last, and is in Unread; all else is as it is written now. Until all could be read
// once, that is an error.
func (r *Reader) Load(ctx context.Context) (Settings, error) {
	r.strange = nil
	signers, unread := r.readSigners(ctx)
	all, unusable, err := r.readPolicies(ctx)
	unread = errors.Join(unread, unusable)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return Settings{}, errors.Join(unread, err)
	}
	if unread != nil && !r.whole && (!r.restored || len(r.strange) > 0) {
		return Settings{}, unread
	}
	set, err := r.engine.Assemble(ctx, proofsOf(all), policies.Options{})
	if err != nil {
		return Settings{}, err
	}
	trust, err := signing.NewTrust(signersOf(signers))
	if err != nil {
		return Settings{}, fmt.Errorf("read signers: %w", err)
	}
	r.whole, r.signers, r.policies = r.whole || unread == nil, signers, all
	return Settings{Trust: trust, Policies: set, Cautions: cautions(all, trust), Unread: unread}, nil
}

// meet notes an error, of what may hold what is missing elsewhere where it is not known.
func (r *Reader) meet(err error, isKnown bool) {
	if err != nil && !isKnown {
		r.strange = append(r.strange, err)
	}
}

// cautions are those of all policies, and of all signers.
func cautions(all []lastPolicy, trust *signing.Trust) []string {
	var list []string
	for _, p := range all {
		list = append(list, p.Cautions()...)
	}
	for _, name := range trust.Names() {
		list = append(list, trust.Cautions(name)...)
	}
	return list
}

func proofsOf(all []lastPolicy) []policies.Proven {
	list := make([]policies.Proven, len(all))
	for i, p := range all {
		list[i] = p.proven
	}
	return list
}

func signersOf(all []lastSigner) []v1alpha1.BpfSigner {
	list := make([]v1alpha1.BpfSigner, len(all))
	for i, s := range all {
		list[i] = s.signer
	}
	return list
}
