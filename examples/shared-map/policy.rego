# A map is shared within one family of applications: those whose names have the same
# first word as the owner's.
package skep.policy

family(name) := split(name, "-")[0]

deny contains {
	"rule": "family",
	"path": sprintf("spec.maps.%s.sharedWith[%d]", [name, i]),
	"msg": sprintf("map %s is shared with %s, which is not of the family %s", [name, other, family(input.application.metadata.name)]),
	"fix": "remove it, or name the application as its family is named",
} if {
	some name, m in input.application.spec.maps
	some i, other in m.sharedWith
	family(other) != family(input.application.metadata.name)
}
