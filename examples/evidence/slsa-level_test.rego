package skep.policy_test

import data.skep.policy

built(hook, builder) := {
	"application": {"spec": {"programs": [{"name": "p", "attach": [{"hook": hook}]}]}},
	"bytecode": {"programs": [{"name": "p", "hook": hook}]},
	"attestations": [{
		"signer": "ci", "kind": "keyless", "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": {"runDetails": {"builder": {"id": builder}}},
	}],
}

hosted := "https://github.com/actions/runner/github-hosted"

generator := "https://github.com/slsa-framework/slsa-github-generator/.github/workflows/generator_container_slsa3.yml@refs/tags/v2.1.0"

test_what_controls_needs_level_3 if {
	count(policy.deny) == 0 with input as built("xdp", generator)
	some reason in policy.deny with input as built("xdp", hosted)
	reason.msg == "the image has SLSA build level 2, and its hooks need 3"
}

test_what_watches_needs_level_2 if {
	count(policy.deny) == 0 with input as built("tracepoint", hosted)
	count(policy.deny) == 1 with input as built("tracepoint", "https://laptop.example.com")
}

test_a_hook_that_nobody_knows_needs_level_3 if {
	count(policy.deny) == 1 with input as built("unheard-of", hosted)
}
