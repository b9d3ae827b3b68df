package kube

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/skep-dev/skep/api/v1alpha1"
	"github.com/skep-dev/skep/intent"
)

// The ways an envelope fares.
const (
	accepted  = "accepted"
	badSeal   = "seal"
	badFormat = "format"
	overtaken = "older"
	conflicts = "conflict"
	notAtHand = "failed"
)

// fareOf says in a word why an envelope was not accepted.
func fareOf(err error) string {
	switch {
	case err == nil:
		return accepted
	case errors.Is(err, intent.ErrSeal):
		return badSeal
	case errors.Is(err, intent.ErrFormat):
		return badFormat
	case errors.Is(err, intent.ErrOlder):
		return overtaken
	case errors.Is(err, intent.ErrConflict):
		return conflicts
	}
	return notAtHand
}

// seen is what is remembered of a BpfIntent: enough to tell whether it changed,
// and not the envelope, which the agent underneath has.
type seen struct {
	hash [sha256.Size]byte
	// fare is how it fared, said what was logged of it.
	fare, said string
	// keys counts the changes of trust before.
	keys int
}

// intents hands every new envelope over once. It is a cache.ReflectorStore.
type intents struct {
	agent *Agent
	// again asks for the whole list once more.
	again chan struct{}

	mu     sync.Mutex
	known  map[string]seen
	keys   int
	listed bool
}

// followIntents watches every BpfIntent. Where some could not be kept, or where
// keys changed by which some may hold now, it lists them again.
func (a *Agent) followIntents(ctx context.Context) {
	for ctx.Err() == nil {
		round, cancel := context.WithCancel(ctx)
		stop := make(chan struct{})
		go func() {
			defer close(stop)
			a.intents.awaitAgain(round)
			cancel()
		}()
		a.api.ours(resourceIntents, "", &v1alpha1.BpfIntent{}).follow(round, a.intents, a.opts.Log)
		cancel()
		<-stop
	}
}

// awaitAgain returns when the list is wanted once more.
func (s *intents) awaitAgain(ctx context.Context) {
	for {
		retry := time.NewTimer(s.agent.opts.Again.next())
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-s.again:
			retry.Stop()
			if s.forget("") {
				return
			}
		case <-retry.C:
			if s.forget(notAtHand) {
				return
			}
		}
	}
}

// rekey notes that other keys count now, by which what was rejected may hold.
func (s *intents) rekey() {
	s.mu.Lock()
	s.keys++
	s.mu.Unlock()
	poke(s.again)
}

// forget drops what is known of envelopes that fared so, and of those that were
// rejected by keys before, and reports whether there were any.
func (s *intents) forget(fare string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	for name, one := range s.known {
		if one.fare == fare || one.fare == badSeal && one.keys != s.keys {
			one.hash, found = [sha256.Size]byte{}, true
			s.known[name] = one
		}
	}
	return found
}

// Add implements cache.ReflectorStore.
func (s *intents) Add(obj any) error {
	i, ok := obj.(*v1alpha1.BpfIntent)
	if !ok {
		return fmt.Errorf("take intent: have a %T", obj)
	}
	s.take(i)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *intents) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore. Absence unloads nothing.
func (s *intents) Delete(obj any) error {
	i, ok := obj.(*v1alpha1.BpfIntent)
	if !ok {
		return fmt.Errorf("lose intent: have a %T", obj)
	}
	s.mu.Lock()
	delete(s.known, i.Name)
	s.mu.Unlock()
	s.agent.poke()
	return nil
}

// Replace implements cache.ReflectorStore. What is not in the list any more
// goes on.
func (s *intents) Replace(list []any, _ string) error {
	there := map[string]bool{}
	for _, obj := range list {
		i, ok := obj.(*v1alpha1.BpfIntent)
		if !ok {
			return fmt.Errorf("take intent: have a %T", obj)
		}
		there[i.Name] = true
	}
	s.together(func() {
		for _, obj := range list {
			s.take(obj.(*v1alpha1.BpfIntent))
		}
	})
	s.mu.Lock()
	for name := range s.known {
		if !there[name] {
			delete(s.known, name)
		}
	}
	s.listed = true
	s.mu.Unlock()
	s.agent.poke()
	return nil
}

// batcher is a Holder that looks at what it accepts meanwhile all at once.
type batcher interface{ Batch(accept func()) }

// together has the first list taken as one: on a new node no application gains a
// place over an older one by standing earlier in it.
func (s *intents) together(take func()) {
	s.mu.Lock()
	first := !s.listed
	s.mu.Unlock()
	if b, ok := s.agent.holder.(batcher); ok && first {
		b.Batch(take)
		return
	}
	take()
}

// Resync implements cache.ReflectorStore.
func (s *intents) Resync() error { return nil }

// take hands an envelope over that was not seen before. What is rejected or cannot
// be kept is told once.
func (s *intents) take(i *v1alpha1.BpfIntent) {
	s.mu.Lock()
	before, known := s.known[i.Name]
	now := seen{hash: sha256.Sum256(i.Spec.Envelope), keys: s.keys}
	if !known {
		// It is there from the moment that it is accepted.
		s.known[i.Name] = seen{fare: notAtHand}
	}
	s.mu.Unlock()
	if before.hash == now.hash {
		return
	}
	err := s.agent.holder.Accept(i.Spec.Envelope)
	now.fare = fareOf(err)
	s.agent.metrics.intents.WithLabelValues(now.fare).Inc()
	if err != nil {
		now.said = err.Error()
	}
	if err != nil && now.said != before.said {
		s.agent.opts.Log.Error("intent is invalid, or cannot be stored", "bpfintent", i.Name, "reason", now.fare, "error", err)
	}
	s.mu.Lock()
	s.known[i.Name] = now
	s.mu.Unlock()
}

// state reports whether the intents were listed, and how that of an application
// fared; empty where there is none.
func (s *intents) state() (listed bool, fare func(uid string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fares := make(map[string]string, len(s.known))
	for name, one := range s.known {
		fares[name] = one.fare
	}
	return s.listed, func(uid string) string { return fares[uid] }
}
