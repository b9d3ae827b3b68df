package chain

import "errors"

// Close drops the caller's hold of the chain; what is attached or pinned stays. The product
// hands both on.
func (l *Loaded) Close() error {
	return errors.Join(l.Program.Close(), l.Counters.Close())
}
