package lifecycle

// NeedsConfirmation reports whether unload protection applies to a change of policies,
// signers or sources: it would unload more than one application, and more than a tenth
// of those that run. On a host with a few applications any single one is more than a
// tenth. Unload protection does not apply to revoked signers.
func NeedsConfirmation(running, unloads int) bool {
	return unloads > 1 && unloads*10 > running
}
