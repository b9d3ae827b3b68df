package skep.policy_test

import data.skep.policy

granting(grant) := {"application": {"spec": {"maps": {"aggregated_flows": {"export": [grant]}}}}}

test_a_named_reader_reads if {
	count(policy.deny) == 0 with input as granting({"access": "Read", "namespaces": ["flows"], "serviceAccounts": ["flow-agent"]})
}

test_a_whole_namespace_does_not if {
	some reason in policy.deny with input as granting({"access": "Read", "namespaces": ["flows"]})
	reason.path == "spec.maps.aggregated_flows.export[0]"
}

test_no_reader_writes if {
	some reason in policy.deny with input as granting({"access": "Write", "namespaces": ["flows"], "serviceAccounts": ["flow-agent"]})
	reason.rule == "read-only"
}
