# A firewall that is told to drop the port it is managed by locks its admins
# out, and says so to nobody.
package skep.policy

kept_ports := {22, 6443, 10250}

port := input.application.spec.variables.port

deny contains {
	"rule": "kept-ports",
	"path": "spec.variables.port",
	"msg": sprintf("port %d is how this host is managed", [port]),
	"fix": sprintf("drop another port; kept are %v", [sort(kept_ports)]),
} if {
	port in kept_ports
}

# A variable may be written in other ways, such as "0x16". What this policy
# cannot compare it refuses, or it would be easy to get around.
deny contains {
	"rule": "plain-port",
	"path": "spec.variables.port",
	"msg": "the port is not written as a plain number",
	"fix": "write the port as a decimal number without quotes",
} if {
	not comparable
}

comparable if is_number(port)
