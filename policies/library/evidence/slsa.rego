# SLSA provenance, from input.attestations: who built the image. Read are v1 and
# v0.2 of https://slsa.dev/provenance.
package skep.evidence.slsa

import data.skep.lib

# Whether signers of the names attest that one of the builders built the image.
# A builder is a glob of builder.id.
built_by(attestations, names, builders) if {
	some id in builder_ids(attestations, names)
	lib.matches_any(builders, id)
}

# The highest SLSA build level of a builder that signers of the names attest, or
# 0. What level a builder can have is for whoever verifies to say: builders is
# an object of levels by globs of builder.id.
level(attestations, names, builders) := max({0} | {level |
	some id in builder_ids(attestations, names)
	some builder, level in builders
	is_number(level)
	lib.matches_any([builder], id)
})

builder_ids(attestations, names) := current | old if {
	current := {predicate.runDetails.builder.id |
		some predicate in lib.predicates(attestations, names, ["https://slsa.dev/provenance/v1"])
	}
	old := {predicate.builder.id |
		some predicate in lib.predicates(attestations, names, ["https://slsa.dev/provenance/v0.2"])
	}
}
