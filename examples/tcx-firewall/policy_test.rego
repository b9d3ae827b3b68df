package skep.policy_test

import data.skep.policy

dropping(port) := {"application": {"spec": {"variables": {"port": port}}}}

rules(denied) := {reason.rule | some reason in denied}

test_other_ports_may_be_dropped if {
	count(policy.deny) == 0 with input as dropping(7777)
}

test_the_port_of_ssh_is_kept if {
	rules(policy.deny) == {"kept-ports"} with input as dropping(22)
}

test_a_port_that_cannot_be_compared_is_refused if {
	every written in ["22", "0x16", [22], null] {
		rules(policy.deny) == {"plain-port"} with input as dropping(written)
	}
}

test_the_port_must_be_given if {
	rules(policy.deny) == {"plain-port"} with input as {"application": {"spec": {}}}
}
