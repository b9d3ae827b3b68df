package accepted

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/skep-dev/skep/agent/reconcile/report"
)

// Status tells how every application is doing, ordered by name. Tombstones
// whose application has left nothing behind are not listed; what runs without
// an intent is.
func (s *Store) Status() []report.ApplicationStatus {
	return slices.DeleteFunc(s.Report(), func(s report.ApplicationStatus) bool {
		return s.Tombstone && s.Revision == "" && !s.Unloading && s.Error == ""
	})
}

// Report is Status and every tombstone that was worked off.
func (s *Store) Report() []report.ApplicationStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append([]report.ApplicationStatus{}, s.orphans...)
	for _, app := range s.apps {
		if app.Status.UID != "" {
			all = append(all, app.Status)
		}
	}
	for i := range all {
		if share, has := s.shares[all[i].Application.Namespace]; has {
			all[i].SharedTargets = &share
		}
	}
	slices.SortFunc(all, func(x, y report.ApplicationStatus) int {
		return strings.Compare(x.Application.String()+"\x00"+x.UID, y.Application.String()+"\x00"+y.UID)
	})
	return all
}

// Settled waits until every accepted intent was worked on once: its
// application is as it is to be, or has failed and is being tried again. The
// error joins what failed; Status tells more.
func (s *Store) Settled(ctx context.Context) error {
	for {
		s.mu.Lock()
		wait := s.settled
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for applications: %w", context.Cause(ctx))
		case <-wait:
		}
		s.mu.Lock()
		done := wait == s.settled
		s.mu.Unlock()
		if done {
			break
		}
	}
	var errs []error
	for _, s := range s.Status() {
		if s.Error != "" {
			errs = append(errs, fmt.Errorf("%s: %s", s.Application, s.Error))
		}
	}
	return errors.Join(errs...)
}
