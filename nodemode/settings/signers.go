package settings

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/schemas"
	"github.com/skep-dev/skep/signing"
)

// lastSigner is a signer as it was read, at a path of Options.Signers and in a file of it.
type lastSigner struct {
	path, file string
	signer     v1alpha1.BpfSigner
}

// readSigners reads every path. Unread is why some signers are as they were.
func (r *Reader) readSigners(ctx context.Context) (all []lastSigner, unread error) {
	var errs []error
	var kept []lastSigner
	for _, where := range r.options.Signers {
		now, last, err := r.readPath(ctx, where)
		r.meet(err, len(r.signersOf(where)) > 0)
		all, kept, errs = append(all, now...), append(kept, last...), append(errs, err)
	}
	all, broken := r.usable(all)
	for _, s := range slices.Concat(kept, broken.last) {
		if !slices.ContainsFunc(all, func(now lastSigner) bool { return now.signer.Name == s.signer.Name }) {
			all = append(all, s)
		}
	}
	if err := errors.Join(append(errs, broken.errs...)...); err != nil {
		return all, fmt.Errorf("read signers: %w", err)
	}
	return all, nil
}

// readPath reads the signers of one path, and returns those that a problem there may hide
// as they were read last.
func (r *Reader) readPath(ctx context.Context, where string) (now, last []lastSigner, err error) {
	before := r.signersOf(where)
	root, sub, err := schemas.Locate(where)
	if err != nil {
		return nil, before, err
	}
	defs, err := r.rendered.Load(ctx, schemas.Options{Root: root, Path: sub})
	if err != nil {
		return nil, before, err
	}
	for _, s := range defs.Signers {
		now = append(now, lastSigner{path: where, file: defs.Sources[identity(s)].File, signer: s})
	}
	if len(defs.Problems) == 0 && len(now) == 0 {
		return nil, before, fmt.Errorf("%s holds no %s; skep key generate writes one as PREFIX.signer.yaml", where, v1alpha1.KindBpfSigner)
	}
	var problems []error
	for _, p := range defs.Problems {
		problems = append(problems, p)
		r.meet(p, slices.ContainsFunc(before, func(s lastSigner) bool { return s.file == p.Source.File }))
	}
	note := func(emptied schemas.Problem) {
		if !slices.ContainsFunc(problems, func(err error) bool { return err.Error() == emptied.Error() }) {
			problems = append(problems, emptied)
		}
	}
	for _, s := range before {
		isThere := slices.ContainsFunc(now, func(one lastSigner) bool { return one.signer.Name == s.signer.Name })
		emptied, hides := defs.Emptied(s.file)
		if hides = hides && !isThere; hides {
			note(emptied)
		}
		if hides || defs.MayHide(identity(s.signer), s.file) {
			last = append(last, s)
		}
	}
	if emptied, isBlank := defs.Emptied(""); isBlank && !r.whole {
		// What it held is not known.
		note(emptied)
	}
	return now, last, errors.Join(problems...)
}

// signersOf are those that were read last at a path.
func (r *Reader) signersOf(where string) []lastSigner {
	return slices.DeleteFunc(slices.Clone(r.signers), func(s lastSigner) bool { return s.path != where })
}

// unusable are signers that are of no use: why, and how they were read last.
type unusable struct {
	errs []error
	last []lastSigner
}

// usable parts signers from those that are of no use.
func (r *Reader) usable(all []lastSigner) (good []lastSigner, bad unusable) {
	named := map[string][]v1alpha1.BpfSigner{}
	for _, s := range all {
		named[s.signer.Name] = append(named[s.signer.Name], s.signer)
	}
	seen := map[string]bool{}
	for _, s := range all {
		_, err := signing.NewTrust(named[s.signer.Name])
		if err == nil {
			good = append(good, s)
		}
		if err == nil || seen[s.signer.Name] {
			continue
		}
		seen[s.signer.Name] = true
		bad.errs = append(bad.errs, err)
		for _, before := range r.signers {
			if before.signer.Name == s.signer.Name {
				bad.last = append(bad.last, before)
			}
		}
	}
	return good, bad
}

func identity(s v1alpha1.BpfSigner) v1alpha1.Identity {
	return v1alpha1.Identity{Kind: v1alpha1.KindBpfSigner, Name: s.Name}
}
