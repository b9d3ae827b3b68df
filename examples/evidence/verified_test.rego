package skep.policy_test

import data.skep.policy

summary(change) := {
	"image": {"registry": "registry.example.com", "repository": "bpf/counter"},
	"attestations": [{
		"signer": "verifier", "kind": "key", "predicateType": "https://slsa.dev/verification_summary/v1",
		"predicate": object.union(
			{
				"verifier": {"id": "https://verify.example.com/v1"}, "resourceUri": "registry.example.com/bpf/counter",
				"verificationResult": "PASSED", "verifiedLevels": ["SLSA_BUILD_LEVEL_2"],
			},
			change,
		),
	}],
}

test_a_verified_image if {
	count(policy.deny) == 0 with input as summary({})
}

test_it_failed if {
	count(policy.deny) == 1 with input as summary({"verificationResult": "FAILED"})
}

test_another_image_was_verified if {
	count(policy.deny) == 1 with input as summary({"resourceUri": "registry.example.com/bpf/other"})
}

test_the_level_is_too_low if {
	count(policy.deny) == 1 with input as summary({"verifiedLevels": ["SLSA_BUILD_LEVEL_1"]})
}
