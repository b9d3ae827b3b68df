# Another system verified how the image was built, and says so in a SLSA
# verification summary.
package skep.policy

import data.skep.evidence.vsa
import data.skep.lib

deny contains {
	"rule": "verified",
	"path": "spec.bytecode.image",
	"msg": "verifier attests no verification at SLSA build level 2, or one that failed",
	"fix": "have the release pipeline verify the image",
} if {
	not vsa.passed(input.attestations, ["verifier"], {
		"verifiers": ["https://verify.example.com/*"],
		"resources": [lib.image_name(input.image)],
		"level": 2,
	})
}
