# The rules of a node's firewall are written by one account. All else is counted by the program alone.
package skep.policy

table := "ingress_node_firewall_table_map"

writing[[name, i]] := grant if {
	some name, m in input.application.spec.maps
	some i, grant in m.export
	grant.access == "Write"
}

deny contains {
	"rule": "written",
	"path": sprintf("spec.maps.%s.export[%d].access", [name, i]),
	"msg": sprintf("map %s is granted for writing; pods write the rules alone", [name]),
	"fix": "grant it for Read",
} if {
	writing[[name, i]]
	name != table
}

deny contains {
	"rule": "one-writer",
	"path": sprintf("spec.maps.%s.export[%d]", [name, i]),
	"msg": "more than one service account of one namespace would write the rules of this node",
	"fix": "name one of each in namespaces and serviceAccounts",
} if {
	some [name, i], grant in writing
	name == table
	some list in ["namespaces", "serviceAccounts"]
	count(object.get(grant, list, [])) != 1
}
