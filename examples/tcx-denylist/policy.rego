# A network that is dropped by mistake is one that nobody reaches the host from. A short
# prefix holds many networks, and 0 holds all.
package skep.policy

shortest := 16

deny contains {
	"rule": "long-prefixes",
	"path": sprintf("spec.maps.networks.contents[%d].key.prefixlen", [i]),
	"msg": sprintf("the prefix %v drops more than a /%d", [object.get(entry, ["key", "prefixlen"], 0), shortest]),
	"fix": sprintf("drop longer prefixes, of %d bits or more, as a plain number", [shortest]),
} if {
	some i, entry in object.get(input.application.spec, ["maps", "networks", "contents"], [])
	not object.get(entry, ["value", "action"], "DROP") == "COUNT"
	not long_enough(entry)
}

# A number may be written in other ways, such as "0x10". What this policy cannot compare
# it denies, or it would be easy to get around.
long_enough(entry) if {
	is_number(entry.key.prefixlen)
	entry.key.prefixlen >= shortest
}
