package skep.policy_test

import data.skep.policy

tracing(kind, pods) := {"application": {
	"kind": kind,
	"spec": {"programs": [{"name": "snoop", "attach": [{"pods": pods}]}]},
}}

test_chosen_namespaces_are_fine if {
	count(policy.deny) == 0 with input as tracing("ClusterBpfApplication", {"namespaceSelector": {"matchLabels": {"audit": "execs"}}})
}

test_every_namespace_is_denied if {
	some reason in policy.deny with input as tracing("ClusterBpfApplication", {})
	reason.path == "spec.programs[0].attach[0].pods.namespaceSelector"
}

test_an_empty_selector_is_every_namespace if {
	count(policy.deny) == 1 with input as tracing("ClusterBpfApplication", {"namespaceSelector": {}})
}

test_a_team_has_its_own_namespace_alone if {
	count(policy.deny) == 0 with input as tracing("BpfApplication", {})
}
