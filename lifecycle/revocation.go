package lifecycle

import (
	"strings"
	"time"

	"github.com/skep-dev/skep/gate"
	"github.com/skep-dev/skep/intent"
	"github.com/skep-dev/skep/signing"
)

// LostASigner reports whether a signer who admitted a version is revoked now.
func LostASigner(version *intent.Payload, revoked signing.Revocations) bool {
	return len(gate.RevokedSigners(version, revoked)) > 0
}

// LostAllSigners reports whether signers admitted a version and all of them are
// revoked now.
func LostAllSigners(version *intent.Payload, revoked signing.Revocations) bool {
	return len(version.Signers) > 0 && len(gate.RevokedSigners(version, revoked)) == len(version.Signers)
}

// RevocationReason is the sealed reason to unload a version that revoked signers admitted.
// It names them, with the time from which each is revoked.
func RevocationReason(version *intent.Payload, revoked signing.Revocations) string {
	names := describeRevoked(gate.RevokedSigners(version, revoked), revoked)
	if LostAllSigners(version, revoked) {
		return "every signer it was admitted by is revoked: " + names
	}
	return "it is denied, and a signer it was admitted by is revoked: " + names
}

// describeRevoked names signers, with the time from which each is revoked.
func describeRevoked(names []string, revoked signing.Revocations) string {
	described := make([]string, len(names))
	for i, name := range names {
		described[i] = name
		if at := revoked[name].After; !at.IsZero() {
			described[i] += ", since " + at.UTC().Format(time.RFC3339)
		}
	}
	return strings.Join(described, "; ")
}
