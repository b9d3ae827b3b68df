package settings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/policies"
	"github.com/skep-dev/skep/schemas"
)

// lastPolicy is a policy as it was read, from what --policy names and in a file of it, and
// compiled.
type lastPolicy struct {
	policies.Policy
	where, file string
	proven      policies.Proven
}

// readPolicies reads and compiles those that are named. Unread is why some are as they
// were, err is of the options.
func (r *Reader) readPolicies(ctx context.Context) (all []lastPolicy, unread, err error) {
	replaces := make([]v1alpha1.BuiltinPolicy, len(r.options.Replaces))
	for i, name := range r.options.Replaces {
		if slices.Contains(r.options.Policies, name) {
			return nil, nil, fmt.Errorf("read policies: --policy %s and --replaces %s exclude each other", name, name)
		}
		replaces[i] = v1alpha1.BuiltinPolicy(name)
	}
	var kept []lastPolicy
	var errs []error
	for _, where := range r.options.Policies {
		now, last, err := r.readNamed(ctx, where, replaces)
		r.meet(err, slices.ContainsFunc(r.policies, func(p lastPolicy) bool { return p.where == where }))
		all, kept, errs = append(all, now...), append(kept, last...), append(errs, err)
	}
	unread = errors.Join(errs...)
	all, last, broken := r.compiled(ctx, all)
	if broken != nil {
		unread = errors.Join(unread, fmt.Errorf("compile policies: %w", broken))
	}
	all = withLast(all, slices.Concat(kept, last))
	if len(replaces) > 0 && !slices.ContainsFunc(all, func(p lastPolicy) bool { return len(p.Replaces) > 0 }) {
		none := fmt.Errorf("read policies: --replaces %s needs a .rego file or a profile of --policy to take its place", strings.Join(r.options.Replaces, ","))
		return r.policies, errors.Join(unread, none), nil
	}
	return all, unread, nil
}

// withLast adds policies as they were read last, but for those that another one has the
// name of.
func withLast(all, last []lastPolicy) []lastPolicy {
	for _, p := range last {
		if !slices.ContainsFunc(all, func(now lastPolicy) bool { return now.String() == p.String() }) {
			all = append(all, p)
		}
	}
	return all
}

// readNamed reads what one --policy names, and returns what a broken file there may hold
// as it was read last.
func (r *Reader) readNamed(ctx context.Context, where string, replaces []v1alpha1.BuiltinPolicy) (now, last []lastPolicy, err error) {
	before := slices.DeleteFunc(slices.Clone(r.policies), func(p lastPolicy) bool { return p.where != where })
	info, err := os.Stat(where)
	if errors.Is(err, os.ErrNotExist) && slices.Contains(policies.Profiles(), where) {
		profile := policies.Policy{Name: where, Spec: v1alpha1.BpfPolicySpec{Profile: where}, Replaces: replaces}
		return []lastPolicy{{Policy: profile, where: where}}, nil, nil
	}
	if err != nil {
		return nil, before, fmt.Errorf("read policies: %w; name a folder or a profile (%s)", err, strings.Join(policies.Profiles(), ", "))
	}
	if !info.IsDir() {
		return nil, before, fmt.Errorf("read policies: %s is a file; name the folder it is in", where)
	}
	files, err := policies.LoadFiles(os.DirFS(where), replaces...)
	if err != nil {
		return nil, before, fmt.Errorf("read policies in %s: %w", where, err)
	}
	for _, f := range files {
		for _, p := range f.Policies {
			now = append(now, lastPolicy{Policy: p, where: where, file: f.Path})
		}
	}
	var unread, emptied []error
	for _, f := range files {
		held := slices.DeleteFunc(slices.Clone(before), func(p lastPolicy) bool { return p.file != f.Path && !strings.HasPrefix(p.file, f.Path+"/") })
		isGone := slices.ContainsFunc(held, func(p lastPolicy) bool {
			return !slices.ContainsFunc(now, func(one lastPolicy) bool { return one.String() == p.String() })
		})
		switch {
		case f.Err != nil:
			r.meet(f.Err, len(held) > 0)
			unread, last = append(unread, f.Err), append(last, held...)
		case len(f.Policies) == 0 && isGone:
			why := fmt.Errorf("read policies in %s: %s holds no policy any more; it may be half-written: write it again, or remove it", where, f.Path)
			emptied, last = append(emptied, why), append(last, held...)
		}
	}
	err = errors.Join(emptied...)
	if broken := errors.Join(unread...); broken != nil {
		err = errors.Join(fmt.Errorf("read policies in %s: %w", where, placed(ctx, where, broken)), err)
	}
	if err == nil && len(now) == 0 {
		return nil, before, fmt.Errorf("read policies: %s holds no .rego file and no policy object: keep one there, or leave out --policy %s", where, where)
	}
	return now, last, err
}

// compiled compiles policies. Those that cannot be used, and those of one name, are left
// out, and are returned as they were read last.
func (r *Reader) compiled(ctx context.Context, all []lastPolicy) (good, last []lastPolicy, err error) {
	why := make([]error, len(all))
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { why[i] = r.compile(ctx, &all[i]) })
	}
	group.Wait()
	for i, p := range all {
		same := slices.IndexFunc(all, func(other lastPolicy) bool { return other.String() == p.String() })
		if same != i {
			why[i] = fmt.Errorf("policy %s is in %s and in %s: rename one of them", p, filepath.Join(all[same].where, all[same].file), filepath.Join(p.where, p.file))
			why[same] = errors.Join(why[same], why[i])
		}
	}
	for i, p := range all {
		if why[i] == nil {
			good = append(good, p)
			continue
		}
		isKnown := false
		for _, before := range r.policies {
			if before.String() == p.String() {
				last, isKnown = append(last, before), true
			}
		}
		r.meet(why[i], isKnown)
	}
	return good, last, errors.Join(why...)
}

// compile compiles a policy, unless that was done.
func (r *Reader) compile(ctx context.Context, p *lastPolicy) error {
	for _, before := range r.policies {
		if reflect.DeepEqual(before.Policy, p.Policy) {
			p.proven = before.proven
			return nil
		}
	}
	var err error
	if p.proven, err = r.engine.Prove(ctx, p.Policy); err != nil {
		return err
	}
	return p.proven.Err()
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
