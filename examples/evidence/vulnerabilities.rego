# A scanner looked at the image, and found nothing worse than medium.
package skep.policy

import data.skep.evidence.vuln

deny contains {
	"rule": "vulnerabilities",
	"path": "spec.bytecode.image",
	"msg": "scanner attests no scan, or one that found more than medium vulnerabilities",
	"fix": "fix what was found, or have the image scanned: cosign attest --type vuln",
} if {
	not vuln.none_above(input.attestations, ["scanner"], "medium")
}
