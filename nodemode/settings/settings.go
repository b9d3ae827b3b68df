// Package settings reads the admins' side of node mode: policies, and signers.
//
// It reads them whole or not at all, and decides nothing by them.
package settings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	all, err := o.policies(ctx)
	if err != nil {
		return Settings{}, err
	}
	set, err := engine.Compile(ctx, all, policies.Options{})
	if err != nil {
		return Settings{}, fmt.Errorf("compile policies: %w", err)
	}
	var signers []v1alpha1.BpfSigner
	for _, p := range o.Signers {
		defs, err := loadObjects(ctx, p)
		if err != nil {
			return Settings{}, fmt.Errorf("read signers: %w", err)
		}
		if len(defs.Signers) == 0 {
			return Settings{}, fmt.Errorf("read signers: %s holds no %s; skep key generate writes one as PREFIX.signer.yaml", p, v1alpha1.KindBpfSigner)
		}
		signers = append(signers, defs.Signers...)
	}
	trust, err := signing.NewTrust(signers)
	if err != nil {
		return Settings{}, fmt.Errorf("read signers: %w", err)
	}
	return Settings{Trust: trust, Policies: set, Cautions: cautions(all, trust)}, nil
}

// cautions are those of all policies, and of all signers.
func cautions(all []policies.Policy, trust *signing.Trust) []string {
	var list []string
	for _, p := range all {
		list = append(list, p.Cautions()...)
	}
	for _, name := range trust.Names() {
		list = append(list, trust.Cautions(name)...)
	}
	return list
}

// policies reads those that are named.
func (o Options) policies(ctx context.Context) ([]policies.Policy, error) {
	replaces := make([]v1alpha1.BuiltinPolicy, len(o.Replaces))
	for i, name := range o.Replaces {
		if slices.Contains(o.Policies, name) {
			return nil, fmt.Errorf("read policies: --policy %s and --replaces %s exclude each other", name, name)
		}
		replaces[i] = v1alpha1.BuiltinPolicy(name)
	}
	var all []policies.Policy
	for _, p := range o.Policies {
		some, err := loadPolicies(ctx, p, replaces)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(replaces) > 0 && !slices.ContainsFunc(all, func(p policies.Policy) bool { return len(p.Replaces) > 0 }) {
		return nil, fmt.Errorf("read policies: --replaces %s needs a .rego file or a profile of --policy to take its place", strings.Join(o.Replaces, ","))
	}
	return all, nil
}

// loadPolicies reads what one --policy names.
func loadPolicies(ctx context.Context, where string, replaces []v1alpha1.BuiltinPolicy) ([]policies.Policy, error) {
	info, err := os.Stat(where)
	if errors.Is(err, os.ErrNotExist) && slices.Contains(policies.Profiles(), where) {
		return []policies.Policy{{Name: where, Spec: v1alpha1.BpfPolicySpec{Profile: where}, Replaces: replaces}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read policies: %w; name a folder or a profile (%s)", err, strings.Join(policies.Profiles(), ", "))
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("read policies: %s is a file; name the folder it is in", where)
	}
	all, err := policies.Load(os.DirFS(where), replaces...)
	if err != nil {
		return nil, fmt.Errorf("read policies in %s: %w", where, placed(ctx, where, err))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("read policies: %s holds no .rego file and no policy object: keep one there, or leave out --policy %s", where, where)
	}
	return all, nil
}

// placed is why policy objects cannot be read in the words of the schema, which
// knows places and fixes; err where the schema finds nothing wrong.
func placed(ctx context.Context, where string, err error) error {
	defs, schemaErr := schemas.Load(ctx, schemas.Options{Root: where})
	if schemaErr != nil {
		return err
	}
	var problems []error
	for _, p := range defs.Problems {
		// CUE in the folder is no policy's.
		if ext := filepath.Ext(p.Source.File); ext == ".yaml" || ext == ".yml" {
			problems = append(problems, p)
		}
	}
	if len(problems) == 0 {
		return err
	}
	return errors.Join(problems...)
}

// loadObjects reads the admins' own files with the schema that users' files are
// read with. Any problem is an error: settings are believed whole or not at
// all.
func loadObjects(ctx context.Context, where string) (schemas.Definitions, error) {
	root, sub, err := schemas.Locate(where)
	if err != nil {
		return schemas.Definitions{}, err
	}
	defs, err := schemas.Load(ctx, schemas.Options{Root: root, Path: sub})
	if err != nil {
		return schemas.Definitions{}, err
	}
	var problems []error
	for _, p := range defs.Problems {
		problems = append(problems, p)
	}
	return defs, errors.Join(problems...)
}
