package skep.policy_test

import data.skep.policy

sharing(others) := {"application": {
	"metadata": {"name": "sources-count"},
	"spec": {"maps": {"sources": {"sharedWith": others}}},
}}

test_the_family_gets_the_map if {
	count(policy.deny) == 0 with input as sharing(["sources-limit"])
}

test_others_do_not if {
	some reason in policy.deny with input as sharing(["sources-limit", "spy"])
	reason.path == "spec.maps.sources.sharedWith[1]"
}

test_a_map_of_ones_own_is_fine if {
	count(policy.deny) == 0 with input as sharing([])
}
