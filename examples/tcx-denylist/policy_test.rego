package skep.policy_test

import data.skep.policy

listing(prefixlen, action) := {"application": {"spec": {"maps": {"networks": {"contents": [{"key": {"prefixlen": prefixlen}, "value": {"action": action}}]}}}}}

rules(denied) := {reason.rule | some reason in denied}

test_a_network_may_be_dropped if {
	count(policy.deny) == 0 with input as listing(24, "DROP")
}

test_half_of_the_internet_may_not_be_dropped if {
	rules(policy.deny) == {"long-prefixes"} with input as listing(1, "DROP")
}

test_it_may_be_counted if {
	count(policy.deny) == 0 with input as listing(1, "COUNT")
}

test_a_prefix_that_cannot_be_compared_is_denied if {
	every written in ["1", "0x01", null] {
		rules(policy.deny) == {"long-prefixes"} with input as listing(written, "DROP")
	}
}

test_an_action_that_is_not_said_is_the_first if {
	denied := policy.deny with input as {"application": {"spec": {"maps": {"networks": {"contents": [{"key": {}, "value": {}}]}}}}}
	rules(denied) == {"long-prefixes"}
}
