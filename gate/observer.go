package gate

// Observer counts what an Evaluator does. It is called from many goroutines.
type Observer interface {
	// Signatures is told where those of an image came from.
	Signatures(from Origin)
	// Looked is told whether something was remembered that was worked out before.
	Looked(what Recall, remembered bool)
}

// Origin says where the signatures of an image came from.
type Origin string

// The origins of signatures.
const (
	// FromMemory needs nobody.
	FromMemory Origin = "memory"
	// FromStore is Options.Memory, where another process may have put them.
	FromStore Origin = "store"
	// FromRegistry asked it.
	FromRegistry Origin = "registry"
	// FromStale could not ask it, and went on with what was known.
	FromStale Origin = "stale"
	// FromNowhere could not be had.
	FromNowhere Origin = "failed"
)

// Origins are all of them.
func Origins() []Origin {
	return []Origin{FromMemory, FromStore, FromRegistry, FromStale, FromNowhere}
}

// Recall is a kind of what an Evaluator remembers in its process.
type Recall string

// The kinds of what is remembered.
const (
	RecallEvidence  Recall = "evidence"
	RecallFacts     Recall = "facts"
	RecallDecisions Recall = "decisions"
)

// Recalls are all of them.
func Recalls() []Recall { return []Recall{RecallEvidence, RecallFacts, RecallDecisions} }

// nop counts nothing.
type nop struct{}

// Signatures implements Observer.
func (nop) Signatures(Origin) {}

// Looked implements Observer.
func (nop) Looked(Recall, bool) {}
