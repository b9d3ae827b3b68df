package skep.policy_test

import data.skep.policy

granting(name, grant) := {"application": {"spec": {"maps": {name: {"export": [grant]}}}}}

writer := {"access": "Write", "namespaces": ["firewall"], "serviceAccounts": ["node-firewall"]}

test_one_account_writes_the_rules if {
	count(policy.deny) == 0 with input as granting("ingress_node_firewall_table_map", writer)
}

test_it_writes_no_statistics if {
	some reason in policy.deny with input as granting("ingress_node_firewall_statistics_map", writer)
	reason.rule == "written"
}

test_a_whole_namespace_writes_nothing if {
	some reason in policy.deny with input as granting("ingress_node_firewall_table_map", object.remove(writer, ["serviceAccounts"]))
	reason.rule == "one-writer"
}
