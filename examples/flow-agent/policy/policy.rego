# The flows of a node say who talks to whom, so each grant of a map names the service accounts
# that it is for, and no account may change what was counted.
package skep.policy

deny contains {
	"rule": "named-readers",
	"path": sprintf("spec.maps.%s.export[%d]", [name, i]),
	"msg": sprintf("map %s is granted to all pods of its namespaces", [name]),
	"fix": "name the accounts of its readers in serviceAccounts",
} if {
	some name, m in input.application.spec.maps
	some i, grant in m.export
	count(object.get(grant, "serviceAccounts", [])) == 0
}

deny contains {
	"rule": "read-only",
	"path": sprintf("spec.maps.%s.export[%d].access", [name, i]),
	"msg": sprintf("map %s is granted for writing, and flows are counted by programs alone", [name]),
	"fix": "grant it for Read",
} if {
	some name, m in input.application.spec.maps
	some i, grant in m.export
	grant.access == "Write"
}
