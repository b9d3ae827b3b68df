package skep.policy_test

import data.skep.policy

found(severities) := {"attestations": [{
	"signer": "scanner", "kind": "key", "predicateType": "https://cosign.sigstore.dev/attestation/vuln/v1",
	"predicate": {"scanner": {"result": {"matches": [{"vulnerability": {"severity": severity}} | some severity in severities]}}},
}]}

test_nothing_was_found if {
	count(policy.deny) == 0 with input as found([])
}

test_medium_is_fine if {
	count(policy.deny) == 0 with input as found(["Low", "Medium"])
}

test_high_is_not if {
	count(policy.deny) == 1 with input as found(["Medium", "High"])
}

test_nobody_looked if {
	count(policy.deny) == 1 with input as {"attestations": []}
}
