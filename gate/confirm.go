package gate

// NeedsConfirmation reports whether one change of policies or signers newly denies so much of
// what runs that a human has to confirm it before anything is unloaded: more
// than a tenth, and more than one application, since on a host with a few
// applications any single one is more than a tenth. Revoking a signer is said
// in so many words and does not go through unload protection.
func NeedsConfirmation(running, newlyDenied int) bool {
	return newlyDenied > 1 && newlyDenied*10 > running
}
