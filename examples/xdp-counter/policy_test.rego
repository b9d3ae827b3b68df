package skep.policy_test

import data.skep.policy

counter(hook, priority) := {"application": {"spec": {"programs": [{
	"name": "count_packets",
	"attach": [{"hook": hook, "priority": priority}],
}]}}}

test_a_counter_behind_the_firewalls_is_fine if {
	count(policy.deny) == 0 with input as counter("xdp", 50)
}

test_a_counter_at_the_front_is_refused if {
	some reason in policy.deny with input as counter("xdp", 49)
	reason.path == "spec.programs[0].attach[0].priority"
}

test_other_hooks_have_no_front if {
	count(policy.deny) == 0 with input as counter("tcx/ingress", 1)
}
