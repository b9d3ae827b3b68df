# The release key and a reviewer's key: neither alone puts a program into a kernel.
package skep.policy

import data.skep.evidence.signers

deny contains {
	"rule": "reviewed",
	"path": "spec.bytecode.image",
	"msg": "no reviewer signed the image",
	"fix": "have alice or bob sign it: skep sign --key KEY IMAGE",
} if {
	not signers.at_least(input.signatures, 1, ["alice", "bob"])
}

deny contains {
	"rule": "two-signers",
	"path": "spec.bytecode.image",
	"msg": "fewer than two of release, alice and bob signed the image",
	"fix": "have another of them sign it: skep sign --key KEY IMAGE",
} if {
	not signers.at_least(input.signatures, 2, ["release", "alice", "bob"])
}
