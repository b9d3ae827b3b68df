package skep.policy_test

import data.skep.policy

made_of(components) := {"attestations": [{
	"signer": "ci", "kind": "key", "predicateType": "https://cyclonedx.org/bom",
	"predicate": {"bomFormat": "CycloneDX", "components": components},
}]}

test_a_new_libbpf if {
	count(policy.deny) == 0 with input as made_of([{"name": "libbpf", "version": "1.4.0"}])
}

test_an_old_libbpf if {
	count(policy.deny) == 1 with input as made_of([{"name": "libbpf", "version": "0.8.1"}])
}

test_no_bill_of_materials if {
	count(policy.deny) == 1 with input as {"attestations": []}
}
