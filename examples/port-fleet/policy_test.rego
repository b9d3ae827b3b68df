package skep.policy_test

import data.skep.policy

member(labels, hook) := {"application": {
	"metadata": {"name": "close-telnet", "labels": labels},
	"spec": {"programs": [{"name": "drop_port", "attach": [{"hook": hook}]}]},
}}

test_the_fleet_attaches_to_ingress if {
	count(policy.deny) == 0 with input as member({"skep.dev/fleet": "ports"}, "tcx/ingress")
}

test_the_fleet_attaches_nowhere_else if {
	some reason in policy.deny with input as member({"skep.dev/fleet": "ports"}, "xdp")
	reason.path == "spec.programs[0].attach[0].hook"
}

test_others_attach_where_they_like if {
	count(policy.deny) == 0 with input as member({}, "xdp")
}
