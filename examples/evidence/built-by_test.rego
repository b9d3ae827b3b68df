package skep.policy_test

import data.skep.policy

provenance(signer, builder) := {"attestations": [{
	"signer": signer, "kind": "keyless", "predicateType": "https://slsa.dev/provenance/v1",
	"predicate": {"runDetails": {"builder": {"id": builder}}},
}]}

test_a_hosted_runner if {
	count(policy.deny) == 0 with input as provenance("ci", "https://github.com/actions/runner/github-hosted")
}

test_a_runner_of_ones_own if {
	count(policy.deny) == 1 with input as provenance("ci", "https://github.com/actions/runner/self-hosted")
}

test_somebody_else_says_so if {
	count(policy.deny) == 1 with input as provenance("vendor", "https://github.com/actions/runner/github-hosted")
}

test_no_provenance if {
	count(policy.deny) == 1 with input as {"attestations": []}
}
