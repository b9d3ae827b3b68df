# SLSA verification summaries, from input.attestations: what somebody else found
# who verified the image, https://slsa.dev/verification_summary/v1.
package skep.evidence.vsa

import data.skep.lib

# Whether signers of the names attest that the image passed, and none of them
# that it failed. want has three keys: verifiers, globs of verifier.id;
# resources, globs of the resourceUri that was verified; and level, the lowest
# SLSA build level.
passed(attestations, names, want) if {
	summaries := [summary |
		some summary in lib.predicates(attestations, names, ["https://slsa.dev/verification_summary/v1"])
		lib.matches_any(want.verifiers, summary.verifier.id)
		lib.matches_any(want.resources, summary.resourceUri)
	]
	every summary in summaries {
		summary.verificationResult == "PASSED"
	}
	is_number(want.level)
	some summary in summaries
	build_level(summary) >= want.level
}

build_level(summary) := max({0} | {level |
	some verified in summary.verifiedLevels
	some level in numbers.range(1, 4)
	verified == sprintf("SLSA_BUILD_LEVEL_%d", [level])
})
